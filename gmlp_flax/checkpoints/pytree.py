"""The leaves of trees: their names in checkpoints, optimizers and meshes, whether they fit, and
their checksums."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from gmlp_flax.errors import RunError, listed


class Unfit(RunError):
    """A checkpoint of another model or optimizer."""


def path_name(path: tuple) -> str:
    """A tree path as `params/encoder/norm/scale`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def leaves_by_path(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their paths, such as `encoder/norm/scale`."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def to_dict(tree: Any) -> dict:
    """Any tree as a nested dict. Its names do not depend on the classes that hold the leaves."""
    return traverse_util.unflatten_dict(leaves_by_path(tree), sep="/")


def from_dict(template: Any, values: dict) -> Any:
    """The inverse of `to_dict`: the values in the structure of the template."""
    flat = traverse_util.flatten_dict(values, sep="/")
    return jax.tree_util.tree_map_with_path(lambda path, _: flat[path_name(path)], template)


def digest(tree: dict) -> str:
    """The SHA-256 of the names, shapes and types of all leaves."""
    flat: dict[str, Any] = traverse_util.flatten_dict(tree, sep="/")
    lines = sorted(
        f"{name} {list(leaf.shape)} {np.dtype(leaf.dtype).name}" for name, leaf in flat.items()
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def require_fit(saved: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    """Compares flat dicts of arrays or shapes. Raises Unfit, with the first eight, if wanted paths
    are missing or have another shape or type."""
    problems = []
    for name, leaf in wanted.items():
        if name not in saved:
            problems.append(f"{name} is missing")
        elif (saved[name].shape, saved[name].dtype) != (leaf.shape, leaf.dtype):
            old = saved[name]
            problems.append(
                f"{name} is {old.dtype}{list(old.shape)}, not {leaf.dtype}{list(leaf.shape)}"
            )
    if problems:
        raise Unfit(
            f"the checkpoint {where} does not fit this config: {listed(problems, between='; ')}"
        )


def checksum(x: jax.Array) -> jax.Array:
    """A uint32 that differs if any one element differs: the sum of all elements' bits, each hashed
    with its position.

    A sum modulo 2^32 does not depend on its order, so the checksum does not depend on how the array
    is sharded.
    """
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{min(x.dtype.itemsize, 4) * 8}"))
    bits = x.astype(jnp.uint32)
    position = jnp.zeros(bits.shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(bits.ndim)):
        position += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(
            stride % 2**32
        )
        stride *= bits.shape[axis]
    mixed = bits ^ (position * jnp.uint32(0x9E3779B9))
    # MurmurHash3's finalizer, a bijection
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
    return (mixed ^ (mixed >> 16)).sum(dtype=jnp.uint32)


@jax.jit
def examine(tree: Any) -> tuple[Any, jax.Array]:
    """The checksum of each leaf, and whether all floating-point numbers are finite."""
    finite = [
        jnp.isfinite(x).all()
        for x in jax.tree.leaves(tree)
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    return jax.tree.map(checksum, tree), jnp.all(jnp.array(finite))
