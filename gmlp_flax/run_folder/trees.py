"""The leaves of trees by name, as checkpoints, optimizers and meshes call them."""

from __future__ import annotations

from typing import Any

import jax
from flax import traverse_util


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
