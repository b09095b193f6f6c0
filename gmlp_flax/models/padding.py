"""Zeros around the entries of one axis."""

import jax
import jax.numpy as jnp


def pad_axis(x: jax.Array, axis: int, before: int, after: int) -> jax.Array:
    """x with `before` zeros before its entries along an axis, and `after` zeros after them. The axis
    may be counted from the end."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, after)
    return jnp.pad(x, widths)
