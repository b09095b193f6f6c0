"""Scores parameters on the held-out data."""

from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import numpy as np
from jax.experimental import multihost_utils

from gmlp_flax.tasks.base import Baseline, Batch, Outputs, Sums, Task, Totals
from gmlp_flax.tasks.data.base import TaskData
from gmlp_flax.training.partition import Partition


class Evaluator:
    """Runs a task's evaluation on its held-out data.

    Attributes:
        step: (params, batch) -> (the batch's sums, the task's outputs), compiled once for all
            evaluations of a run. If there are outputs, they include "index", the number of each
            row's example, and "weight", which is 0 for padding: arrays [batch].
    """

    def __init__(self, task: Task, data: TaskData, partition: Partition):
        self.task = task
        self.data = data
        self.partition = partition
        self.step = jax.jit(
            self._step,
            in_shardings=(None, partition.over_batch),  # None: the parameters stay where they are
            out_shardings=(partition.replicated, partition.over_batch),
        )
        self._totals: Totals = {}

    def __call__(
        self,
        params: Any,
        ema: Any = None,
        after_batch: Callable[[jax.Array], None] = lambda _: None,
    ) -> tuple[dict[str, float], Outputs]:
        """Scores parameters and, if there is one, their running mean.

        Args:
            params: the parameters.
            ema: their running mean, or None.
            after_batch: called with a sum of each batch, which may not be computed yet. If it
                raises, the evaluation ends.

        Returns:
            The metrics over all held-out examples, each counted once; metrics of the running mean
            are named `ema_...`. And the task's outputs, of the running mean if there is one: numpy
            arrays [examples, ...].
        """
        metrics, outputs = self._score(params, after_batch)
        if ema is not None:
            mean_metrics, outputs = self._score(ema, after_batch)
            for name, value in mean_metrics.items():
                metrics[f"ema_{name}"] = value
        return metrics, outputs

    def baselines(self) -> list[Baseline]:
        """What trivial models score on the data of the last evaluation."""
        return self.task.baselines(self._totals, self.data)

    def _step(self, params: Any, batch: Batch) -> tuple[Sums, dict[str, jax.Array]]:
        weight = batch["weight"]
        chex.assert_rank(weight, 1)
        chex.assert_tree_shape_prefix(batch, weight.shape)
        with self.partition.around():
            sums, outputs = self.task.evaluate(params, batch)
        chex.assert_tree_shape_prefix(outputs, weight.shape)
        if outputs:
            index = batch["index"]
            outputs = outputs | {"index": index, "weight": weight}
        return sums, outputs

    def _score(
        self, params: Any, after_batch: Callable[[jax.Array], None]
    ) -> tuple[dict[str, float], Outputs]:
        """The metrics of parameters, and the task's outputs in order."""
        sums, batch_outputs = self._run(params, after_batch)
        self._totals = _totals(sums)
        _, counted = self._totals["examples"]
        expected = self.data.evaluation_examples()
        if counted != expected:
            raise AssertionError(f"evaluation counted {counted:.17g} examples of {expected}")
        gathered = _gather_in_order(batch_outputs)
        metrics = self.task.summarize(self._totals, gathered, self.data)
        return metrics, gathered

    def _run(
        self, params: Any, after_batch: Callable[[jax.Array], None]
    ) -> tuple[dict[str, Any], list[Outputs]]:
        """The sums over all batches, on the host, and the outputs of each batch.

        The sums of a batch are read while the next one runs: the device never waits, the host never
        runs ahead.
        """
        sums: Any = None
        pending: Any = None
        batch_outputs = []
        host, hosts = self.partition.host_share()
        shares = self.partition.batch_shares
        with self.data.evaluation_batches(host, hosts, shares) as batches:
            for host_batch in batches:
                batch = self.partition.put_batch(host_batch)
                batch_sums, outputs = self.step(params, batch)
                sums = _add(sums, pending)
                pending = batch_sums
                batch_outputs.append(outputs)
                _, examples = batch_sums["examples"]
                after_batch(examples)
        sums = _add(sums, pending)
        return sums or {}, batch_outputs


def _add(sums: Any, batch_sums: Any) -> Any:
    """The sum of both, on the host, in float64: a float32 would not count beyond 2^24. None stands
    for no sums."""
    if batch_sums is None:
        return sums

    def as_float64(x: Any) -> np.ndarray:
        return np.asarray(x, np.float64)

    on_host = jax.device_get(batch_sums)
    precise = jax.tree.map(as_float64, on_host)
    if sums is None:
        return precise
    return jax.tree.map(np.add, sums, precise)


def _totals(sums: Mapping[str, Any]) -> Totals:
    """The (sum, weight) of each metric, as Python floats unless the sum is an array."""
    totals: Totals = {}
    for name, (total, weight) in sums.items():
        is_number = np.ndim(total) == 0
        if is_number:
            total = float(total)
        totals[name] = (total, float(weight))
    return totals


def _gather_in_order(batch_outputs: list[Outputs]) -> Outputs:
    """The outputs of all batches in the order of "index", without padding, on every host: arrays
    [examples, ...]."""
    first_outputs = batch_outputs[0]
    if not first_outputs:
        return {}

    def join(*parts: np.ndarray) -> np.ndarray:
        return np.concatenate(parts)

    gathered = []
    for outputs in batch_outputs:
        of_all_hosts = multihost_utils.process_allgather(outputs, tiled=True)
        gathered.append(of_all_hosts)
    joined = jax.tree.map(join, *gathered)
    weight = joined.pop("weight")
    rows = np.flatnonzero(weight)  # without padding
    index = joined["index"][rows]
    by_index = np.argsort(index, kind="stable")
    order = rows[by_index]
    return {name: values[order] for name, values in joined.items()}
