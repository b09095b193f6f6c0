"""The state of a run, which each step reads and writes, and its names in a checkpoint."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from flax import traverse_util

from gmlp_flax.tasks.base import Sums


class TrainState(NamedTuple):
    """A run after `step` optimizer steps.

    Attributes:
        step: int32 scalar.
        params: nested dict of parameters.
        opt_state: the state of the optimizer.
        ema: running mean of the parameters, or None.
        window: (sum, weight) of each training metric since the last line of the log. It is a part of the state so that
            a run that resumes within a window writes the same line as an uninterrupted run.
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
    """Any tree as a nested dict. Its names do not depend on the classes that hold the leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return traverse_util.unflatten_dict({path_name(path): leaf for path, leaf in leaves}, sep="/")


def from_dict(template: Any, values: dict) -> Any:
    """The inverse of `to_dict`: the values in the structure of the template."""
    flat = traverse_util.flatten_dict(values, sep="/")
    return jax.tree_util.tree_map_with_path(lambda path, _: flat[path_name(path)], template)
