"""Draws learned spatial filters.

    gmlp filters --workdir=runs/text --checkpoint=best
    gmlp filters --workdir=runs/digits --tokens=0,97

Text: for each layer the row of W that mixes into the middle token (the paper's Figure 4). Images: for each layer the
rows of some tokens, laid out as the grid of patches (Figure 3); `--tokens` chooses them, patches counted row by row.
"""

from __future__ import annotations

from absl import flags

from gmlp_flax.analysis import filters
from gmlp_flax.commands import cli
from gmlp_flax.training import loading


def main(_argv: list[str]) -> None:
    """Draws the filters of a checkpoint and prints its path."""
    workdir = cli.required("workdir", "filters --workdir=DIR [--checkpoint=latest|best|STEP]")
    try:
        tokens = [int(token) for token in flags.FLAGS.tokens]
    except ValueError:
        cli.fail(f"--tokens={','.join(flags.FLAGS.tokens)}: expected numbers of patches, e.g. --tokens=0,97")
    print(filters.draw(loading.load(workdir, flags.FLAGS.checkpoint), workdir, tokens))


def run() -> None:
    """The command line."""
    cli.define_run_flags(checkpoint="latest")
    flags.DEFINE_list("tokens", [], "Images: the patches whose rows are drawn, counted row by row.")
    cli.run(main)
