"""Diagonal state spaces: their kernels, convolutions and scans against loops over complex
numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from gmlp_flax.models.recurrences import state_space
from gmlp_flax.models.recurrences.state_space import CHUNK, Complex, Modes
from tests.models.reference import in_float64, largest_array, normal, quick_jit


def modes_of(spaces=2, count=4, seed=0):
    """Decaying modes."""
    random = np.random.default_rng(seed)
    shape = (spaces, count)
    decays = -random.uniform(0.01, 0.5, shape)
    frequencies = random.uniform(-3, 3, shape)
    exponents = Complex(decays, frequencies)
    real = random.normal(size=shape)
    imaginary = random.normal(size=shape)
    modes = Modes(exponents, Complex(real, imaginary))
    return jax.tree.map(jnp.asarray, modes)


def numbers(z):
    """numpy's complex numbers."""
    real = np.asarray(z.real)
    imaginary = np.asarray(z.imag)
    return real + 1j * imaginary


def parts(z):
    return Complex(z.real, z.imag)


def kernel_by_hand(modes, tokens):
    """Lag by lag: [spaces, tokens]."""
    z = numbers(modes.exponents)
    w = numbers(modes.weights)
    lags = []
    for lag in range(tokens):
        terms = w * np.exp(lag * z)
        totals = terms.sum(axis=1)
        lags.append(totals.real)
    return np.stack(lags, axis=1)


def convolved_by_hand(kernels, u):
    """Sum by sum; neighbouring channels share a kernel."""
    outputs = np.zeros_like(u)
    _, tokens, channels = u.shape
    channels_of_space = channels // len(kernels)
    for channel in range(channels):
        kernel = kernels[channel // channels_of_space]
        for i in range(tokens):
            for j in range(i + 1):
                weight = kernel[i - j]
                outputs[:, i, channel] += weight * u[:, j, channel]
    return outputs


@pytest.mark.parametrize("tokens", [1, 2, 5, 64, 300])
@in_float64
def test_kernels_agree_with_complex_numbers(tokens):
    modes = modes_of()
    kernel = state_space.kernel(modes, tokens)
    expected = kernel_by_hand(modes, tokens)
    assert_allclose(kernel, expected, atol=1e-11)


def test_kernels_of_many_spaces_take_little_memory():
    """Not modes x tokens for each."""
    modes = modes_of(spaces=8, count=64)
    largest = largest_array(lambda modes: state_space.kernel(modes, 4096), modes)
    assert largest <= 8 * 64 * 128


@in_float64
def test_input_is_held_for_a_step():
    """w = c (exp(step a) - 1) / a, and its limit c step where a is small."""
    a = np.array([[-0.5 + 3j, -1e-4 + 0j]])
    outputs = [1 + 2j, 0.5 - 1j]
    c = np.array([outputs])
    step = 0.1
    steps = np.array([step])
    modes = state_space.discretize(parts(a), parts(c), steps)
    exponents = step * a
    held = np.expm1(exponents) / a
    assert_allclose(numbers(modes.exponents), exponents, rtol=1e-12)
    weights = numbers(modes.weights)
    assert_allclose(weights, c * held, rtol=1e-10)
    limit = step * c[0, 1]
    slow_weight = weights[0, 1]
    assert slow_weight == pytest.approx(limit, rel=1e-4)


def test_small_exponents_keep_their_digits_in_float32():
    a = np.array([[-1e-4 + 1e-5j]], np.complex64)
    c = np.ones((1, 1), np.complex64)
    step = np.array([0.01], np.float32)
    modes = state_space.discretize(parts(a), parts(c), step)
    [[weight]] = numbers(modes.weights)
    assert weight == pytest.approx(0.01, rel=1e-5)


def test_two_modes_are_those_of_s4d():
    """S4D, section 4: -1/2 +- i sqrt(3) / 2."""
    modes = state_space.legs_modes(2)
    frequencies = np.sort(modes.imag)
    frequency = math.sqrt(3) / 2
    assert_allclose(modes.real, -0.5)
    assert_allclose(frequencies, [-frequency, frequency])


def test_modes_are_eigenvalues_of_hippos_matrix():
    """Of the normal part of LegS."""
    order = np.arange(7)
    roots = np.sqrt(2 * order + 1)
    products = np.outer(roots, roots)
    below_diagonal = np.tril(products, -1)
    diagonal = np.diag(order + 1)
    legs = -below_diagonal - diagonal
    low_rank = np.sqrt(order + 0.5)
    normal_part = legs + np.outer(low_rank, low_rank)
    expected = np.linalg.eigvals(normal_part)
    modes = state_space.legs_modes(7)
    frequencies = np.sort(modes.imag)
    expected_frequencies = np.sort(expected.imag)
    assert_allclose(frequencies, expected_frequencies, atol=1e-10)
    assert_allclose(modes.real, -0.5, atol=1e-10)
    assert_allclose(expected.real, -0.5, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spaces", "tokens"),
    [
        pytest.param(1, 5, id="1 space, matrix"),
        pytest.param(1, 600, id="1 space, FFT"),
        pytest.param(3, 5, id="3 spaces"),
        pytest.param(6, 70, id="6 spaces"),
    ],
)
@in_float64
def test_convolutions_agree_with_sums_in_both_directions(spaces, tokens):
    kernels = normal(0, spaces, tokens)
    u = normal(1, 2, tokens, 6)
    jax_kernels = jnp.asarray(kernels)
    jax_u = jnp.asarray(u)
    forward = state_space.convolve(jax_kernels, jax_u)
    expected = convolved_by_hand(kernels, u)
    assert_allclose(forward, expected, atol=1e-9)
    backward = state_space.convolve(jax_kernels, jax_u, reverse=True)
    reversed_u = u[:, ::-1]
    of_reversed = convolved_by_hand(kernels, reversed_u)
    assert_allclose(backward, of_reversed[:, ::-1], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("spaces", [1, 2])
@in_float64
def test_scans_agree_with_the_convolution(spaces):
    modes = modes_of(spaces)
    tokens = 2 * CHUNK + 7
    causal_kernels = state_space.kernel(modes, tokens)
    kernels = causal_kernels.at[:, 0].add(0.5)
    u = normal(1, 2, tokens, 4)
    jax_u = jnp.asarray(u)
    y = state_space.scan(modes, kernels, jax_u)
    expected = convolved_by_hand(np.asarray(kernels), u)
    assert_allclose(y, expected, atol=1e-10)


@in_float64
def test_states_replace_the_tokens_before():
    """Padding after the text does not change the state."""
    modes = modes_of()
    u = normal(1, 2, 9, 4)
    kernels = state_space.kernel(modes, 9)
    expected = convolved_by_hand(np.asarray(kernels), u)
    u = jnp.asarray(u)
    start = state_space.first_state(modes, u)
    extend = quick_jit(state_space.extend)
    text_and_padding = u[:, :6]
    first_kernels = kernels[:, :6]
    first, state = extend(modes, first_kernels, text_and_padding, start, 4)
    first_text = first[:, :4]
    assert_allclose(first_text, expected[:, :4], atol=1e-12)
    rest = u[:, 4:]
    later_kernels = kernels[:, :5]
    later, _ = extend(modes, later_kernels, rest, state, 5)
    expected_later = expected[:, 4:]
    assert_allclose(later, expected_later, atol=1e-12)
