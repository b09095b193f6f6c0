"""Depthwise convolutions over tokens as pure functions: each channel has its own kernel. Also
`PaddedTokens`, the tokens at a given distance, for convolutions within documents.

Each mixer with such a convolution has a module that owns the kernel. These modules differ in what
their papers' code has: the order and the initial values of the entries, the bias, and the activation.

A convolution is a sum of shifted and scaled inputs, which XLA fuses into one pass over memory. For
2,048 tokens (4 x 512) of 256 channels and 31 entries in float32, two busy CPU cores take, in ms of
processor time:

| | forward | forward and both gradients |
|---|---|---|
| shifted sums, with these gradients | 2 | 23 |
| shifted sums, with JAX's gradients | 2 | 50 |
| by FFT | 7 | 13 |
| `lax.conv_general_dilated` with a group for each channel | 41 | 170 |

With the FFT, rounding would make the outputs of a causal convolution depend on later tokens, and
with 3 entries the FFT takes three times as long as the sums. If all entries of a kernel's gradient
are computed at once, a CPU takes 60 ms instead of 23, but a TPU reads the inputs once instead of
once per entry. With 3 to 7 entries these gradients are as fast as JAX's in float32, and take a half
to a sixth of the time in bfloat16.

The derivative is a linear function of the tangents (`jax.custom_jvp`), which JAX transposes for
gradients: forward and reverse mode nest in any order.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from gmlp_flax.models.matmul import saving_only_inputs
from gmlp_flax.models.padding import pad_axis


def convolve(x: Array, kernel: Array, before: int, documents: Array | None = None) -> Array:
    """y[i, c] = sum_j kernel[j, c] x[i + j - before, c], with zeros beyond the first and last token.

    Args:
        x: [..., tokens, channels]; [batch, tokens, channels] if there are documents.
        kernel: [width, channels].
        before: how many tokens before its own an output reads, less than the width: (width - 1) //
            2 centers the kernel, width - 1 makes it causal.
        documents: int [batch, tokens], from 1, the document of each token, and 0 for padding. Tokens
            of another document count as zeros. None if there is one document.

    Returns:
        [..., tokens, channels] in the type of x. Sums are computed in float32 at least.
    """
    width = len(kernel)
    after = width - 1 - before
    if documents is None:
        padded = pad_axis(x, -2, before, after)
        return convolve_valid(padded, kernel)
    padded_tokens = pad_tokens(x, before, after, documents)
    precise = jnp.promote_types(x.dtype, jnp.float32)
    terms = []
    for entry in range(width):
        shifted = padded_tokens.at(entry - before)
        weight = kernel[entry]  # [channels]
        precise_shifted = shifted.astype(precise)
        term = weight * precise_shifted
        terms.append(term)
    total = functools.reduce(jnp.add, terms)
    return total.astype(x.dtype)


def uniform_kernel(key: Array, width: int, channels: int, dtype: jnp.dtype) -> Array:
    """Initial values [width, channels], uniform within 1 / sqrt(width): PyTorch's default for a
    depthwise convolution, which published mixers keep."""
    bound = width**-0.5
    shape = (width, channels)
    return jax.random.uniform(key, shape, dtype, -bound, bound)


@jax.custom_jvp
def convolve_valid(x: Array, kernel: Array) -> Array:
    """y[i, c] = sum_j kernel[j, c] x[i + j, c], where the kernel [width, channels] fits into x:
    [..., tokens + width - 1, channels] to [..., tokens, channels] in the type of x. Sums are
    computed in float32 at least."""
    return sum_of_slices(x, kernel)


@convolve_valid.defjvp
def _convolve_valid_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    x, kernel = primals
    d_x, d_kernel = tangents
    y = convolve_valid(x, kernel)
    by_x = _linear_in_x(kernel, d_x)
    by_kernel = _linear_in_kernel(x, d_kernel)
    return y, by_x + by_kernel


def sum_of_slices(x: Array, kernel: Array) -> Array:
    """`convolve_valid` as a sum over the entries of the kernel, all at once."""
    width = len(kernel)
    tokens = x.shape[-2] - width + 1
    precise = jnp.promote_types(x.dtype, jnp.float32)
    terms = []
    for entry in range(width):
        stop = entry + tokens
        shifted = jax.lax.slice_in_dim(x, entry, stop, axis=-2)
        weight = kernel[entry]  # [channels]
        precise_shifted = shifted.astype(precise)
        term = weight * precise_shifted
        terms.append(term)
    total = functools.reduce(jnp.add, terms)
    return total.astype(x.dtype)


def sum_of_pads(x: Array, kernel: Array) -> Array:
    """`convolve_valid` as a sum of padded arrays, which JAX transposes to a sum of slices: that is
    faster than the sum of padded arrays to which it transposes `sum_of_slices`.

    Each term is rounded to the type of x. In the transposed sum this rounds nothing, and the slices
    are of an array in that type: a TPU would otherwise write it in float32.
    """
    past = len(kernel) - 1
    tokens = x.shape[-2] - past
    precise = jnp.promote_types(x.dtype, jnp.float32)
    precise_x = x.astype(precise)
    terms = []
    for entry, weight in enumerate(kernel):  # weight: [channels]
        product = weight * precise_x
        rounded = product.astype(x.dtype)
        # term[i + past] = kernel[entry] x[i + entry]
        term = pad_axis(rounded, -2, past - entry, entry)
        precise_term = term.astype(precise)
        terms.append(precise_term)
    total = functools.reduce(jnp.add, terms)
    stop = past + tokens
    rounded_total = total.astype(x.dtype)
    return jax.lax.slice_in_dim(rounded_total, past, stop, axis=-2)


def sum_in_a_loop(x: Array, kernel: Array) -> Array:
    """`convolve_valid`, one entry of the kernel after another."""
    width = len(kernel)
    tokens = x.shape[-2] - width + 1
    precise = jnp.promote_types(x.dtype, jnp.float32)

    # Otherwise the loop would keep the shifted tokens of every entry for the backward pass.
    @saving_only_inputs
    def term(x: Array, entry: Array, weight: Array) -> Array:
        shifted = jax.lax.dynamic_slice_in_dim(x, entry, tokens, axis=-2)
        precise_shifted = shifted.astype(precise)
        return weight * precise_shifted

    def add_term(total: Array, entry_and_weight: tuple[Array, Array]) -> tuple[Array, None]:
        entry, weight = entry_and_weight
        new_total = total + term(x, entry, weight)
        return new_total, None

    entries = jnp.arange(width)
    # Not zeros, which would not be sharded as x is.
    first = term(x, entries[0], kernel[0])
    other_entries = (entries[1:], kernel[1:])
    total, _ = jax.lax.scan(add_term, first, other_entries)
    return total.astype(x.dtype)


@saving_only_inputs
def _linear_in_x(kernel: Array, x: Array) -> Array:
    """`convolve_valid`, where only the derivative by x is needed."""
    return sum_of_pads(x, kernel)


@saving_only_inputs
def _linear_in_kernel(x: Array, kernel: Array) -> Array:
    """`convolve_valid`, where only the derivative by the kernel is needed."""
    return jax.lax.platform_dependent(x, kernel, cpu=sum_in_a_loop, default=sum_of_slices)


class PaddedTokens(NamedTuple):
    """Tokens between zeros, or after earlier tokens.

    Attributes:
        x: [batch, before + tokens + after, ...].
        before: number of entries before the first token.
        tokens: the number of tokens.
        documents: the document of each token of x, int [batch, before + tokens + after], from 1, and
            0 for padding; None if there is one document.
    """

    x: Array
    before: int
    tokens: int
    documents: Array | None = None

    def at(self, offset: int) -> Array:
        """For each token the one at this distance, [batch, tokens, ...]: a later one if the offset
        is positive. A token of another document counts as zeros."""
        shifted = self._shifted(self.x, offset)
        if self.documents is None:
            return shifted
        document_there = self._shifted(self.documents, offset)
        document_here = self._shifted(self.documents, 0)
        is_same_document = document_there == document_here  # [batch, tokens]
        channel_axes = tuple(range(2, shifted.ndim))
        is_visible = jnp.expand_dims(is_same_document, channel_axes)
        zeros = jnp.zeros_like(shifted)
        return jnp.where(is_visible, shifted, zeros)

    def _shifted(self, x: Array, offset: int) -> Array:
        start = self.before + offset
        stop = start + self.tokens
        return x[:, start:stop]


def pad_tokens(x: Array, before: int, after: int, documents: Array | None = None) -> PaddedTokens:
    """x [batch, tokens, ...] with zeros before the first and after the last token. `documents`, int
    [batch, tokens], are those of `PaddedTokens`."""
    tokens = x.shape[1]
    padded = pad_axis(x, 1, before, after)
    if documents is not None:
        documents = pad_axis(documents, 1, before, after)
    return PaddedTokens(padded, before, tokens, documents)
