"""Plans a run on a TPU slice or on GPUs that are not here: memory, time, cost.

    gmlp plan --config=c4_bert:gmlp_base --topology=v5e:8x8
    gmlp plan --config=imagenet:gmlp_s --topology=gpu:h100x8 --price=2.5 --mfu=0.5
    gmlp plan --config=FILE:ARGUMENT --topology=TOPOLOGY [--config.KEY=VALUE ...] [--suggest] [--json]

TOPOLOGY is a TPU slice as libtpu names it (v5e:16x16, v4:2x2x2, ...) or gpu:KINDxNUMBER. For a slice the training step
itself is compiled, on this machine, without a TPU (extra `plan`; 10 to 100 seconds). For GPUs everything is estimated
from the forward pass: the values it saves and the products it makes. No data is read.

Times are the best that the chips' printed speeds allow; --mfu=SHARE takes the share of their peak that you measured.
--price is the price of one chip for an hour. --suggest also plans changes that may make the run fit or cost less:
remat=full, gradient accumulation, parameters sharded over more chips (fsdp), larger slices.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.errors import RunError

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from gmlp_flax.planning.plan import Plan

MOST = 1_000_000  # for one chip and hour, in any currency
USAGE = "plan --config=FILE:ARGUMENT --topology=v5e:4x4"


def describe(found: Plan) -> str:
    """The plan for reading."""
    memory, hbm = found.per_chip_bytes, found.hbm_bytes
    verdict = "fits" if found.fits else "DOES NOT FIT"
    lines = [
        f"{found.topology}: {found.chips} chips, {found.method}",
        f"  parameters       {found.params:,}",
        f"  FLOPs per step   {found.flops_per_step:.4g}",
        f"  memory per chip  {_gb(memory['peak'])} of {_gb(hbm)} GB: {verdict} "
        f"({_gb(memory['arguments'])} arguments, {_gb(memory['temporaries'])} temporaries)",
        *(
            f"  {kind:<16} {each['count']} per step, {each['bytes'] / 1e6:,.1f} MB"
            for kind, each in found.collectives.items()
        ),
        f"  step             {1e3 * found.step_seconds:.4g} ms at least ("
        + ", ".join(f"{name} {_ms(value)}" for name, value in found.seconds.items())
        + ")",
        f"  run              {found.run_days:.3g} days, {found.chip_hours:,.0f} chip-hours"
        + ("" if found.cost is None else f", {found.cost:,.0f} at the price given"),
    ]
    return "\n".join([*lines, *(f"  note: {note}" for note in found.notes)])


def table(rows: list[dict[str, Any]]) -> str:
    """One line per alternative."""
    lines = [f"{'':<24}{'memory GB':>10}{'of':>7}{'fits':>6}{'step ms':>10}{'days':>8}{'chip-hours':>12}"]
    for row in rows:
        if "error" in row:
            lines.append(f"{row['change']:<24}  {row['error']}")
            continue
        # A time without the memory's share is too low to compare.
        step = f"{'' if row['seconds']['memory'] is not None else '>'}{1e3 * row['step_seconds']:.4g}"
        lines.append(
            f"{row['change']:<24}{_gb(row['per_chip_bytes']['peak']):>10}{_gb(row['hbm_bytes']):>7}"
            f"{'yes' if row['fits'] else 'no':>6}{step:>10}{row['run_days']:>8.3g}"
            f"{row['chip_hours']:>12,.0f}"
        )
    return "\n".join(lines)


def suggest(config: ConfigDict, found: Plan, price: float | None, mfu: float | None) -> list[dict[str, Any]]:
    """Plans of the alternatives; if one cannot be planned, its row has an `error` in place of its figures."""
    from gmlp_flax.config import overrides
    from gmlp_flax.planning import plan

    rows = [{"change": "as it is"} | found.json()]
    for each in plan.alternatives(config, found.topology):
        print(f"planning {each.name}", file=sys.stderr, flush=True)
        try:
            other = plan.make(overrides.overridden(config, each.overrides), each.topology, price, mfu)
            rows.append({"change": each.name} | other.json())
        except RunError as error:
            rows.append({"change": each.name, "error": str(error)})
    return rows


def main(_argv: list[str], config: ConfigDict) -> None:
    """Makes the plan and prints it."""
    from gmlp_flax import config as config_lib
    from gmlp_flax.planning import plan

    values = flags.FLAGS
    for name in ("config", "topology"):
        cli.required(name, USAGE)
    if values.price is not None and not 0 <= values.price <= MOST:
        raise RunError(f"--price is {values.price}: expected from 0 to {MOST:,} for one chip and hour")
    if values.mfu is not None and not 0 < values.mfu <= 1:
        raise RunError(f"--mfu is {values.mfu}: expected a share above 0 and at most 1")
    config_lib.validate(config)
    found = plan.make(config, values.topology, values.price, values.mfu)
    rows = suggest(config, found, values.price, values.mfu) if values.suggest else []
    if values.json:
        print(json.dumps(found.json() | ({"alternatives": rows} if rows else {}), indent=2))
        return
    print(describe(found))
    if rows:
        print(f"\n{table(rows)}")
        fitting = [row["change"] for row in rows if row.get("fits")]
        print(f"fits: {'; '.join(fitting)}" if fitting else "none of these fits")
    elif not found.fits:
        print("  --suggest plans changes that would make it fit")


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{1e3 * seconds:.3g}"


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f}"


def run() -> None:
    """The command line."""
    # JAX reads both when it is imported: no accelerator of this machine is touched, and XLA prints nothing of its own.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    flags.DEFINE_string("topology", None, "A TPU slice such as v5e:4x4, or GPUs such as gpu:h100x8.")
    flags.DEFINE_float("price", None, "The price of one chip for an hour.")
    flags.DEFINE_float("mfu", None, "Share of the chips' peak that the model reaches.")
    flags.DEFINE_bool("suggest", False, "Also plan changes that may make it fit.")
    flags.DEFINE_bool("json", False, "Print one JSON object.")
    cli.run(main, config=cli.given_config)
