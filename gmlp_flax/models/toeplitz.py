"""Toeplitz matrices as pure functions.

A Toeplitz matrix W [n, n] is given by 2n - 1 taps with W[i, j] = taps[n - 1 + j - i]: the same
filter at every position (paper, section 4.1 and appendix C). Negative offsets j - i come first, the
middle tap is the diagonal.
"""

import functools

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
    one, many = (functools.partial(in_bands, height=height) for height in (length_of(taps), BAND))
    return jax.lax.platform_dependent(taps, cpu=one, default=many)


@_expand.defjvp
def _expand_jvp(primals, tangents):
    return _expand(*primals), in_bands(*tangents, height=BAND)


def in_bands(taps: jax.Array, height: int) -> jax.Array:
    """`expand` in bands of `height` rows.

    The taps followed by a zero, repeated and read in rows of 2n - 1, shift by one column per row: a
    band of rows. The next band is read from the same rows, `height` columns further to the left.
    """
    n = length_of(taps)
    repeated = jnp.broadcast_to(jnp.append(taps, 0), (height, 2 * n)).reshape(-1)
    band = repeated[: height * (2 * n - 1)].reshape(height, 2 * n - 1)
    return jnp.concatenate(
        [band[: n - first, n - 1 - first : 2 * n - 1 - first] for first in range(0, n, height)]
    )


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
    n, channels, precise = length_of(taps), x.shape[-1], jnp.promote_types(x.dtype, jnp.float32)
    blocks, examples = -(-n // BAND), x.shape[:-2]
    forwards, backwards, of_taps = (
        jnp.asarray(matrix, precise) for matrix in _block_transforms(blocks)
    )
    padded = jnp.pad(taps.astype(precise), blocks * BAND - n + np.array([1, 0])).reshape(-1, BAND)
    diagonals = jnp.concatenate([jnp.pad(padded, [(1, 0), (0, 0)])[:-1], padded], axis=1)[:, 1:]
    spectrum = jnp.matmul(of_taps, diagonals, precision=jax.lax.Precision.HIGHEST).astype(x.dtype)
    real, imaginary = jnp.split(jax.vmap(functools.partial(in_bands, height=BAND))(spectrum), 2)
    weights = jnp.block([[real, -imaginary], [imaginary, real]])  # [frequencies, 2 BAND, 2 BAND]

    x = jnp.pad(x, [*[(0, 0)] * len(examples), (0, blocks * BAND - n), (0, 0)])
    z = jnp.einsum("fb,...bm->...fm", forwards.astype(x.dtype), x.reshape(*examples, blocks, -1))
    z = z.reshape(*examples, blocks + 1, 2 * BAND, channels)
    z = jax.vmap(nameless_over_tokens, in_axes=(0, -3), out_axes=-3)(weights, z).reshape(
        *examples, 2 * blocks + 2, -1
    )
    y = jnp.einsum("bf,...fm->...bm", backwards.astype(x.dtype), z).reshape(*x.shape)
    return checkpoint_name(y[..., :n, :], NAME)


def _block_transforms(blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Discrete Fourier transforms of 2 `blocks` points, real and imaginary parts as rows of their
    own: of blocks of tokens, [2 (blocks + 1), blocks], one frequency after another; back, [blocks,
    2 (blocks + 1)]; and of W's blocks from the difference -blocks on, [2 (blocks + 1), 2 blocks],
    all real parts first."""
    frequencies, points = np.arange(blocks + 1)[:, None], 2 * blocks
    angles = 2 * np.pi / points * (frequencies * np.arange(-blocks, blocks) % points)
    waves = np.stack([np.cos(angles), -np.sin(angles)])
    forwards = waves[..., blocks:].swapaxes(0, 1).reshape(-1, blocks)
    # for the negative frequencies
    twice = np.where(frequencies % blocks == 0, 1, 2).repeat(2, axis=0) / points
    return forwards, (twice * forwards).T, np.concatenate([waves[0], -waves[1]])


def apply_fft(taps: jax.Array, x: jax.Array) -> jax.Array:
    """`apply_direct` by a circular convolution of at least 2n - 1 points: O(n log n) work, O(n)
    memory. The transform runs in float32 (float64 for float64)."""
    n = length_of(taps)
    points = 1 << (2 * n - 2).bit_length()
    precise = jnp.promote_types(x.dtype, jnp.float32)
    # Output i sums taps[n - 1 + j - i] x[j]: a convolution with the reversed taps, read from n - 1
    # on.
    filter_hat = jnp.fft.rfft(jnp.flip(taps).astype(precise), points)
    x_hat = jnp.fft.rfft(x.astype(precise), points, axis=-2)
    y = jnp.fft.irfft(x_hat * filter_hat[:, None], points, axis=-2)
    return checkpoint_name(y[..., n - 1 : 2 * n - 1, :].astype(x.dtype), NAME)


def past_only(taps: jax.Array) -> jax.Array:
    """Taps of the offsets 1 - n to 0, [..., n], to all taps [..., 2n - 1] of a matrix that is 0
    above its diagonal."""
    return jnp.pad(taps, [*[(0, 0)] * (taps.ndim - 1), (0, taps.shape[-1] - 1)])


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
