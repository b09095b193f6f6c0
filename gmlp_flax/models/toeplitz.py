"""Toeplitz matrices as pure functions.

A Toeplitz matrix W [n, n] is given by 2n - 1 taps with W[i, j] = taps[n - 1 + j - i]: the same filter at every
position (paper, section 4.1 and appendix C). Negative offsets j - i come first, the middle tap is the diagonal.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models.matmul import NAME

BAND = 128  # rows of a band: the width of a TPU's tile


def length_of(taps: jax.Array) -> int:
    """The n of taps [..., 2n - 1]. Raises ValueError if their number is even."""
    if taps.ndim < 1 or taps.shape[-1] % 2 == 0:
        raise ValueError(f"Toeplitz taps have shape {taps.shape}: expected [2n - 1], an odd number of them")
    return (taps.shape[-1] + 1) // 2


def expand(taps: jax.Array) -> jax.Array:
    """Taps [2n - 1] to the matrix [n, n].

    Neither this nor its transpose gathers or scatters. A TPU moves the matrix once in bands of BAND rows, and 6 to 30
    times in one band of n rows. A CPU is faster with one band, and its transpose with many (docs/mixers.md).
    """
    return _expand(taps) if length_of(taps) > BAND else _in_bands(taps, length_of(taps))


@jax.custom_jvp
def _expand(taps: jax.Array) -> jax.Array:
    one, many = (functools.partial(_in_bands, height=height) for height in (length_of(taps), BAND))
    return jax.lax.platform_dependent(taps, cpu=one, default=many)


@_expand.defjvp
def _expand_jvp(primals, tangents):
    return _expand(*primals), _in_bands(*tangents, height=BAND)


def _in_bands(taps: jax.Array, height: int) -> jax.Array:
    """`expand` in bands of `height` rows.

    The taps followed by a zero, repeated and read in rows of 2n - 1, shift by one column per row: a band of rows. The
    next band is read from the same rows, `height` columns further to the left.
    """
    n = length_of(taps)
    repeated = jnp.broadcast_to(jnp.append(taps, 0), (height, 2 * n)).reshape(-1)
    band = repeated[: height * (2 * n - 1)].reshape(height, 2 * n - 1)
    return jnp.concatenate([band[: n - first, n - 1 - first : 2 * n - 1 - first] for first in range(0, n, height)])


def apply_fft(taps: jax.Array, x: jax.Array) -> jax.Array:
    """W x over the token axis by a circular convolution of at least 2n - 1 points: O(n log n) work, O(n) memory.

    Taps [2n - 1] and x [..., n, channels] give [..., n, channels] in the type of x. The transform runs in float32
    (float64 for float64).
    """
    n = length_of(taps)
    points = 1 << (2 * n - 2).bit_length()
    precise = jnp.promote_types(x.dtype, jnp.float32)
    # Output i sums taps[n - 1 + j - i] x[j]: a convolution with the reversed taps, read from n - 1 on.
    filter_hat = jnp.fft.rfft(jnp.flip(taps).astype(precise), points)
    x_hat = jnp.fft.rfft(x.astype(precise), points, axis=-2)
    y = jnp.fft.irfft(x_hat * filter_hat[:, None], points, axis=-2)
    return checkpoint_name(y[..., n - 1 : 2 * n - 1, :].astype(x.dtype), NAME)


def past_only(taps: jax.Array) -> jax.Array:
    """Taps of the offsets 1 - n to 0, [..., n], to all taps [..., 2n - 1] of a matrix that is 0 above its diagonal."""
    return jnp.pad(taps, [*[(0, 0)] * (taps.ndim - 1), (0, taps.shape[-1] - 1)])


def rows(taps: jax.Array, first: jax.Array | int, count: int) -> jax.Array:
    """Rows [first, first + count) of the matrix of taps [2n - 1]: [count, n], at a cost of count n."""
    n = length_of(taps)
    if count == n:
        return expand(taps)
    starts = n - 1 - first - jnp.arange(count)
    return jax.vmap(lambda start: jax.lax.dynamic_slice(taps, (start,), (n,)))(starts)


def crop(taps: jax.Array, length: int) -> jax.Array:
    """The central taps: [..., 2n - 1] to [..., 2 length - 1], the upper-left [length, length] corner of the matrix.
    Raises ValueError if length exceeds n."""
    n = length_of(taps)
    if length > n:
        raise ValueError(f"cannot crop Toeplitz taps for {n} tokens to {length}")
    return taps[..., n - length : n + length - 1]
