import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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


@pytest.mark.parametrize(("own", "eps"), [((), 0.1), ((0.3,), 0.3)])
@in_float64
def test_layer_norm(own, eps):
    """With the epsilon of the spec, or one of its own."""
    norm = randomized(lambda: LayerNorm(small_spec(norm_eps=0.1), 9, *own))
    x = 3 + 2 * normal(0, 4, 9)
    np.testing.assert_allclose(quick_jit(norm)(x), layer_norm(params_of(norm), x, eps), atol=1e-12)


@in_float64
def test_the_derivatives_of_a_layer_norm():
    """As JAX finds them for the formula: gradients, tangents, and gradients of gradients."""
    x = 3 + normal(0, 2, 5, 7)
    scale = normal(1, 7)
    bias = normal(2, 7)
    weights = normal(3, 2, 5, 7)

    def formula(x, scale, bias):
        variance = jnp.square(x - x.mean(-1, keepdims=True)).mean(-1, keepdims=True)
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(variance + 1e-3) * scale + bias

    def derivatives(norm):
        def loss(*args):
            return (jnp.sin(norm(*args)) * weights).sum()

        gradients = jax.grad(loss, argnums=(0, 1, 2))
        tangents = jax.jvp(norm, (x, scale, bias), (weights, bias, scale))
        return (
            gradients(x, scale, bias),
            tangents,
            jax.grad(lambda x: (gradients(x, scale, bias)[0] ** 2).sum())(x),
        )

    found, expected = quick_jit(
        lambda: (
            derivatives(lambda *args: plain_layer_norm(*args, 1e-3, jnp.float64)),
            derivatives(formula),
        )
    )()
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


@in_float64
@pytest.mark.parametrize(
    "dtype, offset, tolerance", [("float64", 5, 1e-13), ("float32", 1e4, 2e-4)]
)
def test_mean_and_variance_in_one_pass(dtype, offset, tolerance):
    """As GPUs compute them, also of numbers whose squares lose their differences."""
    x = (offset + normal(0, 4, 512)).astype(dtype)
    mean, variance = quick_jit(moments_in_one_pass)(x)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean[:, 0], exact.mean(-1), rtol=tolerance)
    np.testing.assert_allclose(variance[:, 0], exact.var(-1), rtol=tolerance)


def test_layer_norm_starts_as_a_plain_norm():
    y = quick_jit(LayerNorm(small_spec(dtype="float32"), 64))(
        5 + 7 * normal(0, 3, 64).astype(np.float32)
    )
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(y.var(-1), 1, rtol=1e-5)


@in_float64
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_variance_of_a_constant_in_one_pass_is_0(dtype):
    _, variance = quick_jit(moments_in_one_pass)(np.full((1, 9), 0.1, dtype))
    assert (variance == 0).all()


def test_layer_norm_of_bfloat16_is_computed_in_float32():
    norm = randomized(lambda: LayerNorm(small_spec(dtype="bfloat16"), 256))
    exact = LayerNorm(small_spec(dtype="float32"), 256)
    nnx.update(exact, nnx.state(norm))
    x = jnp.asarray(100 + normal(0, 8, 256), jnp.bfloat16)
    y = jax.jit(lambda x: norm(x))(x)
    expected = jax.jit(lambda x: exact(x))(x.astype(jnp.float32))
    assert y.dtype == jnp.bfloat16
    assert norm.scale.dtype == jnp.float32
    np.testing.assert_array_equal(y, np.asarray(expected).astype(jnp.bfloat16))


def test_layer_norm_of_a_large_mean():
    norm = LayerNorm(small_spec(dtype="float32"), 512)
    x = (1000 + normal(0, 8, 512)).astype(np.float32)
    expected = layer_norm(params_of(norm), x)
    np.testing.assert_allclose(quick_jit(norm)(x), expected, atol=2e-4)


def test_layer_norm_of_a_constant_is_its_bias():
    norm = randomized(lambda: LayerNorm(small_spec(dtype="float32"), 16))
    y = quick_jit(norm)(np.full((2, 16), 3.0, np.float32))
    bias = params_of(norm)["bias"]
    np.testing.assert_allclose(y, np.stack([bias, bias]), atol=1e-6)


def test_the_gradient_of_layer_norm_at_a_constant_is_finite():
    norm = randomized(lambda: LayerNorm(small_spec(dtype="float32"), 16))
    gradient = quick_jit(jax.grad(lambda x: norm(x).sum()))
    assert np.isfinite(gradient(np.full((2, 16), 3.0, np.float32))).all()
