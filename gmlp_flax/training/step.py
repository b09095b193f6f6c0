"""The state of a run and the training step, which is one compiled program."""

import collections
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from gmlp_flax.checkpoints.pytree import leaves_by_path
from gmlp_flax.config.optimizers import keeps_mean
from gmlp_flax.errors import RunError
from gmlp_flax.models.parameters import PLAIN, ParamMetadata
from gmlp_flax.tasks.base import Batch, Sums, Task
from gmlp_flax.training import optimizer
from gmlp_flax.training.partition import OnBatch, Partition

# With config.log.norms, by layer.
NORMS: tuple[str, ...] = ("grad_norm", "update_norm", "param_norm")


class TrainState(NamedTuple):
    """A run after `step` optimizer steps.

    Attributes:
        step: int32 scalar.
        params: nested dict of parameters.
        opt_state: the state of the optimizer.
        ema: running mean of the parameters, or the optimizer's own average of them, or None.
        window: (sum, weight) of each training metric since the last line of the log. It is a part
            of the state so that a run that resumes within a window writes the same line as an
            uninterrupted run.
        level: with config.optimizer.skip_spikes, the sums of loss, gradient norm and 1 over the
            steps that were taken, each times 0.98 per step since: float32 [3]; else None.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    ema: Any
    window: Sums
    level: Any = None


class Member(NamedTuple):
    """What differs between runs that one program trains together (`training.together`).

    Attributes:
        seed: config.seed, int32 scalar.
        peak: config.optimizer.learning_rate, float32 scalar.
    """

    seed: Any
    peak: Any


class Training:
    """The programs that make and advance the state of a run. Each is compiled at its first call.

    Args:
        task: with the config of the run.
        mesh: the devices, and the config's rules.
        transformation: from gradients to updates, instead of the config's optimizer and its rate.

    Attributes:
        partition: the mesh with the model's own rules.
        optimizer: the transformation from gradients to updates.
        template: the shapes and shardings of the state, to make it and to restore it.
        init: (key, parameters or None for fresh ones) -> the state before the first step, made in
            place on the mesh.
        step: (state, batch) -> (state, the metrics of the current log window). The batch holds
            arrays [config.batch_size, ...]. The memory of the given state is reused.

    Raises:
        RunError: no model can be built from the config, or the mesh cannot split its parameters.
    """

    def __init__(
        self,
        task: Task,
        mesh: Partition,
        transformation: optax.GradientTransformation | None = None,
    ):
        try:
            shapes = task.shapes()
            metadata = task.param_metadata()
        except ValueError as error:
            raise RunError(str(error)) from None
        self.task = task
        self.partition = mesh.for_model(metadata)
        self.partition.check_parameters(shapes)
        self.has_rate = transformation is None
        self._shapes = shapes
        trained = shapes
        if transformation is None:
            transformation = self._make_optimizer()
            trained = optimizer.trained(task.config, shapes, metadata, self._heads)
        self.optimizer = transformation
        metrics = ("learning_rate",) if self.has_rate else ()

        def init(key: Any, params: Any = None) -> TrainState:
            if params is None:
                params = task.init(key)
            return init_state(task, self.optimizer, params, metrics)

        state: TrainState = jax.eval_shape(init, None, shapes)
        paths = state_paths(state, trained)
        self.template: TrainState = self.partition.describe_state(state, paths)
        state_shardings = jax.tree.map(lambda leaf: leaf.sharding, self.template)
        batch_sharding = self.partition.over_batch
        sums_sharding = self.partition.replicated
        self.init = jax.jit(init, out_shardings=state_shardings)
        self.step = jax.jit(
            self._step,
            donate_argnums=0,
            in_shardings=(state_shardings, batch_sharding),
            out_shardings=(state_shardings, sums_sharding),
        )

    @property
    def _heads(self) -> tuple[str, ...]:
        """The first parts of the paths of what LoRA trains besides its adapters."""
        inheritance = self.task.inheritance
        heads = inheritance.heads.values()
        return (*heads, *inheritance.new_params)

    def _make_optimizer(self, peak: Any = None) -> optax.GradientTransformation:
        """The config's optimizer, with another peak of the rate if one is given."""
        config = self.task.config
        metadata = self.partition.metadata
        return optimizer.make(config, self._shapes, metadata, self._heads, peak)

    def member_step(
        self, state: TrainState, batch: Batch, member: Member
    ) -> tuple[TrainState, Sums]:
        """`step` of a run with another seed and another rate than the config's, not compiled."""
        transformation = self._make_optimizer(member.peak)
        return self._update(state, batch, transformation, member)

    def _step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
        config = self.task.config
        peak = config.optimizer.learning_rate
        member = Member(config.seed, peak)
        return self._update(state, batch, self.optimizer, member)

    def _update(
        self,
        state: TrainState,
        batch: Batch,
        transformation: optax.GradientTransformation,
        member: Member,
    ) -> tuple[TrainState, Sums]:
        """One update; its random numbers depend on the seed and the step only."""
        task = self.task
        config = task.config
        chex.assert_trees_all_equal_shapes_and_dtypes(state, self.template)
        chex.assert_tree_shape_prefix(batch, (config.batch_size,))
        example_keys, batch_key = draw_keys(config, state.step, member.seed)
        batch_with_keys = batch | {"key": example_keys}
        mixed_batch = task.mix(batch_with_keys, batch_key)
        microbatches = config.optimizer.grad_accum_steps
        grads, sums = gradients(task, state.params, mixed_batch, microbatches, self.partition)
        updates, opt_state = transformation.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        ema = self._next_ema(state, opt_state, params)
        sums |= self._update_metrics(grads, updates, params)
        if self.has_rate:
            sums |= self._rate_metric(state.step, member.peak)
        new_state = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            ema=ema,
            window=sums,
            level=state.level,
        )
        spike_factor = config.optimizer.skip_spikes
        if spike_factor:
            new_state = _skip_spike(state, new_state, spike_factor)
        window = _add_to_window(state, new_state.window, config.log.every)
        new_state = new_state._replace(window=window)
        # Otherwise the next step would compile again.
        chex.assert_trees_all_equal_shapes_and_dtypes(new_state, self.template)
        return new_state, window

    def _rate_metric(self, step: jax.Array, peak: Any) -> Sums:
        config = self.task.config
        schedule = optimizer.learning_rate(config, peak)
        scheduled = schedule(step)
        rate = jnp.asarray(scheduled)
        unit_weight = jnp.ones((), jnp.float32)
        return {"learning_rate": (rate, unit_weight)}

    def _next_ema(self, state: TrainState, opt_state: Any, params: Any) -> Any:
        """The next `TrainState.ema`."""
        config = self.task.config
        if config.optimizer.ema:
            next_step = state.step + 1
            decay = ema_decay(config, next_step)
            step_size = 1 - decay
            return optax.incremental_update(params, state.ema, step_size)
        if state.ema is None:
            return None
        return optimizer.eval_params(opt_state, params)

    def _update_metrics(self, grads: Any, updates: Any, params: Any) -> Sums:
        """The metrics of an update, each with the weight 1."""
        config = self.task.config
        grad_norm = optax.tree.norm(grads)
        unit_weight = jnp.ones((), jnp.float32)
        metrics = {"grad_norm": (grad_norm, unit_weight)}
        if config.log.norms:
            trees = {"grad_norm": grads, "update_norm": updates, "param_norm": params}
            metrics |= norms(trees, self.partition.metadata)
        return metrics


def _add_to_window(state: TrainState, sums: Sums, window_steps: int) -> Sums:
    """The window after a step with these sums. `state` is the state before the step."""
    step_of_window = state.step % window_steps
    window_starts = step_of_window == 0

    def add(total: jax.Array, value: jax.Array) -> jax.Array:
        previous = jnp.where(window_starts, 0, total)
        return previous + value

    return jax.tree.map(add, state.window, sums)


def state_paths(state: TrainState, trained: Any) -> TrainState:
    """The path of the parameter that each leaf of a state belongs to, such as
    `encoder/norm/scale` for both its value and a moment of it; "" for a leaf that belongs to none.

    Args:
        state: the state or its shapes.
        trained: the tree that the optimizer updates (`optimizer.trained`).
    """
    paths = optimizer.paths_of(state.params)
    opt_paths = optimizer.parameter_paths(state.opt_state, trained)
    ema_paths = None if state.ema is None else paths  # a tree like the parameters
    empty_paths = jax.tree.map(lambda _: "", state)
    return empty_paths._replace(params=paths, opt_state=opt_paths, ema=ema_paths)


def norms(trees: Mapping[str, Any], metadata: Mapping[str, ParamMetadata]) -> Sums:
    """The norms of trees like the parameters, each with the weight 1.

    Args:
        trees: by their name in the metrics.
        metadata: of the parameters, by path. It says which have layers.

    Returns:
        The norm of each layer of an encoder, such as `NAME/encoder/3`, where `encoder` is the module
        that holds the layers; and of each module besides the layers, such as `NAME/head`.
    """
    unit_weight = jnp.ones((), jnp.float32)
    sums: Sums = {}
    for name, tree in trees.items():
        by_module = _squares_by_module(tree, metadata)
        for module, square in by_module.items():
            norm = jnp.sqrt(square)
            sums[f"{name}/{module}"] = (norm, unit_weight)
    return sums


def _squares_by_module(tree: Any, metadata: Mapping[str, ParamMetadata]) -> dict[str, Any]:
    """The sum of squares of each layer of an encoder, such as `encoder/3`, and of each module
    besides the layers."""
    by_module: dict[str, Any] = collections.defaultdict(float)
    for path, leaf in leaves_by_path(tree).items():
        precise = leaf.astype(jnp.float32)
        squares = jnp.square(precise)
        layers = metadata.get(path, PLAIN).layers
        if layers is None:
            module, _, _ = path.rpartition("/")
            name = module or path
            by_module[name] += squares.sum()
            continue
        encoder, _, _ = path.partition("/")
        count = len(leaf)
        stacked = squares.reshape(count, -1)  # [layers, ...]
        by_layer = stacked.sum(1)
        for layer, square in enumerate(by_layer, layers.first):
            by_module[f"{encoder}/{layer}"] += square
    return by_module


def _skip_spike(old: TrainState, new: TrainState, factor: float) -> TrainState:
    """The state after a step, with the old parameters, moments and mean if the step is a spike (see
    `find_spike`). The learning rate follows the number of the step. `new.window` has the sums of
    the step alone."""
    spike, level = find_spike(new.window, old.level, factor)

    def choose(old_leaf: jax.Array, new_leaf: jax.Array) -> jax.Array:
        return jnp.where(spike, old_leaf, new_leaf)

    def choose_tree(old_tree: Any, new_tree: Any) -> Any:
        return jax.tree.map(choose, old_tree, new_tree)

    skipped_opt_state = optimizer.after_skipped_step(old.opt_state, new.opt_state)
    zeros = jax.tree.map(jnp.zeros_like, new.window)
    sums = choose_tree(zeros, new.window)
    skipped_steps = spike.astype(jnp.float32)
    unit_weight = jnp.ones((), jnp.float32)
    sums["skipped"] = (skipped_steps, unit_weight)
    return TrainState(
        step=new.step,
        params=choose_tree(old.params, new.params),
        opt_state=choose_tree(skipped_opt_state, new.opt_state),
        ema=choose_tree(old.ema, new.ema),
        window=sums,
        level=level,
    )


def find_spike(sums: Sums, level: jax.Array, factor: float) -> tuple[jax.Array, jax.Array]:
    """Whether the loss or the gradient norm of a step is not finite or, after the first 20 steps,
    more than `factor` times its running mean; and the next `TrainState.level`, which spikes leave
    as it is."""
    loss_sum, weight = sums["loss"]
    grad_norm, _ = sums["grad_norm"]
    loss = loss_sum / weight
    of_step = jnp.stack([loss, grad_norm, 1.0])
    values = of_step[:2]  # loss and gradient norm
    running_sums = level[:2]
    count = level[2]
    # value > factor * (running sum / count), without the division
    scaled_values = values * count
    limits = factor * running_sums
    is_far = scaled_values > limits
    has_mean = count > 16.6  # the count after 20 steps
    finite = jnp.isfinite(of_step)
    is_finite = finite.all()
    is_high = is_far.any() & has_mean
    spike = is_high | ~is_finite
    decayed_level = 0.98 * level
    level_if_taken = decayed_level + of_step
    next_level = jnp.where(spike, level, level_if_taken)
    return spike, next_level


def ema_decay(config: ConfigDict, step: jax.Array) -> jax.Array:
    """The decay of the running mean at a step, counted from 1: min(config.optimizer.ema,
    (1 + step) / (10 + step)), as in TensorFlow and timm, so that even a short run forgets its
    initial parameters."""
    precise_step = step.astype(jnp.float32)
    rising = (1 + precise_step) / (10 + precise_step)
    return jnp.minimum(config.optimizer.ema, rising)


def draw_keys(config: ConfigDict, step: Any, seed: Any = None) -> tuple[jax.Array, jax.Array]:
    """The random keys of a training step: one per example of the batch, [batch], and one for mixing
    examples. They depend on config.seed, or on `seed` if it is given, and on `step`, the number of
    the step, from 0."""
    if seed is None:
        seed = config.seed
    run_key = jax.random.key(seed)
    step_key = jax.random.fold_in(run_key, step)
    example_key, batch_key = jax.random.split(step_key)
    example_keys = jax.random.split(example_key, config.batch_size)
    return example_keys, batch_key


def init_state(
    task: Task,
    transformation: optax.GradientTransformation,
    params: Any,
    metrics: Iterable[str] = ("learning_rate",),
) -> TrainState:
    """The state before the first step. The function can be traced. `metrics` are those besides the
    task's own and the gradient norm."""
    zero = jnp.zeros((), jnp.float32)
    config = task.config
    names = [*task.metrics, "grad_norm", *metrics]
    if config.log.norms:
        trees = dict.fromkeys(NORMS, params)
        names += norms(trees, task.param_metadata())
    level = None
    if config.optimizer.skip_spikes:
        level = jnp.zeros(3)
        names.append("skipped")
    ema = None
    if keeps_mean(config.optimizer):
        ema = jax.tree.map(jnp.copy, params)
    step = jnp.zeros((), jnp.int32)
    opt_state = transformation.init(params)
    window = dict.fromkeys(names, (zero, zero))
    return TrainState(
        step=step, params=params, opt_state=opt_state, ema=ema, window=window, level=level
    )


def gradients(
    task: Task, params: Any, batch: Batch, microbatches: int, partition: Partition
) -> tuple[Any, Sums]:
    """The gradients of the mean loss over a global batch.

    Sums over microbatches and devices come first, then one division.

    Args:
        task: its loss is a (sum, weight) over the examples given.
        params: nested dict.
        batch: arrays [examples, ...]. `key` holds one random key per example.
        microbatches: how many parts of the batch run one after another.
        partition: how the devices share the batch.

    Returns:
        The gradients, in the structure of `params`, and the (sum, weight) of each metric.
    """
    differentiate = jax.value_and_grad(task.loss, has_aux=True)

    def grads_and_sums(params: Any, batch: Batch) -> tuple[Any, Sums]:
        loss_and_sums, grads = differentiate(params, batch)
        _, sums = loss_and_sums
        return grads, sums

    of_shard: OnBatch = grads_and_sums
    if microbatches > 1:
        of_shard = _accumulate(grads_and_sums, microbatches)
    of_batch = partition.on_each_shard(of_shard)
    grad_sums, sums = of_batch(params, batch)
    chex.assert_trees_all_equal_shapes_and_dtypes(grad_sums, params)
    sums_and_weights = jax.tree.leaves(sums)
    chex.assert_rank(sums_and_weights, 0)
    _, loss_weight = sums["loss"]
    weight = jnp.maximum(loss_weight, 1e-8)

    def mean(grad_sum: jax.Array) -> jax.Array:
        return grad_sum / weight

    mean_grads = jax.tree.map(mean, grad_sums)
    return mean_grads, sums


def _accumulate(function: OnBatch, microbatches: int) -> OnBatch:
    """The function that calls `function` on one microbatch after another, and returns the sums of
    its results."""

    def accumulate(params: Any, batch: Batch) -> tuple[Any, Sums]:
        """The sum of the function's results over the microbatches of a batch."""

        def add(total: Any, part: Batch) -> tuple[Any, None]:
            result = function(params, part)
            new_total = jax.tree.map(jnp.add, total, result)
            return new_total, None

        parts = _split(batch, microbatches)
        first_part = jax.tree.map(lambda x: x[0], parts)
        result_shapes = jax.eval_shape(function, params, first_part)
        zeros = jax.tree.map(jnp.zeros_like, result_shapes)
        total, _ = jax.lax.scan(add, zeros, parts)
        return total

    return accumulate


def _split(batch: Batch, microbatches: int) -> Batch:
    """A batch as arrays [microbatches, examples, ...]. Example i goes to microbatch i mod m. So
    each device splits its own share, and nothing moves between devices."""

    def split(x: jax.Array) -> jax.Array:
        shape_of_example = x.shape[1:]
        by_microbatch = x.reshape(-1, microbatches, *shape_of_example)
        return by_microbatch.swapaxes(0, 1)

    return jax.tree.map(split, batch)
