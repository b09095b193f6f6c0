"""Diagonal state spaces: their kernels, convolutions and scans against complex numbers, one by
one."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.models.recurrences import state_space
from gmlp_flax.models.recurrences.state_space import CHUNK, Complex, Modes
from tests.models.reference import in_float64, largest_array, normal, quick_jit


def modes_of(spaces=2, count=4, seed=0):
    """Decaying modes."""
    random = np.random.default_rng(seed)
    decays = -random.uniform(0.01, 0.5, (spaces, count))
    exponents = Complex(decays, random.uniform(-3, 3, (spaces, count)))
    weights = Complex(random.normal(size=(spaces, count)), random.normal(size=(spaces, count)))
    return jax.tree.map(jnp.asarray, Modes(exponents, weights))


def numbers(z):
    return np.asarray(z.real) + 1j * np.asarray(z.imag)


def kernel_by_hand(modes, tokens):
    z = numbers(modes.exponents)
    w = numbers(modes.weights)
    lags = [(w * np.exp(lag * z)).sum(1).real for lag in range(tokens)]
    return np.stack(lags, axis=1)


def convolved_by_hand(kernels, u):
    """Sum by sum; neighbouring channels share a kernel."""
    outputs = np.zeros_like(u)
    channels_of_space = u.shape[-1] // len(kernels)
    for channel in range(u.shape[-1]):
        kernel = kernels[channel // channels_of_space]
        for i in range(u.shape[1]):
            for j in range(i + 1):
                outputs[:, i, channel] += kernel[i - j] * u[:, j, channel]
    return outputs


@pytest.mark.parametrize("tokens", [1, 2, 5, 64, 300])
@in_float64
def test_kernel(tokens):
    modes = modes_of()
    found = state_space.kernel(modes, tokens)
    np.testing.assert_allclose(found, kernel_by_hand(modes, tokens), atol=1e-11)


def test_kernel_of_a_space_per_channel_takes_little_memory():
    """Not modes x tokens for each."""
    modes = modes_of(spaces=8, count=64)
    most = largest_array(lambda modes: state_space.kernel(modes, 4096), modes)
    assert most <= 8 * 64 * 128


@in_float64
def test_input_is_held_for_a_step():
    """w = c (exp(step a) - 1) / a, and its limit c step where a is small."""
    a = np.array([[-0.5 + 3j, -1e-4 + 0j]])
    c = np.array([[1 + 2j, 0.5 - 1j]])
    step = np.array([0.1])
    modes = state_space.discretize(Complex(a.real, a.imag), Complex(c.real, c.imag), step)
    np.testing.assert_allclose(numbers(modes.exponents), 0.1 * a, rtol=1e-12)
    np.testing.assert_allclose(numbers(modes.weights), c * np.expm1(0.1 * a) / a, rtol=1e-10)
    assert numbers(modes.weights)[0, 1] == pytest.approx(0.1 * c[0, 1], rel=1e-4)


def test_small_exponents_keep_their_digits_in_float32():
    a = np.array([[-1e-4 + 1e-5j]], np.complex64)
    one = Complex(np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32))
    modes = state_space.discretize(Complex(a.real, a.imag), one, np.array([0.01], np.float32))
    assert numbers(modes.weights)[0, 0] == pytest.approx(0.01, rel=1e-5)


def test_modes_are_those_of_hippo():
    """The eigenvalues of the normal part of LegS: with 2 states, -1/2 +- i sqrt(3) / 2 (S4D, section
    4)."""
    found = state_space.legs_modes(2)
    np.testing.assert_allclose(found.real, -0.5)
    np.testing.assert_allclose(np.sort(found.imag), [-math.sqrt(3) / 2, math.sqrt(3) / 2])
    roots = np.sqrt(2 * np.arange(7) + 1)
    legs = -np.tril(np.outer(roots, roots), -1) - np.diag(np.arange(7) + 1)
    low_rank = np.sqrt(np.arange(7) + 0.5)
    normal_part = legs + np.outer(low_rank, low_rank)
    expected = np.linalg.eigvals(normal_part)
    np.testing.assert_allclose(
        np.sort(state_space.legs_modes(7).imag), np.sort(expected.imag), atol=1e-10
    )
    np.testing.assert_allclose(expected.real, -0.5, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("spaces", "tokens"), [(1, 5), (1, 600), (3, 5), (6, 70)])
@in_float64
def test_convolutions_of_both_directions(spaces, tokens):
    """By a matrix, and by FFT."""
    kernels = normal(0, spaces, tokens)
    u = normal(1, 2, tokens, 6)
    forward = state_space.convolve(jnp.asarray(kernels), jnp.asarray(u))
    np.testing.assert_allclose(forward, convolved_by_hand(kernels, u), atol=1e-9)
    backward = state_space.convolve(jnp.asarray(kernels), jnp.asarray(u), reverse=True)
    expected = convolved_by_hand(kernels, u[:, ::-1])[:, ::-1]
    np.testing.assert_allclose(backward, expected, atol=1e-9)


@pytest.mark.parametrize("spaces", [1, 2])
@in_float64
def test_scan_is_the_convolution(spaces):
    modes = modes_of(spaces)
    tokens = 2 * CHUNK + 7
    kernels = state_space.kernel(modes, tokens).at[:, 0].add(0.5)
    u = normal(1, 2, tokens, 4)
    found = state_space.scan(modes, kernels, jnp.asarray(u))
    expected = convolved_by_hand(np.asarray(kernels), u)
    np.testing.assert_allclose(found, expected, atol=1e-10)


@in_float64
def test_a_state_stands_for_the_tokens_before():
    """And padding behind the text does not change it."""
    modes = modes_of()
    u = jnp.asarray(normal(1, 2, 9, 4))
    kernels = state_space.kernel(modes, 9)
    expected = convolved_by_hand(np.asarray(kernels), np.asarray(u))
    start = state_space.first_state(modes, u)
    extend = quick_jit(state_space.extend)
    first, state = extend(modes, kernels[:, :6], u[:, :6], start, 4)
    np.testing.assert_allclose(first[:, :4], expected[:, :4], atol=1e-12)
    later, _ = extend(modes, kernels[:, :5], u[:, 4:], state, 5)
    np.testing.assert_allclose(later, expected[:, 4:], atol=1e-12)
