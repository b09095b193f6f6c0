"""Checksums of arrays, computed on the devices that hold them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def checksum(x: jax.Array) -> jax.Array:
    """A uint32 that differs if any one element differs: the sum of all elements' bits, each hashed with its position.

    A sum modulo 2^32 does not depend on its order, so the checksum does not depend on how the array is sharded.
    """
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{min(x.dtype.itemsize, 4) * 8}"))
    bits = x.astype(jnp.uint32)
    position = jnp.zeros(bits.shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(bits.ndim)):
        position += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(stride % 2**32)
        stride *= bits.shape[axis]
    mixed = bits ^ (position * jnp.uint32(0x9E3779B9))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):  # MurmurHash3's finalizer, a bijection
        mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
    return (mixed ^ (mixed >> 16)).sum(dtype=jnp.uint32)


@jax.jit
def examine(tree: Any) -> tuple[Any, jax.Array]:
    """The checksum of each leaf, and whether all floating-point numbers are finite."""
    finite = [jnp.isfinite(x).all() for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jax.tree.map(checksum, tree), jnp.all(jnp.array(finite))
