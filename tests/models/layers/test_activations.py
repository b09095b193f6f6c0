import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models.layers import activation
from tests.models.reference import gelu, gelu_tanh, in_float64, quick_jit

FORMULAS = {"gelu": gelu, "gelu_tanh": gelu_tanh}


@pytest.mark.smoke
@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
@in_float64
def test_gelu_agrees_with_its_formula(name, dtype, tolerance):
    x = np.linspace(-5, 5, 2001).astype(dtype)
    y = activation(name, x)
    expected = FORMULAS[name](x)
    assert y.dtype == dtype
    assert_allclose(y, expected, rtol=0, atol=tolerance)


@in_float64
def test_the_gradient_of_gelu_agrees_with_its_formula():
    """Phi(x) + x phi(x)."""
    x = np.linspace(-5, 5, 101)
    distribution = []
    for number in x:
        complement = math.erfc(-number / math.sqrt(2))
        distribution.append(complement / 2)
    bell = np.exp(-(x**2) / 2)
    density = bell / math.sqrt(2 * math.pi)
    expected = np.array(distribution) + x * density

    @quick_jit
    @jax.grad
    def gradient(x):
        return activation("gelu", x).sum()

    assert_allclose(gradient(x), expected, atol=1e-12)


@pytest.mark.parametrize("name", FORMULAS)
def test_gelu_in_bfloat16_is_the_rounded_float32_gelu(name):
    """On every finite bfloat16 number."""
    bits = np.arange(2**16, dtype=np.uint16)
    numbers = bits.view(jnp.bfloat16)
    is_finite = np.abs(numbers.astype(np.float32)) < 1e12
    x = numbers[is_finite]
    assert x.size > 40_000
    call = jax.jit(lambda x: activation(name, x))
    y = call(x)
    exact = np.asarray(call(x.astype(np.float32)))
    assert y.dtype == jnp.bfloat16
    assert_array_equal(y, exact.astype(jnp.bfloat16))


@pytest.mark.parametrize("name", FORMULAS)
def test_gelu_of_large_numbers_is_linear_or_zero(name):
    value_and_slope = jax.value_and_grad(lambda x: activation(name, x))
    values_and_slopes = quick_jit(jax.vmap(value_and_slope))
    x = np.float32([-1e4, -30.0, 0.0, 30.0, 1e4])
    y, slopes = values_and_slopes(x)
    assert_array_equal(y, [0, 0, 0, 30, 1e4])
    assert_array_equal(slopes, [0, 0, 0.5, 1, 1])
