"""The optimizer of a run: a row of `config.optimizers` with clipping, weight decay of the parameters that the model marks,
learning-rate multipliers, and frozen parameters."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from gmlp_flax.checkpoints.pytree import path_name
from gmlp_flax.config import parsing
from gmlp_flax.config.optimizers import OPTIMIZERS
from gmlp_flax.errors import RunError
from gmlp_flax.models.encoder import STACKED, depths
from gmlp_flax.models.parameters import ParamMetadata
from gmlp_flax.training import schedule


def factors(params: Any, lines: Iterable[str]) -> dict[str, Any]:
    """The factors on the learning rate, each that of the first line of config.optimizer.lr_multipliers that matches the path.

    Args:
        params: the parameters or their shapes.
        lines: config.optimizer.lr_multipliers.

    Returns:
        For the path of each parameter a number, or an array that spreads over its axes: [layers, 1, ...] if the factor
        grows with depth.

    Raises:
        RunError: a line matches no parameter, or asks depth of one that has no layers.
    """
    multipliers = parsing.lr_multipliers(lines)
    found, used = {}, set()
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    depth = depths({name: leaf.shape[0] for name, leaf in leaves.items() if name.startswith(STACKED)})
    for name, leaf in leaves.items():
        matching = (multiplier for multiplier in multipliers if re.search(multiplier.pattern, name))
        multiplier = next(matching, parsing.Multiplier("", 1.0, 1.0))
        used.add(multiplier)
        found[name] = multiplier.first
        if multiplier.first == multiplier.last:
            continue
        if name not in depth:
            raise RunError(
                f"config.optimizer.lr_multipliers: {multiplier.pattern!r} matches {name}, which has no layers: give one factor"
            )
        first, layers = depth[name]
        by_layer = np.geomspace(multiplier.first, multiplier.last, layers, dtype=np.float32)[
            first : first + leaf.shape[0]
        ]
        found[name] = by_layer.reshape(-1, *[1] * (len(leaf.shape) - 1))
    if unused := [multiplier.pattern for multiplier in multipliers if multiplier not in used]:
        raise RunError(
            f"config.optimizer.lr_multipliers: {unused[0]!r} matches no parameter that is left, e.g. {next(iter(found))}"
        )
    return found


def scaled(by: Mapping[str, Any]) -> optax.GradientTransformation:
    """Multiplies updates by the factors of their paths."""
    return optax.stateless(
        lambda updates, _: jax.tree_util.tree_map_with_path(lambda path, update: update * by[path_name(path)], updates)
    )


def out_of_reach(config: ConfigDict, params: Any, metadata: Mapping[str, ParamMetadata]) -> list[str]:
    """A line for each parameter that the schedule cannot move as far as the model says it may have to go.

    Under Adam a parameter travels at most about the sum of its rates. A bias on the logits of a softmax over n tokens
    needs a gap of ln(n - 1) for half of the mass to lie on one token.
    """
    if not OPTIMIZERS[config.optimizer.name].bounded:
        return []
    travel = float(np.sum(schedule.learning_rate(config)(np.arange(config.steps))))
    lines = []
    for name, factor in factors(params, config.optimizer.lr_multipliers).items():
        far, max_logit_gap = travel * float(np.min(factor)), metadata.get(name, ParamMetadata()).max_logit_gap
        if travel and far < max_logit_gap:
            lines.append(
                f"note: in {config.steps:,} steps {name} can travel about {far:.2g}, and may need {max_logit_gap:.2g}: "
                f"consider --config.optimizer.lr_multipliers=\"('{name}={math.ceil(max_logit_gap / travel)}',)\""
            )
    return lines


def decayed(params: Any, metadata: Mapping[str, ParamMetadata]) -> Any:
    """A tree of booleans: which parameters weight decay changes, by what the model says of them."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: metadata.get(path_name(path), ParamMetadata()).decayed, params
    )


def frozen(params: Any, patterns: tuple[str, ...]) -> Any:
    """A tree of booleans: which parameters do not train, because their path matches one of the regular expressions.

    Raises:
        RunError: a pattern matches no parameter.
    """
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in names):
            raise RunError(f"config.optimizer.freeze: {pattern!r} matches no parameter, e.g. {names[0]}")
    return jax.tree_util.tree_map_with_path(
        lambda path, _: any(re.search(pattern, path_name(path)) for pattern in patterns), params
    )


def make(config: ConfigDict, params: Any, metadata: Mapping[str, ParamMetadata]) -> optax.GradientTransformation:
    """The transformation from gradients to updates.

    Args:
        config: the config of the run.
        params: the parameters or their shapes. Only their paths and numbers of layers are used.
        metadata: what the model says of its parameters (`Task.param_metadata`).
    """
    options = config.optimizer
    transformation = optax.chain(
        # The state has the same names either way, so a run can resume with another clip.
        optax.clip_by_global_norm(options.clip) if options.clip else optax.identity(),
        OPTIMIZERS[options.name].make(
            schedule.learning_rate(config), options, functools.partial(decayed, metadata=metadata)
        ),
        scaled(factors(params, options.lr_multipliers)) if options.lr_multipliers else optax.identity(),
    )
    if not options.freeze:
        return transformation
    labels = jax.tree.map(lambda stays: "frozen" if stays else "trained", frozen(params, options.freeze))
    return optax.multi_transform({"trained": transformation, "frozen": optax.set_to_zero()}, labels)
