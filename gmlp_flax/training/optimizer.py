"""AdamW as the paper uses it: clipped, decayed where decay makes sense, frozen where asked."""

from __future__ import annotations

import re
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from gmlp_flax.training import schedule
from gmlp_flax.training.errors import RunError
from gmlp_flax.training.state import path_name

# Norms, biases of layers and of spatial projections, one per token; and as in DeiT the cls token and learned positions.
UNDECAYED = ("bias", "scale", "cls", "table")


def decayed(params: Any) -> Any:
    """Which parameters weight decay touches: those whose name does not end in one of UNDECAYED."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path_name(path).rpartition("/")[2] not in UNDECAYED, params)


def frozen(params: Any, patterns: tuple[str, ...]) -> Any:
    """Which parameters stay as they started: those whose path matches one of the regular expressions.

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


def make(config: ConfigDict, params: Any) -> optax.GradientTransformation:
    """The transformation from gradients to updates.

    Args:
        config: the run's.
        params: the parameters or their shapes; only their paths are read.
    """
    options = config.optimizer
    transformation = optax.chain(
        # The same names in the state either way: a run can go on with another clip.
        optax.clip_by_global_norm(options.clip) if options.clip else optax.identity(),
        optax.adamw(
            schedule.learning_rate(config), options.b1, options.b2, options.eps,
            weight_decay=options.weight_decay, mask=decayed,
        ),
    )
    if not options.freeze:
        return transformation
    labels = jax.tree.map(lambda stays: "frozen" if stays else "trained", frozen(params, options.freeze))
    return optax.multi_transform({"trained": transformation, "frozen": optax.set_to_zero()}, labels)
