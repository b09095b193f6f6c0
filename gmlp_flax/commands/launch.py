"""Starts a run on a slice of TPUs, a cluster or a cloud.

    gmlp launch --on=xpk --topology=v5e:4x4 --cluster=C --zone=Z --project=P --image=IMAGE \\
        --config=c4_bert:gmlp_base --workdir=gs://BUCKET/runs/base --config.steps=1000
    gmlp launch --on=slurm --topology=gpu:h100x32 --config=imagenet:gmlp_s --workdir=/shared/runs/s
    gmlp launch --on=local --processes=2 --config=quickstart_text --workdir=runs/two
    gmlp launch --on=ENGINE --config=FILE[:ARGUMENT] --workdir=DIR [--config.KEY=VALUE ...] [--dry_run] [--] ...

XPK, SkyPilot and SLURM do the work; this command writes what they take, and --dry_run prints it. All words but
its own flags go to `gmlp train` unchanged, also what stands after --. A topology is written as in `gmlp plan`; the mesh
of the config is checked against it, and config.mesh.slices says how many such slices there are. `gmlp sweep` takes the
same flags, and starts a job for each of its runs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.errors import RunError
from gmlp_flax.options import options_of

if TYPE_CHECKING:
    from ml_collections import ConfigDict

USAGE = "launch --on=ENGINE --config=NAME --workdir=DIR [--config.KEY=VALUE ...]"
LONGEST_NAME = 35  # XPK's limit is 40, with the number of a sweep's run


class Run(NamedTuple):
    """A run to start.

    Attributes:
        config: its whole config.
        workdir: its folder.
        words: training's arguments.
        number: of a sweep's run, with a hyphen before it.
    """

    config: ConfigDict
    workdir: str
    words: Sequence[str]
    number: str = ""


def define_flags() -> None:
    """Defines --on, --dry_run and the options of all engines."""
    from gmlp_flax.launching.engine import Options
    from gmlp_flax.launching.engines import ENGINES

    what = "; ".join(f"{name}: {engine.summary}" for name, engine in ENGINES.items())
    flags.DEFINE_string("on", None, f"The engine. {what}.")
    flags.DEFINE_bool("dry_run", False, "Print what the engine would be given, and start nothing.")
    for option, declared in options_of(Options).items():
        of = [name for name, engine in ENGINES.items() if option in (*engine.required, *engine.optional)]
        text = f"{declared.comment} For {', '.join(of)}." if of else declared.comment
        if isinstance(declared.default, tuple):
            flags.DEFINE_multi_string(option, [], text)
        elif isinstance(declared.default, bool):
            flags.DEFINE_bool(option, False, text)
        elif isinstance(declared.default, int):
            flags.DEFINE_integer(option, None, text, lower_bound=1)
        else:
            flags.DEFINE_string(option, "", text)


def engine_flags_given() -> list[str]:
    """The names of the flags on the command line that mean something with --on alone."""
    from gmlp_flax.launching.engine import Options

    return [name for name in ("dry_run", *options_of(Options)) if flags.FLAGS[name].present]


def start(runs: Sequence[Run], folder: str) -> None:
    """Starts runs on the engine that the flags name; ends the program with an exit code that is not 0.

    Args:
        runs: the runs.
        folder: of the run or of the sweep; its last part is the default of --name.

    Raises:
        RunError: an option is wrong, a config does not suit the hardware, or a folder does not suit the engine.
    """
    from gmlp_flax.launching import engines
    from gmlp_flax.launching.engine import Job, Options

    values = flags.FLAGS
    given: dict[str, Any] = {
        field: tuple(value) if isinstance(value := values[field].value, list) else value or declared.default
        for field, declared in options_of(Options).items()
    }
    given["name"] = _name(given["name"], folder)
    options = Options(**given)
    engine = engines.find(values.on, options)
    for run in runs:
        _check_mesh(run.config, engine.hardware.count if engine.hardware else 0)
    jobs = [Job(options.name + run.number, run.workdir, tuple(run.words), run.config.mesh.slices) for run in runs]
    if code := engines.launch(engine, jobs, values.dry_run):
        raise SystemExit(code)


def _name(given: str, folder: str) -> str:
    """A name that all engines take."""
    if given and not (re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", given) and len(given) <= LONGEST_NAME):
        expected = f"at most {LONGEST_NAME} lower-case letters, digits and hyphens, such as --name=my-run"
        raise RunError(f"--name={given}: expected {expected}")
    name = given or re.sub("[^a-z0-9]+", "-", os.path.basename(os.path.normpath(folder)).lower()).strip("-")
    name = name if name[:1].isalpha() else f"run-{name}".strip("-")
    return name if given else name[:LONGEST_NAME].strip("-")


def _check_mesh(config: ConfigDict, chips: int) -> None:
    """Refuses a mesh or a batch that the devices cannot have; chips is 0 where they are not known."""
    from gmlp_flax import config as config_lib
    from gmlp_flax.training.partition import Partition

    config_lib.validate(config)
    if chips:
        partition = Partition.make(config.mesh, chips * config.mesh.slices)
        partition.check_batch(config.batch_size, config.optimizer.grad_accum_steps, "config.batch_size")


def training_words(argv: Sequence[str], own: Sequence[str]) -> list[str]:
    """The words of a command line, without the program's name, that are not for the flags `own`."""
    kept, words = [], iter(argv[1:])
    for word in words:
        name, equals, _ = word.lstrip("-").partition("=")
        if not word.startswith("-") or {name, name.removeprefix("no")}.isdisjoint(own):
            kept.append(word)
        elif not equals and not flags.FLAGS[name.removeprefix("no") if name not in own else name].boolean:
            next(words, None)
    return kept


def _without_dashes(argv: Sequence[str]) -> list[str]:
    """A word -- may stand before training's words."""
    place = argv.index("--") if "--" in argv else len(argv)
    return [*argv[:place], *argv[place + 1 :]]


def main(_argv: list[str], config: ConfigDict) -> None:
    """Starts the run."""
    cli.required("on", USAGE)
    cli.required("config", USAGE)
    workdir = cli.required("workdir", USAGE)
    own = [flag.name for flag in flags.FLAGS.flags_by_module_dict()[__name__] if flag.name != "workdir"]
    start([Run(config, workdir, training_words(_without_dashes(sys.argv), own))], workdir)


def run() -> None:
    """The command line."""
    flags.DEFINE_string(
        "workdir", None, "The run folder, for all machines to see: gs://BUCKET/FOLDER, or a mounted one."
    )
    define_flags()
    cli.run(main, config=cli.given_config, words=_without_dashes)
