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
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models import sharding
from gmlp_flax.models.matmul import NAME, over_tokens, over_tokens_unnamed
from gmlp_flax.models.padding import pad_axis

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


def length_of(taps: Array) -> int:
    """The n of taps [..., 2n - 1]. Raises ValueError if their number is even."""
    count = taps.shape[-1] if taps.ndim else 0
    is_odd = count % 2 == 1
    if not is_odd:
        raise ValueError(
            f"Toeplitz taps have shape {taps.shape}: expected [2n - 1], an odd number of them"
        )
    return (count + 1) // 2


def expand(taps: Array) -> Array:
    """Taps [2n - 1] to the matrix [n, n].

    Neither this nor its transpose gathers or scatters. A TPU moves the matrix once in bands of BAND
    rows, and 6 to 30 times in one band of n rows. A CPU is faster with one band, and its transpose
    with many (docs/mixers.md).
    """
    n = length_of(taps)
    if n <= BAND:
        return in_bands(taps, n)
    return _expand(taps)


@jax.custom_jvp
def _expand(taps: Array) -> Array:
    n = length_of(taps)
    one_band = functools.partial(in_bands, height=n)
    many_bands = functools.partial(in_bands, height=BAND)
    return jax.lax.platform_dependent(taps, cpu=one_band, default=many_bands)


@_expand.defjvp
def _expand_jvp(primals, tangents):
    (taps,) = primals
    (d_taps,) = tangents
    weight = _expand(taps)
    d_weight = in_bands(d_taps, height=BAND)
    return weight, d_weight


def in_bands(taps: Array, height: int) -> Array:
    """`expand` in bands of `height` rows: [2n - 1] to [n, n].

    Row i of the matrix is taps[n - 1 - i : 2n - 1 - i]. `_shifted_rows` moves the taps one column to
    the right in each row. In a band, all rows therefore begin at the same column: at n - 1 in the
    first band, and `height` columns further to the left in each band after it.
    """
    n = length_of(taps)
    shifted = _shifted_rows(taps, height)  # [height, 2n - 1]
    bands = []
    for first in range(0, n, height):
        rows_left = n - first
        begin = n - 1 - first
        end = begin + n
        band = shifted[:rows_left, begin:end]
        bands.append(band)
    return jnp.concatenate(bands)


def _shifted_rows(taps: Array, height: int) -> Array:
    """Taps [2n - 1] in each of `height` rows, moved one column to the right from row to row:
    [height, 2n - 1]. `in_bands` reads none of the columns that the taps have left.

    The taps and a zero, repeated, are read in rows that are one entry shorter than they are. With
    the taps a, b, c and two rows, a b c 0 a b c 0 is read as a b c, 0 a b.
    """
    count = len(taps)
    with_zero = jnp.append(taps, 0)  # [2n]
    shape = (height, count + 1)
    copies = jnp.broadcast_to(with_zero, shape)
    repeated = copies.reshape(-1)
    entries = height * count
    read = repeated[:entries]
    return read.reshape(height, count)


def fastest_form(n: int) -> str:
    """The key of FORMS that is the fastest for n tokens on the platform that the program is
    compiled for."""
    most, beyond = FASTEST[sharding.platform()]
    return "direct" if n <= most else beyond


def apply_direct(taps: Array, x: Array) -> Array:
    """W x over the token axis by one matrix product: O(n^2) work and memory.

    Taps [2n - 1] and x [..., n, channels] give [..., n, channels] in the type of x.
    """
    rounded_taps = taps.astype(x.dtype)
    weight = expand(rounded_taps)  # [n, n]
    return over_tokens(weight, x)


def apply_blocked(taps: Array, x: Array) -> Array:
    """`apply_direct` by matrix products alone, O(n (BAND + n / BAND)) work and O(n) memory.

    W is cut into blocks [BAND, BAND], each of which depends only on its row of blocks less its
    column of blocks: W x is a convolution over blocks of tokens. A discrete Fourier transform over
    the index of a block, of twice as many points as there are blocks, turns it into one product with
    a matrix [BAND, BAND] for each frequency. Complex numbers are pairs of real ones, so that the
    products are with real matrices [2 BAND, 2 BAND].
    """
    n = length_of(taps)
    blocks = -(-n // BAND)
    transforms = _block_transforms(blocks)
    weights = _block_weights(taps, blocks, transforms, x.dtype)  # [frequencies, 2 BAND, 2 BAND]

    tokens = blocks * BAND
    padded = _pad_tokens(x, tokens)  # [..., blocks BAND, channels]
    spectrum = _to_frequencies(padded, transforms)  # [..., frequencies, 2 BAND, channels]
    product_of_frequencies = jax.vmap(over_tokens_unnamed, in_axes=(0, -3), out_axes=-3)
    mixed = product_of_frequencies(weights, spectrum)
    padded_y = _from_frequencies(mixed, transforms)  # [..., blocks BAND, channels]
    y = padded_y[..., :n, :]
    return checkpoint_name(y, NAME)


def _pad_tokens(x: Array, tokens: int) -> Array:
    """[..., n, channels] to [..., tokens, channels], with zeros after the n tokens."""
    n = x.shape[-2]
    added = tokens - n
    return pad_axis(x, -2, 0, added)


class _BlockTransforms(NamedTuple):
    """Discrete Fourier transforms over blocks, of twice as many points as there are blocks. The
    real and the imaginary part of a frequency are two rows; there are blocks + 1 frequencies, from
    0 to half the points.

    Attributes:
        forwards: transforms blocks of tokens, [2 frequencies, blocks]: each frequency's real part,
            then its imaginary part.
        backwards: the inverse of `forwards`, [blocks, 2 frequencies].
        taps: transforms W's blocks, by their column less their row from -blocks on, [2 frequencies,
            2 blocks]: the real parts of all frequencies, then the imaginary parts.
    """

    forwards: np.ndarray
    backwards: np.ndarray
    taps: np.ndarray


def _block_transforms(blocks: int) -> _BlockTransforms:
    angles = _angles(blocks)  # [frequencies, 2 blocks]
    cosines = np.cos(angles)
    sines = np.sin(angles)
    taps = np.concatenate([cosines, sines])
    # Blocks of tokens have indices from 0 on. They turn by exp(-i angle) and W's blocks by
    # exp(i angle), because W's differences are column less row, and not row less column.
    real = cosines[:, blocks:]
    imaginary = -sines[:, blocks:]
    waves = np.stack([real, imaginary], axis=1)  # [frequencies, 2, blocks]
    forwards = waves.reshape(-1, blocks)
    scales = _inverse_scales(blocks)
    scales_of_rows = scales.repeat(2)  # [2 frequencies]
    scaled = scales_of_rows[:, None] * forwards
    backwards = scaled.T
    return _BlockTransforms(forwards, backwards, taps)


def _angles(blocks: int) -> np.ndarray:
    """The angle of each frequency at each index of a block, in radians: [frequencies, 2 blocks],
    for the indices from -blocks on."""
    points = 2 * blocks
    frequencies = np.arange(blocks + 1)[:, None]
    indices = np.arange(-blocks, blocks)
    turns = frequencies * indices % points  # in parts of a circle of so many points
    angle_of_turn = 2 * np.pi / points
    return angle_of_turn * turns


def _inverse_scales(blocks: int) -> np.ndarray:
    """The weight of each frequency in the inverse transform, [frequencies]."""
    points = 2 * blocks
    frequencies = np.arange(blocks + 1)
    # A frequency counts twice, for itself and for its negative, whose value is the conjugate. 0 and
    # half the points are their own negatives.
    is_its_own_negative = frequencies % blocks == 0
    counts = np.where(is_its_own_negative, 1, 2)
    return counts / points


def _to_frequencies(x: Array, transforms: _BlockTransforms) -> Array:
    """The transform over blocks of tokens, [..., blocks BAND, channels] to [..., frequencies, 2
    BAND, channels]: the real parts of a frequency's tokens, then the imaginary ones."""
    *leading, _, channels = x.shape
    forwards = jnp.asarray(transforms.forwards, x.dtype)
    rows, blocks = forwards.shape
    numbers_of_block = BAND * channels
    shape_by_block = (*leading, blocks, numbers_of_block)
    by_block = x.reshape(shape_by_block)
    parts = jnp.einsum("fb,...bm->...fm", forwards, by_block)  # [..., 2 frequencies, BAND channels]
    frequencies = rows // 2
    shape_by_frequency = (*leading, frequencies, 2 * BAND, channels)
    return parts.reshape(shape_by_frequency)


def _from_frequencies(z: Array, transforms: _BlockTransforms) -> Array:
    """The inverse of `_to_frequencies`."""
    *leading, frequencies, _, channels = z.shape
    shape_by_part = (*leading, 2 * frequencies, BAND * channels)
    parts = z.reshape(shape_by_part)
    backwards = jnp.asarray(transforms.backwards, z.dtype)
    by_block = jnp.einsum("bf,...fm->...bm", backwards, parts)  # [..., blocks, BAND channels]
    blocks = len(backwards)
    shape_by_token = (*leading, blocks * BAND, channels)
    return by_block.reshape(shape_by_token)


def _block_weights(taps: Array, blocks: int, transforms: _BlockTransforms, dtype: Any) -> Array:
    """W's matrix for each frequency in the given type, [frequencies, 2 BAND, 2 BAND], which
    multiplies the real parts of a block of tokens, followed by the imaginary parts."""
    precise = jnp.promote_types(dtype, jnp.float32)
    precise_taps = taps.astype(precise)
    taps_of_blocks = _taps_of_blocks(precise_taps, blocks)  # [2 blocks, 2 BAND - 1]
    transform = jnp.asarray(transforms.taps, precise)
    highest = jax.lax.Precision.HIGHEST
    spectrum = jnp.matmul(transform, taps_of_blocks, precision=highest)
    rounded = spectrum.astype(dtype)  # [2 frequencies, 2 BAND - 1]
    expand_block = functools.partial(in_bands, height=BAND)
    expand_each = jax.vmap(expand_block)
    matrices = expand_each(rounded)  # [2 frequencies, BAND, BAND]
    real, imaginary = jnp.split(matrices, 2)  # each [frequencies, BAND, BAND]
    # (real + i imaginary) (x + i y), as a product of real matrices
    to_real = [real, -imaginary]
    to_imaginary = [imaginary, real]
    return jnp.block([to_real, to_imaginary])


def _taps_of_blocks(taps: Array, blocks: int) -> Array:
    """Taps [2n - 1] to the taps of W's blocks, each a Toeplitz matrix [BAND, BAND]: [2 blocks, 2
    BAND - 1], by their column less their row from -blocks on."""
    tokens = blocks * BAND
    added = tokens - length_of(taps)
    # The diagonal, tap n - 1, becomes entry blocks BAND: the first of the row of difference 0.
    padded = jnp.pad(taps, (added + 1, added))
    rows_of_taps = padded.reshape(-1, BAND)  # [2 blocks, BAND]
    # The offsets of a block's pairs of tokens are two rows: those below its diagonal are in the row
    # of the difference before, the others in its own.
    with_zeros = jnp.pad(rows_of_taps, ((1, 0), (0, 0)))
    rows_before = with_zeros[:-1]
    both_rows = jnp.concatenate([rows_before, rows_of_taps], axis=1)  # [2 blocks, 2 BAND]
    return both_rows[:, 1:]


def apply_fft(taps: Array, x: Array) -> Array:
    """`apply_direct` by a circular convolution of at least 2n - 1 points: O(n log n) work, O(n)
    memory. The transform runs in float32 (float64 for float64), and every output is rounded by
    terms of all tokens, later ones included."""
    n = length_of(taps)
    last = 2 * n - 2  # index of the last point that is needed
    points = 1 << last.bit_length()
    precise = jnp.promote_types(x.dtype, jnp.float32)
    # Output i is the sum of taps[n - 1 + j - i] x[j] over j. With the reversed taps it is entry
    # n - 1 + i of their convolution with x.
    reversed_taps = jnp.flip(taps)
    precise_taps = reversed_taps.astype(precise)
    filter_hat = jnp.fft.rfft(precise_taps, points)  # [points / 2 + 1]
    precise_x = x.astype(precise)
    x_hat = jnp.fft.rfft(precise_x, points, axis=-2)  # [..., points / 2 + 1, channels]
    filter_of_channels = filter_hat[:, None]
    product = x_hat * filter_of_channels
    convolution = jnp.fft.irfft(product, points, axis=-2)  # [..., points, channels]
    first = n - 1
    stop = first + n
    y = convolution[..., first:stop, :]
    rounded = y.astype(x.dtype)
    return checkpoint_name(rounded, NAME)


def pad_future(taps: Array) -> Array:
    """Taps of the offsets 1 - n to 0, [..., n], to all taps [..., 2n - 1] of a matrix that is 0
    above its diagonal."""
    n = taps.shape[-1]
    future = n - 1  # offsets above 0
    return pad_axis(taps, -1, 0, future)


def rows(taps: Array, first: Array | int, count: int) -> Array:
    """Rows [first, first + count) of the matrix of taps [2n - 1]: [count, n], in O(count n) work."""
    n = length_of(taps)
    if count == n:
        return expand(taps)

    def row(start: Array) -> Array:
        return jax.lax.dynamic_slice(taps, (start,), (n,))

    start_of_first = n - 1 - first
    numbers = jnp.arange(count)
    starts = start_of_first - numbers
    take_rows = jax.vmap(row)
    return take_rows(starts)


def crop(taps: Array, length: int) -> Array:
    """The central taps: [..., 2n - 1] to [..., 2 length - 1], the upper-left [length, length]
    corner of the matrix. Raises ValueError if length exceeds n."""
    n = length_of(taps)
    if length > n:
        raise ValueError(f"cannot crop Toeplitz taps for {n} tokens to {length}")
    first = n - length
    stop = n + length - 1
    return taps[..., first:stop]


FORMS = {"direct": apply_direct, "blocked": apply_blocked, "fft": apply_fft}
