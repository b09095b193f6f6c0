"""Diagonal state spaces as pure functions of real numbers (S4D, arXiv 2206.11893).

A state space has N complex modes z_m with weights w_m. It reads a channel u and gives
y[i] = Re sum_m w_m x_m[i], with states x_m[i] = exp(z_m) x_m[i - 1] + u[i]. That is the causal
convolution of u with the kernel k[l] = Re sum_m w_m exp(l z_m).

A complex number is a pair of real ones: exporters and TPUs have no or slow complex numbers.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gmlp_flax.models import sharding, toeplitz

CHUNK = 128  # tokens that one step of `scan` reads


class Complex(NamedTuple):
    """Complex numbers as two arrays of one shape."""

    real: Array
    imag: Array


class Modes(NamedTuple):
    """Discretised diagonal state spaces.

    Attributes:
        exponents: z, [spaces, N]; the real parts are negative.
        weights: w, [spaces, N].
    """

    exponents: Complex
    weights: Complex


def times(a: Complex, b: Complex) -> Complex:
    """The product a b."""
    real_of_reals = a.real * b.real
    real_of_imags = a.imag * b.imag
    real = real_of_reals - real_of_imags
    left_imag = a.real * b.imag
    right_imag = a.imag * b.real
    imag = left_imag + right_imag
    return Complex(real, imag)


def over(a: Complex, b: Complex) -> Complex:
    """The quotient a / b."""
    square = jnp.square(b.real) + jnp.square(b.imag)  # |b|^2
    conjugate = Complex(b.real, -b.imag)
    product = times(a, conjugate)
    real = product.real / square
    imag = product.imag / square
    return Complex(real, imag)


def powers(exponents: Complex, counts: Array) -> Complex:
    """exp(count z): z [spaces, N] and counts [k] to [spaces, k, N]."""
    counts = counts[:, None].astype(exponents.real.dtype)
    decays = exponents.real[:, None] * counts
    angles = exponents.imag[:, None] * counts
    sizes = jnp.exp(decays)
    real = sizes * jnp.cos(angles)
    imag = sizes * jnp.sin(angles)
    return Complex(real, imag)


def discretize(a: Complex, c: Complex, step: Array) -> Modes:
    """The modes of x' = a x + u, y = Re c x, whose input is held for a step (zero-order hold).

    The exponents are step a, the weights c (exp(step a) - 1) / a.

    Args:
        a: [spaces, N].
        c: [spaces, N].
        step: [spaces].
    """
    real = step[:, None] * a.real
    imag = step[:, None] * a.imag
    exponents = Complex(real, imag)
    held = over(_expm1(exponents), a)
    weights = times(c, held)
    return Modes(exponents, weights)


def _expm1(z: Complex) -> Complex:
    """exp(z) - 1, without the rounding of a difference of equal numbers."""
    half_sine = jnp.sin(z.imag / 2)
    minus_cosine = 2 * jnp.square(half_sine)  # 1 - cos
    growth = jnp.expm1(z.real)
    real = growth * jnp.cos(z.imag) - minus_cosine
    size = jnp.exp(z.real)
    imag = size * jnp.sin(z.imag)
    return Complex(real, imag)


def legs_modes(count: int) -> np.ndarray:
    """The eigenvalues of the normal part of HiPPO-LegS, complex [count] (S4D-LegS): real parts of
    -1/2, and pairs of opposite imaginary parts."""
    numbers = np.arange(count)
    roots = np.sqrt(1 + 2 * numbers)
    products = np.outer(roots, roots)
    lower = np.tril(products, -1)
    # LegS plus the rank-one term that makes it normal is -1/2 plus an antisymmetric matrix
    antisymmetric = (lower.T - lower) / 2
    hermitian = -1j * antisymmetric
    imaginary = np.linalg.eigvalsh(hermitian)
    return -0.5 + 1j * imaginary


def kernel(modes: Modes, tokens: int) -> Array:
    """k [spaces, tokens] from lag 0 on, in O(tokens) memory: a lag is a multiple of a stride plus
    a rest, and so is its power a product."""
    stride = 1 << (tokens.bit_length() // 2)
    multiples = -(-tokens // stride)
    coarse_lags = stride * jnp.arange(multiples)
    coarse = _weighted_powers(modes, coarse_lags)  # [spaces, multiples, N]
    fine_lags = jnp.arange(stride)
    fine = powers(modes.exponents, fine_lags)  # [spaces, stride, N]
    by_stride = _real_product("sln,srn->slr", coarse, fine)
    spaces = len(by_stride)
    by_lag = by_stride.reshape(spaces, -1)
    return by_lag[:, :tokens]


def _weighted_powers(modes: Modes, lags: Array) -> Complex:
    """w exp(lag z), [spaces, lags, N]."""
    decays = powers(modes.exponents, lags)
    real = modes.weights.real[:, None]
    imag = modes.weights.imag[:, None]
    return times(Complex(real, imag), decays)


def _real_product(axes: str, a: Complex, b: Complex) -> Array:
    """The real part of an einsum of complex arrays."""
    product = functools.partial(jnp.einsum, axes, precision=jax.lax.Precision.HIGHEST)
    of_reals = product(a.real, b.real)
    of_imags = product(a.imag, b.imag)
    return of_reals - of_imags


def convolve(kernels: Array, u: Array, reverse: bool = False) -> Array:
    """The convolution of each channel with the kernel of its space, in the fastest form of a
    Toeplitz product. By FFT it costs O(n log n), and its rounding depends on later tokens.

    Args:
        kernels: [spaces, tokens], from lag 0 on.
        u: [batch, tokens, channels]; equal numbers of neighbouring channels share a space.
        reverse: whether an output sums over itself and later tokens, not earlier ones.
    """
    spaces, tokens = kernels.shape
    form = toeplitz.fastest_form(tokens)
    if spaces > 1 and sharding.platform() != "any":
        form = "fft"  # the other forms have a matrix for each space
    return _apply(form, kernels, u, reverse)


def _apply(form: str, kernels: Array, u: Array, reverse: bool = False) -> Array:
    """`convolve` in a form of `toeplitz.FORMS`."""
    past = jnp.flip(kernels, axis=-1)  # the largest lag first
    taps = toeplitz.pad_future(past)  # [spaces, 2 tokens - 1]
    if reverse:
        taps = jnp.flip(taps, axis=-1)
    apply_taps = toeplitz.FORMS[form]
    if len(kernels) == 1:
        return apply_taps(taps[0], u)
    by_space = _by_space(u, len(kernels))
    apply_each = jax.vmap(apply_taps, in_axes=(0, 2), out_axes=2)
    mixed = apply_each(taps, by_space)
    return mixed.reshape(u.shape)


def _by_space(u: Array, spaces: int) -> Array:
    """[batch, tokens, channels] to [batch, tokens, spaces, channels of a space]."""
    batch, tokens, _ = u.shape
    return u.reshape(batch, tokens, spaces, -1)


def first_state(modes: Modes, u: Array) -> Complex:
    """The state before the first token, [batch, channels, N]."""
    batch, _, channels = u.shape
    _, modes_of_space = modes.exponents.real.shape
    shape = (batch, channels, modes_of_space)
    zeros = jnp.zeros(shape, modes.weights.real.dtype)
    return Complex(zeros, zeros)


def extend(
    modes: Modes, kernels: Array, u: Array, state: Complex, count: Array | int
) -> tuple[Array, Complex]:
    """Reads further tokens: the outputs, and the state after the first `count` of them.

    Args:
        modes: of the state spaces.
        kernels: [spaces, tokens], from lag 0 on; they need not be those of the modes at lag 0.
        u: [batch, tokens, channels].
        state: after the tokens before, [batch, channels, N].
        count: at least 1; later tokens are padding.

    Returns:
        [batch, tokens, channels] in the type of u, and the state. No output depends on a later
        token.
    """
    spaces, tokens = kernels.shape
    within = _apply("direct", kernels, u)
    from_before = _response(modes, tokens, state, spaces)
    from_before = from_before.reshape(u.shape)
    y = within + from_before.astype(u.dtype)
    new_state = _advance(modes, u, state, count)
    return y, new_state


def _response(modes: Modes, tokens: int, state: Complex, spaces: int) -> Array:
    """What a state adds to the next tokens, [batch, tokens, spaces, channels of a space]."""
    lags = 1 + jnp.arange(tokens)
    weighted = _weighted_powers(modes, lags)  # [spaces, tokens, N]
    by_space = _split_state(state, spaces)
    return _real_product("stn,bscn->btsc", weighted, by_space)


def _split_state(state: Complex, spaces: int) -> Complex:
    """[batch, channels, N] to [batch, spaces, channels of a space, N]."""
    batch, _, modes_of_space = state.real.shape
    shape = (batch, spaces, -1, modes_of_space)
    real = state.real.reshape(shape)
    imag = state.imag.reshape(shape)
    return Complex(real, imag)


def _advance(modes: Modes, u: Array, state: Complex, count: Array | int) -> Complex:
    """The state after the first `count` tokens, [batch, channels, N]."""
    spaces = len(modes.exponents.real)
    _, tokens, _ = u.shape
    weights = _weights_of_read(modes, tokens, count)
    precise = u.astype(weights.real.dtype)
    by_space = _by_space(precise, spaces)
    all_tokens = jnp.asarray(count)[None]
    decay = powers(modes.exponents, all_tokens)  # [spaces, 1, N]
    states_of_spaces = _split_state(state, spaces)
    carried = times(states_of_spaces, decay)
    read_real = jnp.einsum("stn,btsc->bscn", weights.real, by_space)
    real = carried.real + read_real
    read_imag = jnp.einsum("stn,btsc->bscn", weights.imag, by_space)
    imag = carried.imag + read_imag
    shape = state.real.shape
    return Complex(real.reshape(shape), imag.reshape(shape))


def _weights_of_read(modes: Modes, tokens: int, count: Array | int) -> Complex:
    """What is left of each token after the first `count` of them: exp(lag z), and 0 for the later
    ones, [spaces, tokens, N]."""
    last = count - 1
    lags = last - jnp.arange(tokens)
    is_read = (lags >= 0)[:, None]
    past_lags = jnp.maximum(lags, 0)
    decays = powers(modes.exponents, past_lags)
    zeros = jnp.zeros_like(decays.real)
    real = jnp.where(is_read, decays.real, zeros)
    imag = jnp.where(is_read, decays.imag, zeros)
    return Complex(real, imag)


def scan(modes: Modes, kernels: Array, u: Array) -> Array:
    """The convolution of `convolve` in O(tokens) time and memory, CHUNK tokens after another. No
    output depends on a later token, not by its rounding either.

    Args:
        modes: of the state spaces.
        kernels: [spaces, tokens], from lag 0 on.
        u: [batch, tokens, channels].
    """
    batch, tokens, channels = u.shape
    if tokens <= CHUNK:
        return _apply("direct", kernels, u)
    by_chunk = _in_chunks(u)
    first_kernels = kernels[:, :CHUNK]

    def read(state: Complex, chunk: Array) -> tuple[Complex, Array]:
        y, new_state = extend(modes, first_kernels, chunk, state, CHUNK)
        return new_state, y

    fresh_state = first_state(modes, u)
    _, outputs = jax.lax.scan(read, fresh_state, by_chunk)
    chunks_of_examples = outputs.swapaxes(0, 1)  # [batch, chunks, CHUNK, channels]
    whole = chunks_of_examples.reshape(batch, -1, channels)
    return whole[:, :tokens]


def _in_chunks(u: Array) -> Array:
    """[batch, tokens, channels] to [chunks, batch, CHUNK, channels]; zeros follow the tokens."""
    batch, tokens, channels = u.shape
    chunks = -(-tokens // CHUNK)
    added = chunks * CHUNK - tokens
    padded = jnp.pad(u, ((0, 0), (0, added), (0, 0)))
    chunks_of_examples = padded.reshape(batch, chunks, CHUNK, channels)
    return chunks_of_examples.swapaxes(0, 1)
