"""Zeros around the entries of one axis, and in place of the tokens that are padding."""

import jax.numpy as jnp
from jax import Array


def pad_axis(x: Array, axis: int, before: int, after: int) -> Array:
    """x with `before` zeros before its entries along an axis, and `after` zeros after them. The axis
    may be counted from the end."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, after)
    return jnp.pad(x, widths)


def zero_padding(x: Array, padding_mask: Array | None) -> Array:
    """x [..., tokens, channels] with zeros at padding. `padding_mask` is that of `Block`, bool or int
    [..., tokens]; None leaves x unchanged."""
    if padding_mask is None:
        return x
    mask_of_channels = padding_mask[..., None]  # [..., tokens, 1]
    is_text = mask_of_channels.astype(bool)
    zeros = jnp.zeros_like(x)
    return jnp.where(is_text, x, zeros)


def documents_of(padding_mask: Array | None) -> Array | None:
    """The documents in a `padding_mask` of `Block`: int [batch, tokens], from 1, and 0 for padding;
    None if there is one document."""
    if padding_mask is None or padding_mask.dtype == jnp.bool_:
        return None
    return padding_mask
