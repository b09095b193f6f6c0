"""Scoring parameters on the held-out data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from gmlp_flax.tasks.base import Outputs, Task
from gmlp_flax.training import partition
from gmlp_flax.training.step import make_eval_step


class Evaluator:
    """Runs a task's evaluation; its program is compiled once for all evaluations of a run."""

    def __init__(self, task: Task, mesh: Mesh):
        self.task, self.mesh = task, mesh
        self._step: Callable = make_eval_step(task, mesh)

    def __call__(
        self, params: Any, ema: Any = None, alive: Callable[[], None] = lambda: None
    ) -> tuple[dict[str, float], Outputs]:
        """Scores parameters and, where there is one, their running mean; calls `alive` at each batch.

        Returns:
            Metrics over all held-out examples, each counted once, those of the mean as `ema_...` beside them; and the
            task's outputs, the mean's where there is one: numpy arrays, the leading axis the example.
        """
        metrics, outputs = self._score(params, alive)
        if ema is not None:
            of_mean, outputs = self._score(ema, alive)
            metrics |= {f"ema_{name}": value for name, value in of_mean.items()}
        return metrics, outputs

    def _score(self, params: Any, alive: Callable[[], None]) -> tuple[dict[str, float], Outputs]:
        sums, kept = None, []
        with self.task.evaluation_batches(*partition.host_share(self.mesh)) as batches:
            for host_batch in batches:
                alive()
                batch = partition.put_batch(self.mesh, host_batch)
                if sums is None:
                    shapes, _ = jax.eval_shape(self.task.evaluate, params, batch)
                    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
                    # Where the step leaves its sums: anywhere else, the second batch would compile it again.
                    sums = jax.device_put(zeros, partition.replicated(self.mesh))
                sums, outputs = self._step(params, batch, sums)
                kept.append(outputs)
        totals = {name: (float(total), float(weight)) for name, (total, weight) in jax.device_get(sums).items()}
        counted, expected = totals["examples"][1], self.task.evaluation_examples()
        if counted != expected:
            raise AssertionError(f"evaluation counted {counted:g} examples of {expected}")
        outputs = _in_order(kept)
        return self.task.summarize(totals, outputs), outputs


def _in_order(kept: list[Outputs]) -> Outputs:
    """The outputs of all batches, one row an example, by "index"; without padding."""
    if not kept[0]:
        return {}
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *map(partition.gather, kept))
    real = np.flatnonzero(whole.pop("weight"))
    order = real[np.argsort(whole["index"][real], kind="stable")]
    return {name: values[order] for name, values in whole.items()}
