"""The operations and the memory of a training step, and of a generated token, for no particular machine."""

import math
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from gmlp_flax import tasks
from gmlp_flax.models import parameters, sharding
from gmlp_flax.models.flops import matmul_flops
from gmlp_flax.tasks.base import Task
from gmlp_flax.training import optimizer, step


class Workload(NamedTuple):
    """One training step.

    Attributes:
        params: number of parameters.
        param_bytes: bytes of the parameters.
        state_bytes: bytes of parameters, optimizer state and running mean.
        batch_bytes: bytes of one example.
        flops: operations in matrix products without recomputation, known as "model FLOPs": three times the
            count of the forward pass, since the backward pass has two products for each of its products. Tied logits at
            masked positions count.
        executed_flops: operations in all matrix products of the step, with recomputation.
        saved_bytes: what the forward pass of one example saves for the backward pass, under the config's remat policy.
    """

    params: int
    param_bytes: int
    state_bytes: int
    batch_bytes: int
    flops: float
    executed_flops: float
    saved_bytes: int


@sharding.portable()
def of(config: ConfigDict) -> Workload:
    """Counts the step of a config by tracing it on shapes."""
    task = tasks.find(config.task).without_data(config)
    params = task.shapes()
    transformation = optimizer.make(config, params, task.param_metadata())
    state = jax.eval_shape(lambda params: step.init_state(task, transformation, params), params)
    two, four = _mixed(task, 2), _mixed(task, 4)  # mixup mixes pairs
    forward = 2 * forward_flops(task)
    both = matmul_flops(jax.grad(task.loss, has_aux=True), params, two)
    pairs = config.batch_size / 2
    return Workload(
        params=parameters.count(params),
        param_bytes=_bytes(params),
        state_bytes=_bytes(state),
        batch_bytes=_bytes(_batch(task, 1)),
        flops=3 * forward * pairs,
        executed_flops=both * pairs,
        saved_bytes=(_saved(task, params, four) - _saved(task, params, two)) // 2,
    )


@sharding.portable()
def forward_flops(task: Task) -> float:
    """Operations in matrix products of one example's forward pass, with its loss."""
    return matmul_flops(task.loss, task.shapes(), _mixed(task, 2)) / 2


def _batch(task: Task, size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a batch of `size` examples."""
    return {name: jax.ShapeDtypeStruct((size, *shape), dtype) for name, (shape, dtype) in task.example_shapes().items()}


def _mixed(task: Task, size: int) -> Any:
    """A batch as the loss gets it: with one key per example, and with mixed images."""

    def mix(batch: Any) -> Any:
        key = jax.random.key(0)
        return task.mix(batch | {"key": jax.random.split(key, size)}, key)

    return jax.eval_shape(mix, _batch(task, size))


def _saved(task: Task, params: Any, batch: Any) -> int:
    """Bytes that the forward pass saves for the backward pass, parameters included."""

    def forward(params: Any, batch: Any) -> Any:
        return jax.vjp(lambda params: task.loss(params, batch)[0], params)[1]

    return _bytes(jax.eval_shape(forward, params, batch))


def _bytes(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
