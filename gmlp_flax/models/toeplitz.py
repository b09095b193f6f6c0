"""Toeplitz matrices as pure functions.

A Toeplitz matrix W [n, n] is given by 2n - 1 taps with W[i, j] = taps[n - 1 + j - i]: the same
filter at every position (paper, section 4.1 and appendix C). Negative offsets j - i come first, the
middle tap is the diagonal.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models import sharding
from gmlp_flax.models.matmul import NAME, nameless_over_tokens, over_tokens

BAND = 128  # rows of a band, and of a block: the width of a TPU's tile

# Platform -> the largest n for which `direct` is the fastest form, and the fastest for more tokens.
# Measured on CPUs and, up to 2,048, on an H100; otherwise by the bytes and operations of compiled
# programs (docs/results/data/toeplitz-forms.csv). "any" serves programs that run anywhere.
FASTEST = {
    "cpu": (512, "fft"),
    "gpu": (4096, "blocked"),
    "tpu": (2048, "blocked"),
    "any": (2048, "blocked"),
}


def length_of(taps: jax.Array) -> int:
    """The n of taps [..., 2n - 1]. Raises ValueError if their number is even."""
    if taps.ndim < 1 or taps.shape[-1] % 2 == 0:
        raise ValueError(
            f"Toeplitz taps have shape {taps.shape}: expected [2n - 1], an odd number of them"
        )
    return (taps.shape[-1] + 1) // 2


def expand(taps: jax.Array) -> jax.Array:
    """Taps [2n - 1] to the matrix [n, n].

    Neither this nor its transpose gathers or scatters. A TPU moves the matrix once in bands of BAND
    rows, and 6 to 30 times in one band of n rows. A CPU is faster with one band, and its transpose
    with many (docs/mixers.md).
    """
    return _expand(taps) if length_of(taps) > BAND else in_bands(taps, length_of(taps))


@jax.custom_jvp
def _expand(taps: jax.Array) -> jax.Array:
    one_band = functools.partial(in_bands, height=length_of(taps))
    many_bands = functools.partial(in_bands, height=BAND)
    return jax.lax.platform_dependent(taps, cpu=one_band, default=many_bands)


@_expand.defjvp
def _expand_jvp(primals, tangents):
    return _expand(*primals), in_bands(*tangents, height=BAND)


def in_bands(taps: jax.Array, height: int) -> jax.Array:
    """`expand` in bands of `height` rows.

    The taps followed by a zero, repeated and read in rows of 2n - 1, shift by one column per row: a
    band of rows. The next band is read from the same rows, `height` columns further to the left.
    """
    n = length_of(taps)
    width = 2 * n - 1
    repeated = jnp.broadcast_to(jnp.append(taps, 0), (height, 2 * n)).reshape(-1)
    band = repeated[: height * width].reshape(height, width)
    bands = []
    for first in range(0, n, height):
        rows_left = n - first
        bands.append(band[:rows_left, n - 1 - first : width - first])
    return jnp.concatenate(bands)


def fastest_form(n: int) -> str:
    """The key of FORMS that is the fastest for n tokens on the platform that the program is
    compiled for."""
    most, beyond = FASTEST[sharding.platform()]
    return "direct" if n <= most else beyond


def apply_direct(taps: jax.Array, x: jax.Array) -> jax.Array:
    """W x over the token axis by one matrix product: O(n^2) work and memory.

    Taps [2n - 1] and x [..., n, channels] give [..., n, channels] in the type of x.
    """
    return over_tokens(expand(taps.astype(x.dtype)), x)


def apply_blocked(taps: jax.Array, x: jax.Array) -> jax.Array:
    """`apply_direct` by matrix products alone, O(n (BAND + n / BAND)) work and O(n) memory.

    W is cut into blocks of BAND tokens, which depend on the difference of their indices alone. A
    discrete Fourier transform over the index of a block, of twice as many points as there are
    blocks, therefore leaves one product with a Toeplitz matrix [BAND, BAND] for each frequency. A
    complex number is a pair of real ones: products with [2 BAND, 2 BAND].
    """
    n = length_of(taps)
    blocks = -(-n // BAND)
    frequencies = blocks + 1
    transforms = _block_transforms(blocks)
    weights = _block_weights(taps, blocks, transforms, x.dtype)

    examples = x.shape[:-2]
    channels = x.shape[-1]
    padding = [(0, 0)] * len(examples) + [(0, blocks * BAND - n), (0, 0)]
    padded = jnp.pad(x, padding)
    by_block = padded.reshape(*examples, blocks, BAND * channels)
    z = jnp.einsum("fb,...bm->...fm", jnp.asarray(transforms.forwards, x.dtype), by_block)
    z = z.reshape(*examples, frequencies, 2 * BAND, channels)
    z = jax.vmap(nameless_over_tokens, in_axes=(0, -3), out_axes=-3)(weights, z)
    z = z.reshape(*examples, 2 * frequencies, BAND * channels)
    y = jnp.einsum("bf,...fm->...bm", jnp.asarray(transforms.backwards, x.dtype), z)
    y = y.reshape(padded.shape)
    return checkpoint_name(y[..., :n, :], NAME)


class _BlockTransforms(NamedTuple):
    """Discrete Fourier transforms over blocks, of twice as many points as there are blocks, with
    real and imaginary parts as rows of their own; there are blocks + 1 frequencies.

    Attributes:
        forwards: of blocks of tokens, [2 frequencies, blocks], one frequency after another.
        backwards: [blocks, 2 frequencies].
        of_taps: of W's blocks from the difference -blocks on, [2 frequencies, 2 blocks], all real
            parts first.
    """

    forwards: np.ndarray
    backwards: np.ndarray
    of_taps: np.ndarray


def _block_transforms(blocks: int) -> _BlockTransforms:
    points = 2 * blocks
    frequencies = np.arange(blocks + 1)[:, None]
    differences = np.arange(-blocks, blocks)
    turns = frequencies * differences % points
    angles = 2 * np.pi / points * turns
    cosines = np.cos(angles)
    sines = np.sin(angles)
    of_taps = np.concatenate([cosines, sines])
    # A block of tokens has an index from 0 on, and is turned the other way.
    waves = np.stack([cosines[:, blocks:], -sines[:, blocks:]], axis=1)
    forwards = waves.reshape(-1, blocks)
    # All but the first and the last frequency stand for their negative ones as well.
    counts = np.where(frequencies % blocks == 0, 1, 2) / points
    backwards = (counts.repeat(2, axis=0) * forwards).T
    return _BlockTransforms(forwards, backwards, of_taps)


def _block_weights(
    taps: jax.Array, blocks: int, transforms: _BlockTransforms, dtype: Any
) -> jax.Array:
    """W's matrix for each frequency, [frequencies, 2 BAND, 2 BAND], on the real and the imaginary
    parts of a block."""
    n = length_of(taps)
    precise = jnp.promote_types(dtype, jnp.float32)
    outside = blocks * BAND - n
    padded = jnp.pad(taps.astype(precise), (outside + 1, outside)).reshape(-1, BAND)
    # A block is two rows of these: its own offsets, and those of the block before.
    before = jnp.pad(padded, ((1, 0), (0, 0)))[:-1]
    taps_of_blocks = jnp.concatenate([before, padded], axis=1)[:, 1:]
    of_taps = jnp.asarray(transforms.of_taps, precise)
    spectrum = jnp.matmul(of_taps, taps_of_blocks, precision=jax.lax.Precision.HIGHEST)
    matrices = jax.vmap(functools.partial(in_bands, height=BAND))(spectrum.astype(dtype))
    real, imaginary = jnp.split(matrices, 2)
    return jnp.block([[real, -imaginary], [imaginary, real]])


def apply_fft(taps: jax.Array, x: jax.Array) -> jax.Array:
    """`apply_direct` by a circular convolution of at least 2n - 1 points: O(n log n) work, O(n)
    memory. The transform runs in float32 (float64 for float64)."""
    n = length_of(taps)
    points = 1 << (2 * n - 2).bit_length()
    precise = jnp.promote_types(x.dtype, jnp.float32)
    # Output i sums taps[n - 1 + j - i] x[j]: a convolution with the reversed taps, read from n - 1
    # on.
    reversed_taps = jnp.flip(taps).astype(precise)
    filter_hat = jnp.fft.rfft(reversed_taps, points)
    x_hat = jnp.fft.rfft(x.astype(precise), points, axis=-2)
    product = x_hat * filter_hat[:, None]
    y = jnp.fft.irfft(product, points, axis=-2)
    y = y[..., n - 1 : 2 * n - 1, :]
    return checkpoint_name(y.astype(x.dtype), NAME)


def past_only(taps: jax.Array) -> jax.Array:
    """Taps of the offsets 1 - n to 0, [..., n], to all taps [..., 2n - 1] of a matrix that is 0
    above its diagonal."""
    n = taps.shape[-1]
    padding = [(0, 0)] * (taps.ndim - 1) + [(0, n - 1)]
    return jnp.pad(taps, padding)


def rows(taps: jax.Array, first: jax.Array | int, count: int) -> jax.Array:
    """Rows [first, first + count) of the matrix of taps [2n - 1]: [count, n], at a cost of count
    n."""
    n = length_of(taps)
    if count == n:
        return expand(taps)
    starts = n - 1 - first - jnp.arange(count)
    return jax.vmap(lambda start: jax.lax.dynamic_slice(taps, (start,), (n,)))(starts)


def crop(taps: jax.Array, length: int) -> jax.Array:
    """The central taps: [..., 2n - 1] to [..., 2 length - 1], the upper-left [length, length]
    corner of the matrix. Raises ValueError if length exceeds n."""
    n = length_of(taps)
    if length > n:
        raise ValueError(f"cannot crop Toeplitz taps for {n} tokens to {length}")
    return taps[..., n - length : n + length - 1]


FORMS = {"direct": apply_direct, "blocked": apply_blocked, "fft": apply_fft}
