"""Diagonal state spaces as pure functions of real numbers (S4D, arXiv 2206.11893).

A state space has N complex modes z_m with weights w_m. It reads a channel u and gives
y[i] = Re sum_m w_m x_m[i], with states x_m[i] = exp(z_m) x_m[i - 1] + u[i]. That is the causal
convolution of u with the kernel k[l] = Re sum_m w_m exp(l z_m).

Complex numbers are pairs of real ones (`Complex`), because exporters have no complex numbers and
TPUs have slow ones.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gmlp_flax.models import sharding, toeplitz
from gmlp_flax.models.recurrences import chunks as chunks_lib

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
    square_of_real = jnp.square(b.real)
    square_of_imag = jnp.square(b.imag)
    square = square_of_real + square_of_imag  # |b|^2
    conjugate = Complex(b.real, -b.imag)
    product = times(a, conjugate)
    real = product.real / square
    imag = product.imag / square
    return Complex(real, imag)


def scale(z: Complex, factor: Array) -> Complex:
    """factor z, for a real factor."""
    real = factor * z.real
    imag = factor * z.imag
    return Complex(real, imag)


def exp(z: Complex) -> Complex:
    """exp(z), from its absolute value and its angle."""
    size = jnp.exp(z.real)
    cosine = jnp.cos(z.imag)
    real = size * cosine
    sine = jnp.sin(z.imag)
    imag = size * sine
    return Complex(real, imag)


def powers(exponents: Complex, counts: Array) -> Complex:
    """exp(count z): z [spaces, N] and counts [k] to [spaces, k, N]."""
    counts_of_rows = counts[:, None]  # [k, 1]
    factors = counts_of_rows.astype(exponents.real.dtype)
    exponents_of_counts = _for_counts(exponents)
    multiples = scale(exponents_of_counts, factors)
    return exp(multiples)


def _for_counts(z: Complex) -> Complex:
    """[spaces, N] to [spaces, 1, N], to be broadcast over counts or lags."""
    real = z.real[:, None]
    imag = z.imag[:, None]
    return Complex(real, imag)


def discretize(a: Complex, c: Complex, step: Array) -> Modes:
    """The modes of x' = a x + u, y = Re c x, whose input is held for a step (zero-order hold).

    The exponents are step a, the weights c (exp(step a) - 1) / a.

    Args:
        a: [spaces, N].
        c: [spaces, N].
        step: the time between two tokens, [spaces].
    """
    steps = step[:, None]  # [spaces, 1]
    exponents = scale(a, steps)
    growth = _expm1(exponents)
    held = over(growth, a)
    weights = times(c, held)
    return Modes(exponents, weights)


def _expm1(z: Complex) -> Complex:
    """exp(z) - 1, precise near z = 0, where the difference of two nearly equal numbers is not.

    With z = a + i b, the real part exp(a) cos(b) - 1 is expm1(a) cos(b) - (1 - cos(b)), and
    1 - cos(b) is 2 sin(b / 2)^2.
    """
    half_angle = z.imag / 2
    half_sine = jnp.sin(half_angle)
    square = jnp.square(half_sine)
    minus_cosine = 2 * square  # 1 - cos(b)
    growth = jnp.expm1(z.real)
    cosine = jnp.cos(z.imag)
    grown_cosine = growth * cosine
    real = grown_cosine - minus_cosine
    size = jnp.exp(z.real)
    sine = jnp.sin(z.imag)
    imag = size * sine
    return Complex(real, imag)


def legs_modes(count: int) -> np.ndarray:
    """The eigenvalues of the normal part of HiPPO-LegS, complex [count] (S4D-LegS): real parts of
    -1/2, and pairs of opposite imaginary parts."""
    numbers = np.arange(count)
    roots = np.sqrt(1 + 2 * numbers)
    products = np.outer(roots, roots)
    lower = np.tril(products, -1)
    # LegS plus the rank-one term that makes it normal is -1/2 plus an antisymmetric matrix
    difference = lower.T - lower
    antisymmetric = difference / 2
    hermitian = -1j * antisymmetric
    imaginary = np.linalg.eigvalsh(hermitian)
    return -0.5 + 1j * imaginary


def kernel(modes: Modes, tokens: int) -> Array:
    """k[l] = Re sum_m w_m exp(l z_m) of the lags from 0 on, [spaces, tokens], in O(tokens) memory.

    A lag is a multiple of a stride plus a remainder below the stride: l = s c + r. exp(l z) is
    therefore exp(s c z) exp(r z), and the sum over the modes is a matrix product of the powers of
    all multiples with those of all remainders. With a stride near sqrt(tokens) both have few rows.
    """
    half_of_bits = tokens.bit_length() // 2
    stride = 1 << half_of_bits
    multiples = -(-tokens // stride)
    coarse_lags = stride * jnp.arange(multiples)
    coarse = _weighted_powers(modes, coarse_lags)  # [spaces, multiples, N]
    remainders = jnp.arange(stride)
    fine = powers(modes.exponents, remainders)  # [spaces, stride, N]
    by_multiple = _real_product("sln,srn->slr", coarse, fine)  # [spaces, multiples, stride]
    spaces = len(by_multiple)
    by_lag = by_multiple.reshape(spaces, -1)
    return by_lag[:, :tokens]


def _weighted_powers(modes: Modes, lags: Array) -> Complex:
    """w exp(lag z), [spaces, lags, N]."""
    decays = powers(modes.exponents, lags)
    weights_of_lags = _for_counts(modes.weights)
    return times(weights_of_lags, decays)


def _real_product(axes: str, a: Complex, b: Complex) -> Array:
    """The real part of the einsum `axes` of two complex arrays."""
    highest = jax.lax.Precision.HIGHEST
    product = functools.partial(jnp.einsum, axes, precision=highest)
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

    Returns:
        [batch, tokens, channels] in the type of u.
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
    batch, tokens, channels = u.shape
    channels_of_space = channels // spaces
    return u.reshape(batch, tokens, spaces, channels_of_space)


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
    """Reads further tokens of a text whose earlier tokens are in the state.

    Args:
        modes: of the state spaces.
        kernels: [spaces, tokens], from lag 0 on. At lag 0 they may differ from the kernels of the
            modes, by a skip connection.
        u: [batch, tokens, channels].
        state: after the tokens before, [batch, channels, N].
        count: number of tokens that are not padding, at least 1. Padding follows them.

    Returns:
        The outputs [batch, tokens, channels] in the type of u, none of which depends on a later
        token; and the state after the first `count` tokens.
    """
    spaces, tokens = kernels.shape
    within = _apply("direct", kernels, u)
    from_before = _response(modes, tokens, state, spaces)
    from_before = from_before.reshape(u.shape)
    from_before = from_before.astype(u.dtype)
    y = within + from_before
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

    def split(part: Array) -> Array:
        return part.reshape(shape)

    return jax.tree.map(split, state)


def _advance(modes: Modes, u: Array, state: Complex, count: Array | int) -> Complex:
    """The state after the first `count` tokens: exp(count z) times the state before them, plus
    exp(lag z) times each token, [batch, channels, N]."""
    spaces = len(modes.exponents.real)
    _, tokens, _ = u.shape
    weights = _token_weights(modes, tokens, count)
    precise = u.astype(weights.real.dtype)
    by_space = _by_space(precise, spaces)
    count = jnp.asarray(count)
    one_count = count[None]
    decay = powers(modes.exponents, one_count)  # [spaces, 1, N]
    states_of_spaces = _split_state(state, spaces)
    carried = times(states_of_spaces, decay)  # [batch, spaces, channels of a space, N]

    def advance(carried_part: Array, weights_part: Array) -> Array:
        """The real or the imaginary part of the new state."""
        added = jnp.einsum("stn,btsc->bscn", weights_part, by_space)
        return carried_part + added

    def join_spaces(part: Array) -> Array:
        return part.reshape(state.real.shape)

    advanced = jax.tree.map(advance, carried, weights)
    return jax.tree.map(join_spaces, advanced)


def _token_weights(modes: Modes, tokens: int, count: Array | int) -> Complex:
    """The weight of each token in the state after the first `count` of them: exp(lag z), and 0 for
    later tokens, [spaces, tokens, N]."""
    last = count - 1
    positions = jnp.arange(tokens)
    lags = last - positions
    is_past = lags >= 0
    is_read = is_past[:, None]  # [tokens, 1]
    past_lags = jnp.maximum(lags, 0)
    decays = powers(modes.exponents, past_lags)
    zeros = jnp.zeros_like(decays.real)

    def hide_later(part: Array) -> Array:
        return jnp.where(is_read, part, zeros)

    return jax.tree.map(hide_later, decays)


def scan(modes: Modes, kernels: Array, u: Array) -> Array:
    """The convolution of `convolve`, one chunk of CHUNK tokens after another, in O(tokens) time and
    memory. No output depends on a later token, not even by its rounding.

    Args:
        modes: of the state spaces.
        kernels: [spaces, tokens], from lag 0 on.
        u: [batch, tokens, channels].

    Returns:
        [batch, tokens, channels] in the type of u.
    """
    tokens = u.shape[1]
    if tokens <= CHUNK:
        return _apply("direct", kernels, u)
    chunks_of_examples = chunks_lib.split(u, CHUNK, axis=1)  # [batch, chunks, CHUNK, channels]
    by_chunk = chunks_of_examples.swapaxes(0, 1)
    first_kernels = kernels[:, :CHUNK]

    def read(state: Complex, chunk: Array) -> tuple[Complex, Array]:
        y, new_state = extend(modes, first_kernels, chunk, state, CHUNK)
        return new_state, y

    fresh_state = first_state(modes, u)
    _, outputs = jax.lax.scan(read, fresh_state, by_chunk)
    outputs_of_examples = outputs.swapaxes(0, 1)  # [batch, chunks, CHUNK, channels]
    return chunks_lib.join(outputs_of_examples, tokens, axis=1)
