"""Starts a run on a TPU slice, a cluster or a cloud.

    gmlp launch --on=xpk --topology=v5e:4x4 --cluster=C --zone=Z --project=P --image=IMAGE \\
        --config=c4_bert:gmlp_base --workdir=gs://BUCKET/runs/base \\
        --config.data.train=gs://BUCKET/tokens/train --config.data.heldout=gs://BUCKET/tokens/heldout
    gmlp launch --on=slurm --topology=gpu:h100x32 --config=imagenet:gmlp_s \\
        --workdir=/shared/runs/s --config.data.train=/shared/imagenet2012/5.1.0

XPK, SkyPilot and SLURM do the work. This command writes the file or command that they need, and
--dry_run prints it. All arguments except its own flags go to `gmlp train` unchanged. The config's
mesh is checked against the topology; config.mesh.slices is the number of such slices. `gmlp sweep`
has the same flags, and starts a job for each of its runs.
"""

import copy
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict

from gmlp_flax.commands import cli
from gmlp_flax.errors import RunError
from gmlp_flax.launching import engines
from gmlp_flax.launching.engines import Job, Options
from gmlp_flax.options import options_of

LONGEST_NAME = 35  # XPK's limit is 40, with the number of a sweep's run
OPTIONS = options_of(Options)
OWN_FLAGS = ("on", "dry_run", *OPTIONS)  # all others are training's


class Run(NamedTuple):
    """A run to start.

    Attributes:
        config: of the run.
        workdir: its folder.
        words: the arguments of training.
        number: -NUMBER for a run of a sweep; "" for others.
    """

    config: ConfigDict
    workdir: str
    words: Sequence[str]
    number: str = ""


def define_flags() -> None:
    """Defines --on, --dry_run and the options of all engines."""
    what = "; ".join(f"{name}: {engine.summary}" for name, engine in engines.ENGINES.items())
    flags.DEFINE_string("on", None, f"The engine. {what}.")
    flags.DEFINE_bool("dry_run", False, "Print what the engine would get, and start nothing.")
    for name, option in OPTIONS.items():
        users = []
        for user, engine in engines.ENGINES.items():
            if name in (*engine.required, *engine.optional):
                users.append(user)
        meaning = option.comment
        if users:
            meaning += f" For {', '.join(users)}."
        cli.define(name, option.default, meaning, least=0)


def start(runs: Sequence[Run], folder: str) -> None:
    """Starts runs on the engine that the flags name; ends the program with an exit code that is not
    0.

    Args:
        runs: the runs.
        folder: of the run or of the sweep; its last part is the default of --name.

    Raises:
        RunError: an option is wrong, a config does not suit the hardware, or a folder does not suit
            the engine.
    """
    from gmlp_flax import config as config_lib
    from gmlp_flax.training.partition import Partition

    values = flags.FLAGS
    chosen: dict[str, Any] = {}
    for name in OPTIONS:
        value = values[name].value
        chosen[name] = tuple(value) if isinstance(value, list) else value
    chosen["name"] = _name(values.name, folder)
    options = Options(**chosen)
    engine = engines.find(values.on, options)
    for run in runs:
        config = run.config
        config_lib.validate(config)
        partition = Partition.make(config.mesh, engine.hardware.count * config.mesh.slices)
        partition.check_batch(
            config.batch_size, config.optimizer.grad_accum_steps, "config.batch_size"
        )
    jobs = []
    for run in runs:
        name = options.name + run.number
        reads = config_lib.read_paths(run.config)
        job = Job(name, run.workdir, tuple(run.words), run.config.mesh.slices, reads)
        jobs.append(job)
    code = engines.launch(engine, jobs, values.dry_run)
    if code:
        raise SystemExit(code)


def _name(chosen: str, folder: str) -> str:
    """A name that all engines take: the one that the user chose, or one made of a folder's."""
    if chosen:
        has_form = re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", chosen)
        if not has_form or len(chosen) > LONGEST_NAME:
            raise RunError(
                f"--name={chosen}: expected at most {LONGEST_NAME} lower-case letters, digits and "
                "hyphens, the first one a letter"
            )
        return chosen
    last = os.path.basename(os.path.normpath(folder))
    name = re.sub("[^a-z0-9]+", "-", last.lower()).strip("-")
    if not name[:1].isalpha():
        name = f"run-{name}".strip("-")
    return name[:LONGEST_NAME].strip("-")


def training_words(argv: Sequence[str]) -> list[str]:
    """The words of a command line, without the program's name, that are not for OWN_FLAGS."""
    own_flags = flags.FlagValues()
    for name in OWN_FLAGS:
        own_flags[name] = copy.deepcopy(flags.FLAGS[name])
    own_flags.set_gnu_getopt(True)
    return own_flags(argv, known_only=True)[1:]


def main(_argv: list[str], config: ConfigDict) -> None:
    """Starts the run."""
    for name in ("on", "config"):
        cli.require(name)
    workdir = cli.require("workdir")
    start([Run(config, workdir, training_words(sys.argv))], workdir)


def run() -> None:
    """The command line."""
    flags.DEFINE_string(
        "workdir",
        None,
        "The run folder, which all machines must see: gs://BUCKET/FOLDER, or mounted.",
    )
    define_flags()
    cli.run(main, config=cli.given_config)
