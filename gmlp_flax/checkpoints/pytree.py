"""The leaves of trees by name, as checkpoints, optimizers and meshes call them, and whether they fit."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from gmlp_flax.errors import RunError

SHOWN = 3  # leaves that a message names


class Unfit(RunError):
    """A checkpoint of another model or optimizer."""


def path_name(path: tuple) -> str:
    """A tree path as `params/encoder/norm/scale`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def to_dict(tree: Any) -> dict:
    """Any tree as a nested dict. Its names do not depend on the classes that hold the leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return traverse_util.unflatten_dict({path_name(path): leaf for path, leaf in leaves}, sep="/")


def from_dict(template: Any, values: dict) -> Any:
    """The inverse of `to_dict`: the values in the structure of the template."""
    flat = traverse_util.flatten_dict(values, sep="/")
    return jax.tree_util.tree_map_with_path(lambda path, _: flat[path_name(path)], template)


def digest(tree: dict) -> str:
    """The SHA-256 of the names, shapes and types of all leaves."""
    flat: dict[str, Any] = traverse_util.flatten_dict(tree, sep="/")
    lines = sorted(f"{name} {list(leaf.shape)} {np.dtype(leaf.dtype).name}" for name, leaf in flat.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def require_fit(saved: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    """Compares flat dicts of arrays or shapes. Raises Unfit, with the first three, if wanted paths are missing or have
    another shape or type."""
    problems = []
    for name, leaf in wanted.items():
        if name not in saved:
            problems.append(f"{name} is missing")
        elif (saved[name].shape, saved[name].dtype) != (leaf.shape, leaf.dtype):
            old = saved[name]
            problems.append(f"{name} is {old.dtype}{list(old.shape)}, not {leaf.dtype}{list(leaf.shape)}")
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise Unfit(f"the checkpoint {where} does not fit this config: {'; '.join(problems[:SHOWN])}{more}")
