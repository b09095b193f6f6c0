"""The run folder: what lies in it, and how a run is opened again."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.data.cache import write_atomically
from gmlp_flax.tasks.base import Task
from gmlp_flax.training import distributed, partition, report
from gmlp_flax.training.assets import Files
from gmlp_flax.training.checkpoint import Checkpoints
from gmlp_flax.training.errors import RunError

CONFIG_FILE, CHECKPOINTS, FIGURES = "config.json", "checkpoints", "figures"


class Trained(NamedTuple):
    """A run at one of its checkpoints.

    Attributes:
        config, task: as it was trained, unless another config was given.
        step: of the checkpoint.
        params: the parameters, replicated over `mesh`.
        ema: their running mean, or None where the run kept none.
        mesh: all devices of this process's machine.
    """

    config: ConfigDict
    task: Task
    step: int
    params: Any
    ema: Any
    mesh: Mesh

    @property
    def weights(self) -> Any:
        """The parameters to predict with: the running mean where there is one."""
        return self.params if self.ema is None else self.ema


def make(workdir: str) -> None:
    """Makes a run folder and checks that it can be written to.

    Raises:
        RunError: it cannot.
    """
    try:
        os.makedirs(os.path.join(workdir, FIGURES), exist_ok=True)
        probe = os.path.join(workdir, f".writable.{jax.process_index()}")
        with open(probe, "w"):
            os.remove(probe)
    except OSError as error:
        raise RunError(f"--workdir={workdir} cannot be written to ({error.strerror}): give another folder") from None


def write_files(workdir: str, files: Files, replace: bool) -> None:
    """Writes files to a run folder, each whole or not at all; without `replace`, only those that are missing there.

    Raises:
        DataError: the folder cannot be written to.
    """
    for name, content in files.items():
        path = os.path.join(workdir, name)
        if replace or not os.path.exists(path):
            write_atomically(path, lambda file, content=content: file.write(content))


def describe(workdir: str, config: ConfigDict, files: Files) -> None:
    """Writes what a run is: its config, its environment, and the files that predictions need.

    Keys that changed since the run began are noted on standard error.
    """
    path = os.path.join(workdir, CONFIG_FILE)
    if os.path.exists(path):
        before = config_lib.load(path)
        for name in [name for name, _ in config_lib.keys() if before[name] != config[name]]:
            print(f"note: config.{name} was {before[name]!r} and is now {config[name]!r}", file=sys.stderr)
    report.write_text(path, config_lib.to_json(config))
    report.write_json(os.path.join(workdir, report.ENVIRONMENT_FILE), report.environment())
    write_files(workdir, files, replace=True)


def check_metric(config: ConfigDict, task: Task) -> None:
    """Refuses a `config.checkpoint.metric` that the task's evaluations do not find: no checkpoint would be the best.

    Raises:
        RunError: naming those that they do.
    """
    known = [*task.evaluated, *(f"ema_{name}" for name in task.evaluated if config.optimizer.ema)]
    if config.checkpoint.metric and config.checkpoint.metric not in known:
        raise RunError(f"config.checkpoint.metric is {config.checkpoint.metric!r}: expected one of {', '.join(known)}")


def open_checkpoints(
    config: ConfigDict, workdir: str, files: Files | None = None, read_only: bool = False
) -> Checkpoints:
    """The run's checkpoints, kept as its config says; `files` as in `Checkpoints`."""
    options, (name, mode) = config.checkpoint, tasks.TASKS[config.task].best
    if options.metric and options.metric != name:
        # Of another metric, more is better unless it is an error.
        name, mode = options.metric, "min" if options.metric.endswith(("loss", "perplexity")) else "max"
    return Checkpoints(
        os.path.join(workdir, CHECKPOINTS), keep=options.keep, keep_best=options.keep_best, best=(name, mode),
        files=files, read_only=read_only,
    )


def load(workdir: str, which: str = "latest", config: ConfigDict | None = None) -> Trained:
    """Opens a run at a checkpoint.

    Args:
        workdir: the run folder.
        which: "latest", "best", or a step.
        config: in place of the run's own.

    Raises:
        ConfigError, RunError: the folder is not that of a run, or it has no such checkpoint, or it is damaged.
    """
    workdir = os.path.abspath(workdir)
    if not os.path.isfile(os.path.join(workdir, CONFIG_FILE)):
        raise RunError(f"{workdir} is no run folder: it has no {CONFIG_FILE}; give the --workdir of a training run")
    config = config or config_lib.load(os.path.join(workdir, CONFIG_FILE))
    if not os.path.isdir(os.path.join(workdir, CHECKPOINTS)):
        raise RunError(f"there is no checkpoint in {workdir} yet")
    checkpoints = open_checkpoints(config, workdir, read_only=True)
    step = checkpoints.pick(which)
    files = checkpoints.read_files(step)
    if distributed.is_first():
        write_files(workdir, files, replace=False)
    distributed.wait_for_all("files of the run")
    task, mesh = tasks.create(config, workdir), mesh_here(config)
    checkpoints.files = task.assets()
    template = {"params": partition.describe(task.shapes(), mesh, partition.parse_rules(config.mesh.rules))}
    if config.optimizer.ema:
        template["ema"] = template["params"]
    restored = checkpoints.restore(step, template)
    checkpoints.close()
    return Trained(config, task, step, restored["params"], restored.get("ema"), mesh)


def mesh_here(config: ConfigDict) -> Mesh:
    """The run's mesh where the devices here make it; else all in one axis, so that a pod's run loads anywhere."""
    try:
        return partition.make_mesh(config.mesh)
    except RunError:
        return partition.make_mesh()


def parameter_source(path: str) -> tuple[Checkpoints, int, ConfigDict]:
    """Finds the checkpoint that `init_from` names.

    Args:
        path: a run folder (its best checkpoint is taken) or one checkpoint in it.

    Returns:
        The checkpoints, the step, and the config it was trained with.

    Raises:
        RunError: there is none.
    """
    path = os.path.abspath(path)
    folder, last = os.path.split(path)
    if last.isdigit() and os.path.isdir(path):
        run, which = os.path.dirname(folder), last
    elif os.path.isdir(os.path.join(path, CHECKPOINTS)):
        run, which = path, "best"
    else:
        raise RunError(f"config.init_from is {path}: expected a run folder or RUN/{CHECKPOINTS}/STEP")
    config = config_lib.load(os.path.join(run, CONFIG_FILE))
    checkpoints = open_checkpoints(config, run, read_only=True)
    return checkpoints, checkpoints.pick(which), config
