"""The optimizer of a run: a row of `config.optimizers` with a schedule, clipping, weight decay of
the parameters that the model marks, learning-rate multipliers, frozen parameters, and LoRA
(`training/lora.py`)."""

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from ml_collections import ConfigDict

from gmlp_flax.checkpoints.pytree import leaves_by_path, path_name
from gmlp_flax.config import optimizers, validation
from gmlp_flax.errors import RunError
from gmlp_flax.models.parameters import PLAIN, ParamMetadata
from gmlp_flax.training.lora import make_lora
from gmlp_flax.training.partition import Metadata


def learning_rate(config: ConfigDict, peak: Any = None) -> optax.Schedule:
    """The learning rate over steps: linear warmup from peak / warmup to the peak; then cosine or
    linear decay that would reach 0 one step after the last, a constant rate, one with a linear
    decay in the last steps (wsd, as in MiniCPM, arXiv 2404.06395), or a decay with 1 / sqrt(step),
    whatever the number of steps (Vaswani et al. 2017, section 5.3).

    Args:
        config: of the run.
        peak: instead of config.optimizer.learning_rate; it may be traced.
    """
    if peak is None:
        peak = config.optimizer.learning_rate
    warmup = config.optimizer.warmup
    if config.optimizer.schedule != "rsqrt":
        warmup = min(warmup, config.steps)
    decay = _after_warmup(config, warmup, peak)
    if warmup == 0:
        return decay
    # The first step uses peak / warmup: a rate of 0 would change nothing.
    steps_to_peak = max(warmup - 1, 1)
    ramp = optax.linear_schedule(peak / warmup, peak, steps_to_peak)
    return optax.join_schedules([ramp, decay], [warmup])


def _after_warmup(config: ConfigDict, warmup: int, peak: Any) -> optax.Schedule:
    """The learning rate from the peak on; it counts steps from 0."""
    options = config.optimizer
    steps = max(config.steps - warmup, 1)
    match options.schedule:
        case "cosine":
            return optax.cosine_decay_schedule(peak, steps)
        case "linear":
            return optax.linear_schedule(peak, 0.0, steps)
        case "constant":
            return optax.constant_schedule(peak)
        case "wsd":
            share_of_steps = round(options.decay_share * config.steps)
            at_least_one = max(share_of_steps, 1)
            decay_steps = min(at_least_one, steps)
            constant_steps = steps - decay_steps
            return optax.linear_schedule(peak, 0.0, decay_steps, constant_steps)
        case _:
            warmup_steps = max(warmup, 1)
            return _rsqrt(peak, warmup_steps)


def _rsqrt(peak: Any, warmup: int) -> optax.Schedule:
    """A decay with 1 / sqrt(step) from the peak, which is at the end of the warmup."""

    def rate(step: Any) -> jax.Array:
        precise_step = jnp.asarray(step, jnp.float32)
        warmups = precise_step / warmup
        decay = jax.lax.rsqrt(1 + warmups)
        return peak * decay

    return rate


def factors(params: Any, lines: Iterable[str], metadata: Metadata) -> dict[str, Any]:
    """The factor on the learning rate of each parameter: that of the first of `lines` that matches
    its path, or 1.

    Args:
        params: the parameters or their shapes.
        lines: config.optimizer.lr_multipliers.
        metadata: says which parameters have layers.

    Returns:
        By path, a number, or an array that spreads over the axes of the parameter: [layers, 1, ...]
        if the factor grows with depth.

    Raises:
        RunError: a line matches no parameter, or its factor grows with depth and it matches a
            parameter that has no layers.
    """
    multipliers = validation.lr_multipliers(lines)
    used = set()
    by_path = {}
    for path, leaf in leaves_by_path(params).items():
        multiplier = _first_match(multipliers, path)
        used.add(multiplier)
        if multiplier is None:
            by_path[path] = 1.0
        else:
            by_path[path] = _factor(multiplier, path, leaf, metadata)
    unused = [multiplier for multiplier in multipliers if multiplier not in used]
    if unused:
        pattern = unused[0].pattern
        example = next(iter(by_path))
        raise RunError(
            f"config.optimizer.lr_multipliers: {pattern!r} matches no parameter left, e.g. {example}"
        )
    return by_path


def _first_match(
    multipliers: Iterable[validation.Multiplier], path: str
) -> validation.Multiplier | None:
    for multiplier in multipliers:
        if re.search(multiplier.pattern, path):
            return multiplier
    return None


def _factor(
    multiplier: validation.Multiplier, path: str, leaf: Any, metadata: Metadata
) -> float | np.ndarray:
    """One number or, if the factor grows with depth, an array [layers, 1, ...]."""
    if multiplier.first == multiplier.last:
        return multiplier.first
    layers = metadata.get(path, PLAIN).layers
    if layers is None:
        raise RunError(
            f"config.optimizer.lr_multipliers: {multiplier.pattern!r} matches {path}, which has no "
            "layers: give one factor"
        )
    by_layer = np.geomspace(multiplier.first, multiplier.last, layers.total, dtype=np.float32)
    first = layers.first
    stop = first + leaf.shape[0]
    stacked = by_layer[first:stop]
    other_axes = (1,) * (leaf.ndim - 1)
    return stacked.reshape(-1, *other_axes)


def masks(metadata: Metadata, decay_all: bool = False) -> optimizers.Masks:
    """What the model says about its parameters, for the optimizers. With `decay_all`, weight decay
    applies to all of them."""

    def metadata_at(path: tuple) -> ParamMetadata:
        name = path_name(path)
        return metadata.get(name, PLAIN)

    def decayed(path: tuple, _: Any) -> bool:
        return decay_all or metadata_at(path).decayed

    def stacked(path: tuple, _: Any) -> bool:
        return metadata_at(path).layers is not None

    def matrix(path: tuple, leaf: Any) -> bool:
        parameter = metadata_at(path)
        has_layers = parameter.layers is not None
        is_matrix_of_layer = has_layers and leaf.ndim == 3
        return is_matrix_of_layer and parameter.decayed

    map_with_path = jax.tree_util.tree_map_with_path
    return optimizers.Masks(
        decayed=functools.partial(map_with_path, decayed),
        stacked=functools.partial(map_with_path, stacked),
        matrices=functools.partial(map_with_path, matrix),
    )


def parameter_paths(opt_state: Any, params: Any) -> Any:
    """The path of the parameter that each leaf of an optimizer's state belongs to.

    optax keeps what it knows of each parameter, such as a moment, in a tree of the structure of the
    parameters, in which a parameter that is left out is an `optax.MaskedNode`.

    Args:
        opt_state: the state, or its shapes.
        params: the tree that the optimizer updates, or its shapes (see `trained`).

    Returns:
        A tree like the state of strings, "" for a leaf that belongs to no parameter.
    """
    structure = jax.tree.structure(params)
    paths = paths_of(params)

    def is_like_params(node: Any) -> bool:
        structure_of_node = jax.tree.structure(node, is_leaf=_is_masked)
        return structure_of_node == structure

    def name(node: Any) -> Any:
        if not is_like_params(node):
            return ""
        return jax.tree.map(_keep_masked, node, paths, is_leaf=_is_masked)

    return jax.tree.map(name, opt_state, is_leaf=is_like_params)


def paths_of(params: Any) -> Any:
    """A tree like the parameters of their paths, such as `encoder/norm/scale`."""

    def name(path: tuple, _: Any) -> str:
        return path_name(path)

    return jax.tree_util.tree_map_with_path(name, params)


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


def _keep_masked(node: Any, path: str) -> Any:
    return node if _is_masked(node) else path


def eval_params(opt_state: Any, params: Any) -> Any:
    """The parameters that a schedule-free optimizer evaluates; frozen ones as they are."""

    def is_state(node: Any) -> bool:
        return isinstance(node, optax.contrib.ScheduleFreeState)

    leaves = jax.tree.leaves(opt_state, is_leaf=is_state)
    (state,) = filter(is_state, leaves)

    def average(y: Any, z: Any) -> Any:
        if _is_masked(z):
            return y
        state_of_parameter = state._replace(z=z)
        return optax.contrib.schedule_free_eval_params(state_of_parameter, y)

    return jax.tree.map(average, params, state.z)


# The counts of steps that schedules read, in the states that have them.
SCHEDULE_FIELDS: dict[type, tuple[str, ...]] = {
    optax.ScaleByScheduleState: ("count",),
    optax.InjectStatefulHyperparamsState: ("count", "hyperparams", "hyperparams_states"),
    optax.contrib.ScheduleFreeState: ("step_count",),
}


def after_skipped_step(before: Any, after: Any) -> Any:
    """The state of an optimizer after a step that is left out.

    Args:
        before: the state before the step.
        after: the state after it, had it been taken.

    Returns:
        `before`, except for what schedules read: rates depend on the number of the step, whether
        or not the steps before it were left out.
    """

    def is_scheduled(node: Any) -> bool:
        return type(node) in SCHEDULE_FIELDS

    def merge(old: Any, new: Any) -> Any:
        """The old state, with the new count of a schedule."""
        if not is_scheduled(old):
            return old
        kind = type(old)
        of_schedule = SCHEDULE_FIELDS[kind]
        fields = {}
        for name, old_value in old._asdict().items():
            new_value = getattr(new, name)
            if name in of_schedule:
                fields[name] = new_value
            else:
                fields[name] = after_skipped_step(old_value, new_value)
        return kind(**fields)

    return jax.tree.map(merge, before, after, is_leaf=is_scheduled)


def make(
    config: ConfigDict,
    params: Any,
    metadata: Metadata,
    heads: tuple[str, ...] = (),
    peak: Any = None,
) -> optax.GradientTransformation:
    """The transformation from gradients to updates.

    Args:
        config: of the run.
        params: the parameters or their shapes.
        metadata: what the model says of its parameters.
        heads: with config.optimizer.lora_rank, the first parts of the paths of what is trained
            besides the adapters.
        peak: of the learning rate, instead of the config's; it may be traced.

    Raises:
        RunError: a pattern of config.optimizer.freeze or lr_multipliers does not fit the
            parameters, or none of them can have a LoRA.
    """
    lora = make_lora(config, params, metadata, heads)
    if lora is None:
        return _make(config, params, metadata, peak)
    of_adapters = lora.metadata(metadata)
    with_adapters = {**metadata, **of_adapters}
    make_inner = functools.partial(_make, config, metadata=with_adapters, peak=peak)
    transformation = lora.transformation(make_inner)
    jax.eval_shape(transformation.init, params)  # raises if a pattern does not fit
    return transformation


def trained(
    config: ConfigDict, params: Any, metadata: Metadata, heads: tuple[str, ...] = ()
) -> Any:
    """The shapes of the tree that the optimizer of `make` updates: the parameters or, with LoRA,
    the adapters and the heads. The arguments are those of `make`."""
    lora = make_lora(config, params, metadata, heads)
    if lora is None:
        return params

    def adapters_and_heads(params: Any) -> Any:
        adapters = lora.adapters(params)
        return lora.trained(adapters, params)

    return jax.eval_shape(adapters_and_heads, params)


def _make(
    config: ConfigDict, params: Any, metadata: Metadata, peak: Any
) -> optax.GradientTransformation:
    """`make` without LoRA."""
    options = config.optimizer
    rate = learning_rate(config, peak)
    optimizer = optimizers.find(options.name)
    by_path = factors(params, options.lr_multipliers, metadata)
    # The state has the same names with and without clipping and multipliers, so a run can resume
    # with others.
    clip = optax.identity()
    if options.clip:
        clip = optax.clip_by_global_norm(options.clip)
    multiply = optax.identity()
    if options.lr_multipliers:
        multiply = _multiply(by_path)
    parameter_masks = masks(metadata, options.decay_all)
    update = optimizer.make(rate, options, parameter_masks)
    transformation = optax.chain(clip, update, multiply)
    if optimizer.averages:
        transformation = _average(transformation, rate, options.b1)
    if options.freeze:
        transformation = _freeze(transformation, params, options.freeze)
    return transformation


def _average(
    transformation: optax.GradientTransformation, rate: optax.Schedule, b1: float
) -> optax.GradientTransformation:
    """Keeps the schedule-free average of what the updates make of the parameters."""

    def weight(count: Any) -> Any:
        step = count - 1  # optax counts the steps of weights from 1, and those of schedules from 0
        return rate(step)

    return optax.contrib.schedule_free(transformation, weight, b1)


def _multiply(by_path: Mapping[str, Any]) -> Any:
    """Multiplies each update by a factor, by path."""

    def multiply(path: tuple, update: Any) -> Any:
        name = path_name(path)
        factor = by_path[name]
        return update * factor

    def multiply_all(updates: Any, _: Any) -> Any:
        return jax.tree_util.tree_map_with_path(multiply, updates)

    return optax.stateless(multiply_all)


def _freeze(
    transformation: optax.GradientTransformation, params: Any, patterns: Iterable[str]
) -> optax.GradientTransformation:
    """Freezes the parameters whose paths match one of the patterns. Raises RunError at a pattern
    that matches none."""
    names = list(leaves_by_path(params))
    for pattern in patterns:
        matches_any = any(re.search(pattern, name) for name in names)
        if not matches_any:
            raise RunError(
                f"config.optimizer.freeze: {pattern!r} matches no parameter, e.g. {names[0]}"
            )

    def label(path: tuple, _: Any) -> str:
        name = path_name(path)
        is_frozen = any(re.search(pattern, name) for pattern in patterns)
        return "frozen" if is_frozen else "trained"

    labels = jax.tree_util.tree_map_with_path(label, params)
    frozen = optax.set_to_zero()
    return optax.multi_transform({"trained": transformation, "frozen": frozen}, labels)
