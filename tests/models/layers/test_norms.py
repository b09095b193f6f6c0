import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models.layers import LayerNorm, moments_in_one_pass
from gmlp_flax.models.layers import layer_norm as plain_layer_norm
from tests.models.reference import (
    in_float64,
    layer_norm,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)


def plain_norm(channels, dtype="float32"):
    return LayerNorm(small_spec(dtype=dtype), channels)


@pytest.mark.parametrize(
    ("own_eps", "eps"),
    [
        pytest.param((), 0.1, id="of the spec"),
        pytest.param((0.3,), 0.3, id="its own"),
    ],
)
@in_float64
def test_layer_norms_agree_with_numpy(own_eps, eps):
    """With the epsilon of the spec, or one of its own."""
    spec = small_spec(norm_eps=0.1)
    norm = randomized(lambda: LayerNorm(spec, 9, *own_eps))
    x = 3 + 2 * normal(0, 4, 9)
    expected = layer_norm(params_of(norm), x, eps)
    assert_allclose(quick_jit(norm)(x), expected, atol=1e-12)


@in_float64
def test_derivatives_of_layer_norms_are_those_of_the_formula():
    """Gradients, tangents, and gradients of gradients."""
    x = 3 + normal(0, 2, 5, 7)
    scale = normal(1, 7)
    bias = normal(2, 7)
    weights = normal(3, 2, 5, 7)

    def formula(x, scale, bias):
        mean = x.mean(-1, keepdims=True)
        centred = x - mean
        squares = jnp.square(centred)
        variance = squares.mean(-1, keepdims=True)
        deviation = jnp.sqrt(variance + 1e-3)
        normalized = centred / deviation
        return normalized * scale + bias

    def fast(x, scale, bias):
        return plain_layer_norm(x, scale, bias, 1e-3, jnp.float64)

    def derivatives(norm):
        def loss(*inputs):
            y = norm(*inputs)
            return (jnp.sin(y) * weights).sum()

        gradients = jax.grad(loss, argnums=(0, 1, 2))

        def square_of_gradient(x):
            gradient, *_ = gradients(x, scale, bias)
            return (gradient**2).sum()

        @quick_jit
        def all_of_them():
            directions = (weights, bias, scale)
            tangents = jax.jvp(norm, (x, scale, bias), directions)
            return gradients(x, scale, bias), tangents, jax.grad(square_of_gradient)(x)

        return jax.tree.leaves(all_of_them())

    pairs = zip(derivatives(fast), derivatives(formula), strict=True)
    for found, expected in pairs:
        assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@in_float64
@pytest.mark.parametrize(
    ("dtype", "offset", "tolerance"),
    [
        ("float64", 5, 1e-13),
        ("float32", 1e4, 2e-4),
    ],
)
def test_one_pass_gives_the_mean_and_the_variance(dtype, offset, tolerance):
    """As GPUs compute them, also of numbers whose squares lose their differences."""
    numbers = offset + normal(0, 4, 512)
    x = numbers.astype(dtype)
    mean, variance = quick_jit(moments_in_one_pass)(x)
    exact = x.astype(np.float64)
    exact_mean = exact.mean(-1)
    assert_allclose(mean[:, 0], exact_mean, rtol=tolerance)
    exact_variance = exact.var(-1)
    assert_allclose(variance[:, 0], exact_variance, rtol=tolerance)


def test_fresh_layer_norms_give_mean_0_and_variance_1():
    x = 5 + 7 * normal(0, 3, 64)
    norm = quick_jit(plain_norm(64))
    y = norm(x.astype(np.float32))
    mean = y.mean(-1)
    variance = y.var(-1)
    assert_allclose(mean, 0, atol=1e-6)
    assert_allclose(variance, 1, rtol=1e-5)


@in_float64
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_one_pass_gives_constants_a_variance_of_0(dtype):
    constant = np.full((1, 9), 0.1, dtype)
    _, variance = quick_jit(moments_in_one_pass)(constant)
    assert (variance == 0).all()


def test_bfloat16_layer_norms_compute_in_float32():
    norm = randomized(lambda: plain_norm(256, "bfloat16"))
    exact_norm = plain_norm(256)
    nnx.update(exact_norm, nnx.state(norm))
    numbers = 100 + normal(0, 8, 256)
    x = jnp.asarray(numbers, jnp.bfloat16)
    y = jax.jit(lambda x: norm(x))(x)
    assert y.dtype == jnp.bfloat16
    assert norm.scale.dtype == jnp.float32
    float32_x = x.astype(jnp.float32)
    exact = jax.jit(lambda x: exact_norm(x))(float32_x)
    exact_array = np.asarray(exact)
    rounded = exact_array.astype(jnp.bfloat16)
    assert_array_equal(y, rounded)


def test_layer_norms_of_large_means_are_accurate():
    norm = plain_norm(512)
    x = (1000 + normal(0, 8, 512)).astype(np.float32)
    expected = layer_norm(params_of(norm), x)
    assert_allclose(quick_jit(norm)(x), expected, atol=2e-4)


CONSTANT = np.full((2, 16), 3.0, np.float32)


def test_layer_norms_of_constants_are_their_bias():
    norm = randomized(lambda: plain_norm(16))
    y = quick_jit(norm)(CONSTANT)
    bias = params_of(norm)["bias"]
    assert_allclose(y, np.stack([bias, bias]), atol=1e-6)


def test_gradients_of_layer_norms_are_finite_at_constants():
    norm = randomized(lambda: plain_norm(16))
    gradient = quick_jit(jax.grad(lambda x: norm(x).sum()))
    assert np.isfinite(gradient(CONSTANT)).all()
