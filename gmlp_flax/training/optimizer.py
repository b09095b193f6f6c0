"""The optimizer of a run: a row of `config.optimizers` with a schedule, clipping, weight decay of
the parameters that the model marks, learning-rate multipliers, frozen parameters, and LoRA (Hu et
al. 2021, arXiv 2106.09685).

With LoRA a kernel is W0 + alpha / rank * A B. The parameters of a run stay W, its value, so that it
is evaluated, saved and exported like any other; A and B are in the state of the optimizer, which
has moments of them alone. The gradient of the loss by A is alpha / rank * G B^T, and by B it is
alpha / rank * A^T G, where G is that by W.
"""

import functools
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax.checkpoints.pytree import leaves_by_path, path_name
from gmlp_flax.config import optimizers, validation
from gmlp_flax.errors import RunError
from gmlp_flax.models.encoder import STACKED, depths
from gmlp_flax.models.parameters import ParamMetadata


def learning_rate(config: ConfigDict) -> optax.Schedule:
    """The learning rate over steps: linear warmup from peak / warmup to the peak; then cosine or
    linear decay that would reach 0 one step after the last, a constant rate, one with a linear
    decay in the last steps (wsd, as in MiniCPM, arXiv 2404.06395), or a decay with 1 / sqrt(step),
    whatever the number of steps (Vaswani et al. 2017, section 5.3)."""
    peak, warmup = config.optimizer.learning_rate, config.optimizer.warmup
    if config.optimizer.schedule != "rsqrt":
        warmup = min(warmup, config.steps)
    decay_steps = max(config.steps - warmup, 1)
    last_steps = min(max(round(config.optimizer.decay_share * config.steps), 1), decay_steps)
    after = {
        "cosine": optax.cosine_decay_schedule(peak, decay_steps),
        "linear": optax.linear_schedule(peak, 0.0, decay_steps),
        "constant": optax.constant_schedule(peak),
        "wsd": optax.linear_schedule(peak, 0.0, last_steps, decay_steps - last_steps),
        "rsqrt": lambda since: (
            peak * jax.lax.rsqrt(1 + jnp.asarray(since, jnp.float32) / max(warmup, 1))
        ),
    }[config.optimizer.schedule]
    if warmup == 0:
        return after
    # The first step uses peak / warmup: a rate of 0 would change nothing.
    ramp = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([ramp, after], [warmup])


def factors(params: Any, lines: Iterable[str]) -> dict[str, Any]:
    """The factors on the learning rate: for each parameter that of the first of `lines` that
    matches its path, or 1.

    Args:
        params: the parameters or their shapes.
        lines: config.optimizer.lr_multipliers.

    Returns:
        By path, a number, or an array that spreads over the axes of the parameter: [layers, 1, ...]
        if the factor grows with depth.

    Raises:
        RunError: a line matches no parameter, or asks depth of one that has no layers.
    """
    multipliers = validation.lr_multipliers(lines)
    by_path, used = {}, set()
    leaves = leaves_by_path(params)
    depth = depths(leaves)
    for name, leaf in leaves.items():
        matching = (multiplier for multiplier in multipliers if re.search(multiplier.pattern, name))
        multiplier = next(matching, validation.Multiplier("", 1.0, 1.0))
        used.add(multiplier)
        by_path[name] = multiplier.first
        if multiplier.first == multiplier.last:
            continue
        if name not in depth:
            raise RunError(
                f"config.optimizer.lr_multipliers: {multiplier.pattern!r} matches {name}, which has no layers: give "
                "one factor"
            )
        first, layers = depth[name]
        by_layer = np.geomspace(multiplier.first, multiplier.last, layers, dtype=np.float32)
        own = by_layer[first : first + leaf.shape[0]]
        by_path[name] = own.reshape(-1, *[1] * (len(leaf.shape) - 1))
    if unused := [multiplier.pattern for multiplier in multipliers if multiplier not in used]:
        example = next(iter(by_path))
        raise RunError(
            f"config.optimizer.lr_multipliers: {unused[0]!r} matches no parameter left, e.g. {example}"
        )
    return by_path


def decay_mask(params: Any, metadata: Mapping[str, ParamMetadata], decay_all: bool = False) -> Any:
    """A tree of booleans: which parameters weight decay changes, by what the model says of them; or
    all."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: decay_all or metadata.get(path_name(path), ParamMetadata()).decayed, params
    )


def eval_params(opt_state: Any, params: Any) -> Any:
    """The parameters that a schedule-free optimizer evaluates; frozen ones as they are."""

    def is_state(node: Any) -> bool:
        return isinstance(node, optax.contrib.ScheduleFreeState)

    def average(y: Any, z: Any) -> Any:
        frozen = isinstance(z, optax.MaskedNode)
        return y if frozen else optax.contrib.schedule_free_eval_params(state._replace(z=z), y)

    (state,) = filter(is_state, jax.tree.leaves(opt_state, is_leaf=is_state))
    return jax.tree.map(average, params, state.z)


def make(
    config: ConfigDict,
    params: Any,
    metadata: Mapping[str, ParamMetadata],
    heads: tuple[str, ...] = (),
) -> optax.GradientTransformation:
    """The transformation from gradients to updates.

    Args:
        config: of the run.
        params: the parameters or their shapes.
        metadata: what the model says of its parameters (`Task.param_metadata`).
        heads: with config.optimizer.lora_rank, how the paths begin of what is trained beside the
            adapters.

    Raises:
        RunError: a pattern of config.optimizer.freeze or lr_multipliers does not fit the
            parameters, or none of them can have a LoRA.
    """
    if not (rank := config.optimizer.lora_rank):
        return _make(config, params, metadata)
    if not (kernels := lora_kernels(params, metadata)):
        raise RunError(
            f"config.optimizer.lora_rank is {rank}: {config.model.block} has no channel projections; give 0"
        )
    alpha = config.optimizer.lora_alpha or float(rank)
    transformation = with_lora(
        functools.partial(_make, config, metadata=metadata),
        kernels,
        heads,
        rank=rank,
        alpha=alpha,
        seed=config.seed,
    )
    jax.eval_shape(transformation.init, params)  # names patterns that do not fit
    return transformation


def _make(
    config: ConfigDict, params: Any, metadata: Mapping[str, ParamMetadata]
) -> optax.GradientTransformation:
    """`make` without LoRA."""
    options, rate, chosen = (
        config.optimizer,
        learning_rate(config),
        optimizers.find(config.optimizer.name),
    )
    by_path = factors(params, options.lr_multipliers)

    def scale(path: tuple, update: Any) -> Any:
        return update * by_path[path_name(path)]

    scaled = optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(scale, updates))
    transformation = optax.chain(
        # The state has the same names either way, so a run can resume with another clip.
        optax.clip_by_global_norm(options.clip) if options.clip else optax.identity(),
        chosen.make(
            rate,
            options,
            functools.partial(decay_mask, metadata=metadata, decay_all=options.decay_all),
        ),
        scaled if options.lr_multipliers else optax.identity(),
    )
    if chosen.averages:  # of the scaled updates
        transformation = optax.contrib.schedule_free(transformation, rate, options.b1)
    if not options.freeze:
        return transformation
    names = [*leaves_by_path(params)]
    for pattern in options.freeze:
        if not any(re.search(pattern, name) for name in names):
            raise RunError(
                f"config.optimizer.freeze: {pattern!r} matches no parameter, e.g. {names[0]}"
            )

    def label(path: tuple, _: Any) -> str:
        return (
            "frozen"
            if any(re.search(pattern, path_name(path)) for pattern in options.freeze)
            else "trained"
        )

    labels = jax.tree_util.tree_map_with_path(label, params)
    return optax.multi_transform({"trained": transformation, "frozen": optax.set_to_zero()}, labels)


class LoraState(NamedTuple):
    """`adapters`: flat dict of A, [layers, inputs, rank], and B, [layers, rank, outputs], as
    `kernel/a` and `kernel/b` behind the path; `inner`: the state of the optimizer that trains them,
    and the heads."""

    adapters: dict[str, jax.Array]
    inner: Any


def lora_kernels(shapes: Any, metadata: Mapping[str, ParamMetadata]) -> list[str]:
    """The paths of the kernels that get a rank: the channel projections of the encoder, [layers,
    inputs, outputs]. What mixes tokens is no channel projection: its shape depends on their
    number."""
    return [
        name
        for name, leaf in leaves_by_path(shapes).items()
        if name.startswith(STACKED)
        and name.endswith("/kernel")
        and leaf.ndim == 3
        and not metadata[name].resize
    ]


def with_lora(
    make: Callable[[Any], optax.GradientTransformation],
    kernels: list[str],
    heads: tuple[str, ...],
    *,
    rank: int,
    alpha: float,
    seed: int,
) -> optax.GradientTransformation:
    """Trains A and B of each kernel, and the parameters whose paths begin with one of `heads`; all
    others keep their values.

    Args:
        make: makes the optimizer of the trees that are trained, from their shapes.
        kernels: paths, as of `lora_kernels`.
        rank: of A B, the size between inputs and outputs.
        alpha: A B counts alpha / rank times.
        seed: of A, which is normal with standard deviation 1 / sqrt(inputs); B is 0.
    """
    factor = alpha / rank

    def adapters_of(params: Any) -> dict[str, jax.Array]:
        leaves, adapters = leaves_by_path(params), {}
        for name in kernels:
            layers, inputs, outputs = leaves[name].shape
            key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
            adapters[f"{name}/a"] = jax.random.normal(key, (layers, inputs, rank)) / inputs**0.5
            adapters[f"{name}/b"] = jnp.zeros((layers, rank, outputs))
        return adapters

    def trainable(adapters: Mapping[str, Any], tree: Any) -> Any:
        """What the inner optimizer sees: the adapters, and the heads of a tree of parameters or
        gradients."""
        own = (
            {name: leaf for name, leaf in leaves_by_path(tree).items() if name.startswith(heads)}
            if heads
            else {}
        )
        return traverse_util.unflatten_dict({**adapters, **own}, sep="/")

    def init(params: Any) -> LoraState:
        adapters = adapters_of(params)
        tree = trainable(adapters, params)
        return LoraState(adapters, make(jax.eval_shape(lambda: tree)).init(tree))

    def update(grads: Any, state: LoraState, params: Any) -> tuple[Any, LoraState]:
        """As optax's: the adapters' own updates, and what they change in the kernels."""
        old, flat, by_factor = state.adapters, leaves_by_path(grads), {}
        for name in kernels:
            by_factor[f"{name}/a"] = factor * flat[name] @ old[f"{name}/b"].mT
            by_factor[f"{name}/b"] = factor * old[f"{name}/a"].mT @ flat[name]
        tree = trainable(old, params)
        updates, inner = make(jax.eval_shape(lambda: tree)).update(
            trainable(by_factor, grads), state.inner, tree
        )
        moved: dict[str, Any] = traverse_util.flatten_dict(updates, sep="/")
        new = {name: leaf + moved[name] for name, leaf in old.items()}
        for name in kernels:
            before, after = (at[f"{name}/a"] @ at[f"{name}/b"] for at in (old, new))
            moved[name] = factor * (after - before)
        merged = {name: moved.get(name, jnp.zeros_like(leaf)) for name, leaf in flat.items()}
        return traverse_util.unflatten_dict(merged, sep="/"), LoraState(new, inner)

    return optax.GradientTransformation(init, update)  # type: ignore[reportArgumentType]  # it needs the parameters
