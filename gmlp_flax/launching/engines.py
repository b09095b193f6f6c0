"""The table of engines, and the launch of runs on one of them."""

import shutil
import sys
from collections.abc import Sequence

from gmlp_flax.errors import RunError, did_you_mean
from gmlp_flax.launching.engine import Engine, Job, Options
from gmlp_flax.launching.skypilot import SkyPilot
from gmlp_flax.launching.slurm import Slurm
from gmlp_flax.launching.xpk import Xpk

ENGINES: dict[str, type[Engine]] = {
    "xpk": Xpk,
    "skypilot": SkyPilot,
    "slurm": Slurm,
}


def find(name: str, options: Options) -> Engine:
    """The engine of a name, with its options; raises RunError if there is none, or an option is wrong."""
    if name not in ENGINES:
        raise RunError(f"there is no engine {name!r} for --on; {did_you_mean(name, ENGINES)}")
    return ENGINES[name](name, options)


def launch(engine: Engine, jobs: Sequence[Job], dry_run: bool) -> int:
    """Starts runs, one after the other, or prints what would be handed to the engine's tool.

    Returns:
        0, or the exit code of the first start that failed; the others are tried nonetheless.

    Raises:
        RunError: a run's folder does not suit the engine, or its tool is missing; nothing was started.
    """
    for job in jobs:
        engine.check(job)
    if dry_run:
        print(*map(engine.show, jobs), sep="\n")
        return 0
    if not shutil.which(engine.tool):
        raise RunError(f"there is no {engine.tool} here: {engine.install}")
    codes = []
    for job in jobs:
        codes.append(engine.start(job))
        if codes[-1] and len(jobs) > 1:
            print(f"{job.name}: ended with code {codes[-1]}", file=sys.stderr, flush=True)
    return next(filter(None, codes), 0)
