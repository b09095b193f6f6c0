"""Prints every published configuration: exact parameters and FLOPs per example beside its paper's figures.

    gmlp sizes
    gmlp sizes --json

If a paper prints multiply-adds, two operations each, its figure is shown as 2x.
"""

import json
from typing import Any

from absl import flags

from gmlp_flax.commands import cli


def main(_argv: list[str]) -> None:
    """Prints the table, or with --json a list of objects. What a paper does not print is None there."""
    from gmlp_flax.paper import published  # imports JAX

    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "params": published.param_count(model),
            "paper_params_m": model.params_m,
            "flops": published.forward_flops(model),
            "paper_flops_g": model.flops_g,
            "paper_madds_g": model.madds_g,
            "source": model.source,
            "paper_perplexity": model.perplexity,
            "note": model.note,
        }
        for name, model in published.PUBLISHED.items()
    ]
    if flags.FLAGS.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'model':<15}{'parameters':>13}{'M':>8}{'paper M':>9}{'GFLOPs':>9}{'paper':>8}  source      note")
    for row in rows:
        params = "" if row["paper_params_m"] is None else f"{row['paper_params_m']:g}"
        flops = "" if row["paper_flops_g"] is None else f"{row['paper_flops_g']:.1f}"
        flops = flops if row["paper_madds_g"] is None else f"2x{row['paper_madds_g']:g}"
        print(
            f"{row['name']:<15}{row['params']:>13,}{row['params'] / 1e6:>8.1f}{params:>9}"
            f"{row['flops'] / 1e9:>9.2f}{flops:>8}  {row['source']:<10}  {row['note']}".rstrip()
        )


def run() -> None:
    """The command line."""
    flags.DEFINE_bool("json", False, "Print a list of objects.")
    cli.run(main)
