"""Plans a run on a TPU slice or on GPUs that are not here: memory, time, cost.

    gmlp plan --config=c4_bert:gmlp_base --topology=v5e:8x8
    gmlp plan --config=imagenet:gmlp_s --topology=gpu:h100x8 --price=2.5 --mfu=0.5

TOPOLOGY is a TPU slice as libtpu names it (v5e:16x16, v4:2x2x2, ...) or gpu:KINDxNUMBER. The
training step itself is compiled, on this machine, without a TPU (extra `plan`) or a GPU (extra
`plan-gpu`; without it everything is estimated from the forward pass), in 10 to 100 seconds.
--config.mesh=auto compiles several meshes and takes the fastest that fits. No data is read. Times
are the best that the chips' printed speeds allow, or at the share of their peak that --mfu gives.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import TYPE_CHECKING

from absl import flags
from ml_collections import ConfigDict

from gmlp_flax.commands import cli

if TYPE_CHECKING:
    from gmlp_flax.planning.plan import Plan


def describe(plan: Plan, unit: str) -> str:
    """The plan for reading; `unit` is what throughput counts."""
    gb = {name: f"{size / 1e9:.2f}" for name, size in plan.per_chip_bytes.items()}
    memory = (
        f"{gb['peak']} of {plan.hbm_bytes / 1e9:.2f} GB: {'fits' if plan.fits else 'DOES NOT FIT'}"
    )
    parts = [
        f"{name} {'unknown' if value is None else f'{1e3 * value:.3g}'}"
        for name, value in plan.seconds.items()
    ]
    cost = (
        ""
        if plan.cost is None
        else f", {plan.cost:,.0f} at the price given, {plan.per_price:,.0f} {unit} for 1"
    )
    products = "memory takes longer than products at any batch"
    if not plan.topology.startswith("gpu:"):
        products += "; microbatches (optimizer.grad_accum_steps) may need less of it"
    if plan.products_bound:
        products = f"products take longest from a batch of {plan.products_bound:,}"
    rows = {
        "parameters": f"{plan.params:,}",
        "FLOPs per step": f"{plan.flops_per_step:.4g}",
        "memory per chip": f"{memory} ({gb['arguments']} arguments, {gb['temporaries']} temporaries)",
        **{
            kind: f"{of['count']} per step, {of['bytes'] / 1e6:,.1f} MB"
            for kind, of in plan.collectives.items()
        },
        "step": f"{1e3 * plan.step_seconds:.4g} ms at least ({', '.join(parts)})",
        "utilisation": f"{plan.utilisation:.0%} of the peak, in products of the model, at most; {products}",
        "run": f"{plan.run_days:.3g} days, {plan.chip_hours:,.0f} chip-hours{cost}",
    }
    lines = [
        f"{plan.topology}: {plan.chips} chips, {plan.method}",
        *(f"  {row:<16} {rows[row]}" for row in rows),
    ]
    if plan.moved:
        lines += [
            "",
            f"{'MB per step':>11}{'runs':>7}{'MB a run':>10}  arrays written (*: kept on the chip) <- operation",
        ]
    for one in plan.moved:
        size, runs = one["bytes"] / 1e6, one["runs"]
        lines.append(
            f"{size:>11.1f}{runs:>7.0f}{size / runs:>10.1f}  {one['results']} <- {one['source']}"
        )
    return "\n".join([*lines, *(f"  note: {note}" for note in plan.notes)])


def main(_argv: list[str], config: ConfigDict) -> None:
    """Makes the plan and prints it."""
    from gmlp_flax import config as config_lib
    from gmlp_flax import tasks
    from gmlp_flax.planning import plan

    values = flags.FLAGS
    cli.require("config")
    topology = cli.require("topology")
    config_lib.validate(config)
    if config.mesh.auto:
        sizes, reason = plan.choose_mesh(config, topology)
        config = plan.with_mesh(config, sizes)
        print(f"mesh {plan.mesh_name(sizes)}: {reason}", file=sys.stderr)
    found = plan.make(config, topology, values.price, values.mfu, values.moved)
    if values.json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
        return
    print(describe(found, tasks.find(config.task).unit))
    if not found.fits:
        print(
            "  --config.mesh=auto says whether mesh.fsdp, remat=full, accumulation or more chips would make it fit"
        )


def run() -> None:
    """The command line."""
    # JAX reads both when it is imported: no accelerator of this machine is touched, and XLA prints
    # nothing of its own.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    flags.DEFINE_string(
        "topology", None, "A TPU slice such as v5e:4x4, or GPUs such as gpu:h100x8."
    )
    flags.DEFINE_float("price", None, "The price of one chip for an hour.", lower_bound=0)
    mfu = "The share of the chips' peak that the model reaches, as you measured it."
    flags.DEFINE_float("mfu", None, mfu, lower_bound=1e-6, upper_bound=1)
    flags.DEFINE_integer(
        "moved", 0, "Also list so many instructions, those that move most bytes.", lower_bound=0
    )
    flags.DEFINE_bool("json", False, "Print one JSON object.")
    cli.run(main, config=cli.given_config, doing="planning")
