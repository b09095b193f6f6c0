"""Optimizers of optax, with clipping, weight decay of the parameters for which the model states it, and frozen ones.

The paper uses AdamW.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from gmlp_flax.errors import RunError
from gmlp_flax.models.parameters import Facts
from gmlp_flax.training import schedule
from gmlp_flax.training.state import path_name

# config.optimizer.name -> the transformation, from the learning rate, config.optimizer, and what weight decay changes.
OPTIMIZERS: dict[str, Callable[[optax.Schedule, Any, Callable], optax.GradientTransformation]] = {
    "adamw": lambda rate, of, mask: optax.adamw(rate, of.b1, of.b2, of.eps, weight_decay=of.weight_decay, mask=mask),
    "nadamw": lambda rate, of, mask: optax.nadamw(rate, of.b1, of.b2, of.eps, weight_decay=of.weight_decay, mask=mask),
    "lamb": lambda rate, of, mask: optax.lamb(rate, of.b1, of.b2, of.eps, weight_decay=of.weight_decay, mask=mask),
    "lion": lambda rate, of, mask: optax.lion(rate, of.b1, of.b2, weight_decay=of.weight_decay, mask=mask),
    "sgd": lambda rate, of, mask: optax.chain(
        optax.add_decayed_weights(of.weight_decay, mask), optax.sgd(rate, momentum=of.b1)
    ),
}


def decayed(params: Any, facts: Mapping[str, Facts]) -> Any:
    """A tree of booleans: which parameters weight decay changes, by what the model says of them."""
    return jax.tree_util.tree_map_with_path(lambda path, _: facts.get(path_name(path), Facts()).decayed, params)


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


def make(config: ConfigDict, params: Any, facts: Mapping[str, Facts]) -> optax.GradientTransformation:
    """The transformation from gradients to updates.

    Args:
        config: the config of the run.
        params: the parameters or their shapes. Only their paths are used.
        facts: what the model says of its parameters (`Task.facts`).
    """
    options = config.optimizer
    transformation = optax.chain(
        # The state has the same names either way, so a run can resume with another clip.
        optax.clip_by_global_norm(options.clip) if options.clip else optax.identity(),
        OPTIMIZERS[options.name](schedule.learning_rate(config), options, functools.partial(decayed, facts=facts)),
    )
    if not options.freeze:
        return transformation
    labels = jax.tree.map(lambda stays: "frozen" if stays else "trained", frozen(params, options.freeze))
    return optax.multi_transform({"trained": transformation, "frozen": optax.set_to_zero()}, labels)
