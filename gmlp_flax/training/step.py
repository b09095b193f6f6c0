"""The training step and the evaluation step, each one compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from gmlp_flax.tasks.base import Outputs, Task
from gmlp_flax.training import partition, schedule
from gmlp_flax.training.state import Sums, TrainState

Batch = dict[str, jax.Array]


def init_state(task: Task, optimizer: optax.GradientTransformation, config: ConfigDict, params: Any) -> TrainState:
    """The state before the first step; traceable, so that it can be made in place on any mesh."""
    zero = jnp.zeros((), jnp.float32)
    window = {name: (zero, zero) for name in (*task.metrics, "grad_norm", "learning_rate")}
    mean = jax.tree.map(jnp.copy, params) if config.optimizer.ema else None
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), mean, window)


def describe_state(task: Task, optimizer: optax.GradientTransformation, config: ConfigDict, mesh: Mesh) -> TrainState:
    """Shapes of the state with their shardings: where it is made, restored and kept."""
    shapes = jax.eval_shape(lambda params: init_state(task, optimizer, config, params), task.shapes())
    return partition.describe(shapes, mesh, partition.parse_rules(config.mesh.rules))


def gradients(task: Task, params: Any, batch: Batch, microbatches: int, mesh: Mesh) -> tuple[Any, Sums]:
    """Gradients of the mean loss over a global batch: sums over microbatches and devices before the one division.

    Args:
        task: whose loss is (sum, weight) over the examples given.
        params: nested dict.
        batch: leading axis is the example; `key` holds one random key an example.
        microbatches: the batch is cut into this many, which are run one after another.
        mesh: the devices.

    Returns:
        The gradients and the metrics' (sum, weight).
    """
    differentiate = jax.value_and_grad(task.loss, has_aux=True)

    def one(params: Any, batch: Batch) -> tuple[Any, Sums]:
        (_, sums), grads = differentiate(params, batch)
        return grads, sums

    def accumulated(params: Any, batch: Batch) -> tuple[Any, Sums]:
        # Example i goes to microbatch i mod m: each device cuts its own share, and nothing moves between devices.
        cut = jax.tree.map(lambda x: x.reshape(-1, microbatches, *x.shape[1:]).swapaxes(0, 1), batch)
        zero = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(one, params, jax.tree.map(lambda x: x[0], cut))
        )
        return jax.lax.scan(lambda total, part: (jax.tree.map(jnp.add, total, one(params, part)), None), zero, cut)[0]

    grads, sums = partition.on_each_share(one if microbatches == 1 else accumulated, mesh)(params, batch)
    weight = jnp.maximum(sums["loss"][1], 1e-8)
    return jax.tree.map(lambda g: g / weight, grads), sums


def make_train_step(
    task: Task, optimizer: optax.GradientTransformation, mesh: Mesh, config: ConfigDict
) -> Callable[[TrainState, Batch], tuple[TrainState, Sums]]:
    """Compiles (state, batch) -> (state, the metrics of the current log window). The state given is donated."""
    rate = schedule.learning_rate(config)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
        """One update from a global batch, leading axis the example."""
        key = jax.random.fold_in(jax.random.key(config.seed), state.step)
        example_key, batch_key = jax.random.split(key)
        size = jax.tree.leaves(batch)[0].shape[0]
        batch = task.mix(batch | {"key": jax.random.split(example_key, size)}, batch_key)
        grads, sums = gradients(task, state.params, batch, config.optimizer.accumulate, mesh)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        mean = state.ema if state.ema is None else optax.incremental_update(params, state.ema, 1 - config.optimizer.ema)
        one = jnp.ones((), jnp.float32)
        sums = sums | {"grad_norm": (optax.tree.norm(grads), one), "learning_rate": (rate(state.step), one)}
        fresh = state.step % config.log.every == 0
        window = jax.tree.map(lambda old, new: jnp.where(fresh, 0, old) + new, state.window, sums)
        state = TrainState(state.step + 1, params, opt_state, mean, window)
        return state, window

    kept = jax.tree.map(lambda x: x.sharding, describe_state(task, optimizer, config, mesh))
    return jax.jit(
        step, donate_argnums=0, in_shardings=(kept, partition.over_batch(mesh)),
        out_shardings=(kept, partition.replicated(mesh)),
    )


def make_eval_step(task: Task, mesh: Mesh) -> Callable[[Any, Batch, Sums], tuple[Sums, Outputs]]:
    """Compiles (params, batch, sums so far) -> sums and the task's outputs, of which "index" and "weight" tell which
    example each row is, and whether it is padding (weight 0)."""

    def step(params: Any, batch: Batch, sums: Sums) -> tuple[Sums, Outputs]:
        found, outputs = task.evaluate(params, batch)
        if outputs:
            outputs = outputs | {name: batch[name] for name in ("index", "weight")}
        return jax.tree.map(jnp.add, sums, found), outputs

    sharded, replicated = partition.over_batch(mesh), partition.replicated(mesh)
    # Parameters stay as they lie.
    given, found = (None, sharded, replicated), (replicated, sharded)
    return jax.jit(step, donate_argnums=2, in_shardings=given, out_shardings=found)
