"""Optimizers of optax, with clipping, weight decay of the parameters that the model marks, other learning rates for some
parameters, and frozen parameters.

The paper uses AdamW.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from gmlp_flax.checkpoints.pytree import path_name
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.models.encoder import STACKED, depths
from gmlp_flax.models.parameters import ParamMetadata
from gmlp_flax.training import schedule


class Optimizer(NamedTuple):
    """An optimizer of optax.

    Attributes:
        make: its transformation, from the learning rate, config.optimizer, and what weight decay changes.
        bounded: whether it moves a parameter by about the learning rate per step at most, whatever its gradient.
    """

    make: Callable[[optax.Schedule, Any, Callable], optax.GradientTransformation]
    bounded: bool = False


def _lamb(rate: optax.Schedule, of: Any, mask: Callable) -> optax.GradientTransformation:
    """optax.lamb, but each layer of a stacked parameter has a trust ratio of its own (You et al., arXiv 1904.00962)."""
    ratio = optax.scale_by_trust_ratio()

    def trusted(path: Any, update: Any, param: Any) -> Any:
        def scale(update: Any, param: Any) -> Any:
            return ratio.update(update, optax.EmptyState(), param)[0]

        return (jax.vmap(scale) if path_name(path).startswith(STACKED) else scale)(update, param)

    return optax.chain(
        optax.scale_by_adam(of.b1, of.b2, of.eps),
        optax.add_decayed_weights(of.weight_decay, mask),
        optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(trusted, updates, params)),
        optax.scale_by_learning_rate(rate),
    )


OPTIMIZERS = {  # config.optimizer.name ->
    "adamw": Optimizer(
        lambda rate, of, mask: optax.adamw(rate, of.b1, of.b2, of.eps, weight_decay=of.weight_decay, mask=mask), True
    ),
    "nadamw": Optimizer(
        lambda rate, of, mask: optax.nadamw(rate, of.b1, of.b2, of.eps, weight_decay=of.weight_decay, mask=mask), True
    ),
    "lamb": Optimizer(_lamb),
    "lion": Optimizer(
        lambda rate, of, mask: optax.lion(rate, of.b1, of.b2, weight_decay=of.weight_decay, mask=mask), True
    ),
    "sgd": Optimizer(
        lambda rate, of, mask: optax.chain(
            optax.trace(of.b1), optax.add_decayed_weights(of.weight_decay, mask), optax.scale_by_learning_rate(rate)
        )
    ),
}


class Rate(NamedTuple):
    """A factor on the learning rate of the parameters whose path matches `pattern`.

    `last` differs from `first` if the factor grows with depth: layer l of L has first^(1 - t) last^t, t = l / (L - 1).
    """

    pattern: str
    first: float
    last: float


def parse_rates(lines: Iterable[str]) -> tuple[Rate, ...]:
    """Reads config.optimizer.lr_multipliers, each `PATTERN=FACTOR`, or `PATTERN=FIRST..LAST` for stacked layers.

    Raises:
        ConfigError: a line has another form.
    """
    rates = []
    for line in lines:
        pattern, _, given = line.rpartition("=")
        first, dots, last = given.partition("..")
        try:
            re.compile(pattern)
            factors = [float(first), float(last if dots else first)]
        except re.error as error:
            raise ConfigError(
                f"config.optimizer.lr_multipliers: {pattern!r} is no regular expression ({error})"
            ) from None
        except ValueError:
            factors = [math.nan]
        if not pattern or not all(0 < factor < math.inf for factor in factors):
            raise ConfigError(
                f"config.optimizer.lr_multipliers: {line!r} is not PATTERN=FACTOR or PATTERN=FIRST..LAST with factors above 0, "
                "such as 'relative/bias=8'; config.optimizer.freeze keeps parameters as they are"
            )
        rates.append(Rate(pattern, *factors))
    return tuple(rates)


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
    rates = parse_rates(lines)
    found, used = {}, set()
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    depth = depths({name: leaf.shape[0] for name, leaf in leaves.items() if name.startswith(STACKED)})
    for name, leaf in leaves.items():
        rate = next((rate for rate in rates if re.search(rate.pattern, name)), Rate("", 1.0, 1.0))
        used.add(rate)
        found[name] = rate.first
        if rate.first == rate.last:
            continue
        if name not in depth:
            raise RunError(
                f"config.optimizer.lr_multipliers: {rate.pattern!r} matches {name}, which has no layers: give one factor"
            )
        first, layers = depth[name]
        by_layer = np.geomspace(rate.first, rate.last, layers, dtype=np.float32)[first : first + leaf.shape[0]]
        found[name] = by_layer.reshape(-1, *[1] * (len(leaf.shape) - 1))
    if unused := [rate.pattern for rate in rates if rate not in used]:
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
