"""Scoring parameters on the held-out data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from gmlp_flax.tasks.base import Task
from gmlp_flax.training import partition
from gmlp_flax.training.step import make_eval_step


class Evaluator:
    """Runs a task's evaluation; its program is compiled once for all evaluations of a run."""

    def __init__(self, task: Task, mesh: Mesh):
        self.task, self.mesh = task, mesh
        self._step: Callable = make_eval_step(task, mesh)

    def __call__(self, params: Any, ema: Any = None) -> dict[str, float]:
        """Metrics over all held-out examples, each counted once; those of the running mean as `ema_...` beside them."""
        metrics = self._score(params)
        if ema is not None:
            metrics |= {f"ema_{name}": value for name, value in self._score(ema).items()}
        return metrics

    def _score(self, params: Any) -> dict[str, float]:
        sums = None
        with self.task.evaluation_batches(jax.process_index(), jax.process_count()) as batches:
            for host_batch in batches:
                batch = partition.put_batch(self.mesh, host_batch)
                if sums is None:
                    shapes = jax.eval_shape(self.task.evaluate, params, batch)
                    sums = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
                sums = self._step(params, batch, sums)
        totals = {name: (float(total), float(weight)) for name, (total, weight) in jax.device_get(sums).items()}
        counted, expected = totals["examples"][1], self.task.evaluation_examples()
        if counted != expected:
            raise AssertionError(f"evaluation counted {counted:g} examples of {expected}")
        return self.task.summarize(totals)
