"""The leaves of pytrees: their names in checkpoints, optimizers and meshes, whether they fit a
config, and their checksums."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from gmlp_flax.errors import RunError, listed


class Unfit(RunError):
    """A checkpoint of another model or optimizer."""


def path_name(path: tuple) -> str:
    """A tree path as `params/encoder/norm/scale`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def leaves_by_path(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their paths, such as `encoder/norm/scale`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {path_name(path): leaf for path, leaf in leaves}


def to_dict(tree: Any) -> dict:
    """Any tree as a nested dict, whose names do not depend on the classes that hold the leaves."""
    flat = leaves_by_path(tree)
    return traverse_util.unflatten_dict(flat, sep="/")


def from_dict(template: Any, values: dict) -> Any:
    """The inverse of `to_dict`: the values in the structure of the template."""
    flat = traverse_util.flatten_dict(values, sep="/")

    def value_at(path: tuple, _: Any) -> Any:
        name = path_name(path)
        return flat[name]

    return jax.tree_util.tree_map_with_path(value_at, template)


def require_fit(saved: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    """Compares flat dicts of arrays or shapes. Raises Unfit, which names the first eight problems,
    if wanted paths are missing or have another shape or type."""
    problems = []
    for path, leaf in wanted.items():
        if path not in saved:
            problems.append(f"{path} is missing")
            continue
        old = _form(saved[path])
        new = _form(leaf)
        if old != new:
            problems.append(f"{path} is {old}, not {new}")
    if problems:
        shown = listed(problems, between="; ")
        raise Unfit(f"the checkpoint {where} does not fit this config: {shown}")


def _form(leaf: Any) -> str:
    """A type and a shape, such as float32[2, 3]."""
    return f"{leaf.dtype}{list(leaf.shape)}"


def checksum(x: jax.Array) -> jax.Array:
    """A uint32 that differs if any one element differs: the sum of all elements' bits, each hashed
    with its position.

    A sum modulo 2^32 does not depend on its order, so the checksum does not depend on how the array
    is sharded.
    """
    bits = _bits(x)
    positions = _positions(bits.shape)
    hashed = bits ^ (positions * jnp.uint32(0x9E3779B9))
    # MurmurHash3's finalizer, a bijection
    hashed ^= hashed >> 16
    hashed *= jnp.uint32(0x85EBCA6B)
    hashed ^= hashed >> 13
    hashed *= jnp.uint32(0xC2B2AE35)
    hashed ^= hashed >> 16
    return hashed.sum(dtype=jnp.uint32)


def _bits(x: jax.Array) -> jax.Array:
    """The bits of each element as uint32; two of them for a float64."""
    if _is_float(x):
        bytes_at_once = min(x.dtype.itemsize, 4)
        unsigned = jnp.dtype(f"uint{8 * bytes_at_once}")
        x = jax.lax.bitcast_convert_type(x, unsigned)
    return x.astype(jnp.uint32)


def _is_float(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def _positions(shape: tuple[int, ...]) -> jax.Array:
    """The number of each element of an array, modulo 2^32."""
    positions = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        along_axis = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        positions += along_axis * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    return positions


@jax.jit
def examine(tree: Any) -> tuple[Any, jax.Array]:
    """The checksum of each leaf, and whether all floating-point numbers are finite."""
    all_finite = jnp.array(True)
    for leaf in jax.tree.leaves(tree):
        if _is_float(leaf):
            is_finite = jnp.isfinite(leaf)
            all_finite &= is_finite.all()
    checksums = jax.tree.map(checksum, tree)
    return checksums, all_finite
