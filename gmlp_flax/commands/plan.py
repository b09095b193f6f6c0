"""Plans a run on TPUs or GPUs that you do not have: memory, time and cost.

    gmlp plan --config=c4_bert:gmlp_base --topology=v5e:8x8
    gmlp plan --config=imagenet:gmlp_s --topology=gpu:h100x8 --price=2.5 --mfu=0.5

TOPOLOGY is a TPU slice as libtpu names it (v5e:16x16, v4:2x2x2, ...) or gpu:KINDxNUMBER. This
machine compiles the real training step in 10 to 100 seconds, without a TPU (extra `plan`) or a GPU
(extra `plan-gpu`; without it everything is estimated from the forward pass). --config.mesh=auto
compiles several meshes and chooses the fastest that fits. No data is read. Times are the best that
the chips' printed speeds allow, or those at the share of the chips' peak that --mfu sets.
"""

import dataclasses
import functools
import json
import os
import sys

from absl import flags
from ml_collections import ConfigDict

from gmlp_flax.commands import cli


def main(_argv: list[str], config: ConfigDict) -> None:
    """Makes the plan and prints it."""
    from gmlp_flax import config as config_lib
    from gmlp_flax import tasks
    from gmlp_flax.planning import description, meshes, plan
    from gmlp_flax.training import warm_start

    values = flags.FLAGS
    cli.require("config")
    topology = cli.require("topology")
    choose_mesh = functools.partial(meshes.choose, topology=topology)
    explicit = config_lib.named_overrides(sys.argv)
    resolved = config_lib.resolve(config, warm_start.read_start, choose_mesh, explicit)
    for note in resolved.notes:
        print(note, file=sys.stderr)
    made = plan.make(resolved.config, topology, values.price, values.mfu, values.moved)
    if values.json:
        print(json.dumps(dataclasses.asdict(made), indent=2))
        return
    print(description.describe(made, tasks.find(resolved.config.task).unit))


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
        "moved",
        0,
        "Also list this many instructions, those that move the most bytes.",
        lower_bound=0,
    )
    flags.DEFINE_bool("json", False, "Print one JSON object.")
    cli.run(main, config=cli.given_config, doing="planning")
