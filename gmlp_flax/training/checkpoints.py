"""The checkpoints of a run, kept as its config says."""

import os
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax import tasks
from gmlp_flax.checkpoints import CHECKPOINTS
from gmlp_flax.checkpoints.checkpoint import Checkpoints
from gmlp_flax.checkpoints.retention import Retention
from gmlp_flax.config.optimizers import keeps_mean
from gmlp_flax.errors import RunError
from gmlp_flax.tasks.base import Task


def check_metric(config: ConfigDict, task: Task) -> None:
    """Raises RunError, with the metrics that the task's evaluation gives, if
    `config.checkpoint.metric` is not one of them."""
    known = list(task.eval_metrics)
    if keeps_mean(config.optimizer):
        known += [f"ema_{name}" for name in task.eval_metrics]
    metric = config.checkpoint.metric
    if metric and metric not in known:
        expected = ", ".join(known)
        raise RunError(f"config.checkpoint.metric is {metric!r}: expected one of {expected}")


def best_metric(config: ConfigDict) -> tuple[str, str]:
    """The metric by which a checkpoint is the best, and "min" or "max": the metric that the config
    names, or else the task's own, of the running mean if there is one."""
    task = tasks.find(config.task)
    chosen = config.checkpoint.metric
    name, mode = task.best
    if chosen == name:
        return name, mode
    if chosen:
        without_prefix = chosen.removeprefix("ema_")
        if without_prefix in task.lower_is_better:
            return chosen, "min"
        return chosen, "max"
    if keeps_mean(config.optimizer):
        return f"ema_{name}", mode
    return name, mode


def open_checkpoints(config: ConfigDict, workdir: str, **options: Any) -> Checkpoints:
    """The checkpoints of a run, kept by the rules of its config. The other options are those of
    `Checkpoints`."""
    metric, mode = best_metric(config)
    rules = config.checkpoint
    retention = Retention(rules.keep, rules.keep_best, metric, mode)
    folder = os.path.join(workdir, CHECKPOINTS)
    return Checkpoints(folder, retention=retention, **options)
