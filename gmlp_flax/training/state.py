"""The state of a run: all that a step reads and writes, and its names in a checkpoint."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from flax import traverse_util

Sums = dict[str, tuple[jax.Array, jax.Array]]  # metric -> (sum, weight), both scalars


class TrainState(NamedTuple):
    """A run after `step` optimizer steps.

    Attributes:
        step: int32 scalar.
        params: nested dict of parameters.
        opt_state: the optimizer's.
        ema: running mean of the parameters, or None.
        window: (sum, weight) of each training metric since the last line of the log. It is kept here so that a run
            that resumes in the middle of a window writes the line that the uninterrupted run writes.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    ema: Any
    window: Sums


def path_name(path: tuple) -> str:
    """A tree path as `params/encoder/norm/scale`."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def to_dict(tree: Any) -> dict:
    """Any tree as a nested dict with stable names: independent of the classes that hold the leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return traverse_util.unflatten_dict({path_name(path): leaf for path, leaf in leaves}, sep="/")


def from_dict(template: Any, values: dict) -> Any:
    """The inverse of `to_dict`: values in the structure of the template."""
    flat = traverse_util.flatten_dict(values, sep="/")
    return jax.tree_util.tree_map_with_path(lambda path, _: flat[path_name(path)], template)
