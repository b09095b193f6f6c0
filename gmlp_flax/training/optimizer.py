"""The optimizer of a run: a row of `config.optimizers` with a schedule, clipping, weight decay of the parameters that
the model marks, learning-rate multipliers, and frozen parameters."""

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

from gmlp_flax.checkpoints.pytree import path_name
from gmlp_flax.config import optimizers, parsing
from gmlp_flax.errors import RunError
from gmlp_flax.models.encoder import STACKED, depths
from gmlp_flax.models.parameters import ParamMetadata
from gmlp_flax.training import lora


def learning_rate(config: ConfigDict) -> optax.Schedule:
    """The learning rate over steps: linear warmup from peak / warmup to the peak; then cosine or linear decay that
    would reach 0 one step after the last, a constant rate, one with a linear decay in the last steps (wsd, as in
    MiniCPM, arXiv 2404.06395), or a decay with 1 / sqrt(step), whatever the number of steps (Vaswani et al. 2017,
    section 5.3)."""
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
        "rsqrt": lambda since: peak * jax.lax.rsqrt(1 + jnp.asarray(since, jnp.float32) / max(warmup, 1)),
    }[config.optimizer.schedule]
    if warmup == 0:
        return after
    # The first step uses peak / warmup: a rate of 0 would change nothing.
    ramp = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([ramp, after], [warmup])


def factors(params: Any, lines: Iterable[str]) -> dict[str, Any]:
    """The factors on the learning rate: for each parameter that of the first of `lines` that matches its path, or 1.

    Args:
        params: the parameters or their shapes.
        lines: config.optimizer.lr_multipliers.

    Returns:
        By path, a number, or an array that spreads over the axes of the parameter: [layers, 1, ...] if the factor grows
        with depth.

    Raises:
        RunError: a line matches no parameter, or asks depth of one that has no layers.
    """
    multipliers = parsing.lr_multipliers(lines)
    by_path, used = {}, set()
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    depth = depths({name: leaf.shape[0] for name, leaf in leaves.items() if name.startswith(STACKED)})
    for name, leaf in leaves.items():
        matching = (multiplier for multiplier in multipliers if re.search(multiplier.pattern, name))
        multiplier = next(matching, parsing.Multiplier("", 1.0, 1.0))
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
        raise RunError(f"config.optimizer.lr_multipliers: {unused[0]!r} matches no parameter left, e.g. {example}")
    return by_path


def decay_mask(params: Any, metadata: Mapping[str, ParamMetadata], decay_all: bool = False) -> Any:
    """A tree of booleans: which parameters weight decay changes, by what the model says of them; or all."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: decay_all or metadata.get(path_name(path), ParamMetadata()).decayed, params
    )


def averaged(opt_state: Any, params: Any) -> Any:
    """The parameters that a schedule-free optimizer evaluates; frozen ones as they are."""

    def is_state(node: Any) -> bool:
        return isinstance(node, optax.contrib.ScheduleFreeState)

    def average(y: Any, z: Any) -> Any:
        frozen = isinstance(z, optax.MaskedNode)
        return y if frozen else optax.contrib.schedule_free_eval_params(state._replace(z=z), y)

    (state,) = filter(is_state, jax.tree.leaves(opt_state, is_leaf=is_state))
    return jax.tree.map(average, params, state.z)


def make(
    config: ConfigDict, params: Any, metadata: Mapping[str, ParamMetadata], heads: tuple[str, ...] = ()
) -> optax.GradientTransformation:
    """The transformation from gradients to updates.

    Args:
        config: of the run.
        params: the parameters or their shapes.
        metadata: what the model says of its parameters (`Task.param_metadata`).
        heads: with config.optimizer.lora_rank, how the paths begin of what is trained beside the adapters.

    Raises:
        RunError: a pattern of config.optimizer.freeze or lr_multipliers does not fit the parameters, or none of them
            can have a LoRA.
    """
    if not (rank := config.optimizer.lora_rank):
        return _make(config, params, metadata)
    if not (kernels := lora.adapted(params, metadata)):
        raise RunError(f"config.optimizer.lora_rank is {rank}: {config.model.block} has no channel projections; give 0")
    alpha = config.optimizer.lora_alpha or float(rank)
    transformation = lora.wrap(
        functools.partial(_make, config, metadata=metadata), kernels, heads, rank=rank, alpha=alpha, seed=config.seed
    )
    jax.eval_shape(transformation.init, params)  # names patterns that do not fit
    return transformation


def _make(config: ConfigDict, params: Any, metadata: Mapping[str, ParamMetadata]) -> optax.GradientTransformation:
    """`make` without LoRA."""
    options, rate, chosen = config.optimizer, learning_rate(config), optimizers.find(config.optimizer.name)
    by_path = factors(params, options.lr_multipliers)

    def scale(path: tuple, update: Any) -> Any:
        return update * by_path[path_name(path)]

    scaled = optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(scale, updates))
    transformation = optax.chain(
        # The state has the same names either way, so a run can resume with another clip.
        optax.clip_by_global_norm(options.clip) if options.clip else optax.identity(),
        chosen.make(rate, options, functools.partial(decay_mask, metadata=metadata, decay_all=options.decay_all)),
        scaled if options.lr_multipliers else optax.identity(),
    )
    if chosen.averages:  # of the scaled updates
        transformation = optax.contrib.schedule_free(transformation, rate, options.b1)
    if not options.freeze:
        return transformation
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    for pattern in options.freeze:
        if not any(re.search(pattern, name) for name in names):
            raise RunError(f"config.optimizer.freeze: {pattern!r} matches no parameter, e.g. {names[0]}")

    def label(path: tuple, _: Any) -> str:
        return "frozen" if any(re.search(pattern, path_name(path)) for pattern in options.freeze) else "trained"

    labels = jax.tree_util.tree_map_with_path(label, params)
    return optax.multi_transform({"trained": transformation, "frozen": optax.set_to_zero()}, labels)
