import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

from gmlp_flax.models.layers import Linear, activation
from tests.models.reference import (
    in_float64,
    normal,
    params_of,
    program,
    quick_jit,
    randomized,
    small_spec,
)


def test_linear_layers_start_glorot_uniform_with_biases_of_0():
    spec = small_spec(dtype="float32")
    layer = Linear(spec, 300, 100, nnx.Rngs(0))
    params = params_of(layer)
    kernel = params["kernel"]
    bound = math.sqrt(6 / 400)
    assert (params["bias"] == 0).all()
    assert kernel.shape == (300, 100)
    assert 0.99 * bound < np.abs(kernel).max() <= bound
    assert_allclose(kernel.std(), bound / math.sqrt(3), rtol=0.02)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_linear_layers_compute_in_the_type_of_their_input(dtype):
    layer = randomized(lambda: Linear(small_spec(dtype="bfloat16"), 4, 7, nnx.Rngs(0)))
    assert layer.kernel.dtype == jnp.float32
    assert layer.bias.dtype == jnp.float32
    x = jax.ShapeDtypeStruct((2, 4), dtype)
    y = jax.eval_shape(layer, x)
    assert y.dtype == dtype


@in_float64
def test_parts_and_activations_of_linear_layers_change_no_number():
    spec = small_spec()
    x = normal(0, 2, 5, 6)
    plain = Linear(spec, 6, 8, nnx.Rngs(0))
    in_parts = Linear(spec, 6, 8, nnx.Rngs(0), parts=2, activation="gelu")
    expected = activation("gelu", plain(x))
    assert_allclose(quick_jit(in_parts)(x), expected, atol=1e-12)
    # Each part is a product of its own, so a split of the output copies nothing.
    products = []
    for equation in program(in_parts, x):
        if equation.primitive.name == "dot_general":
            [product] = equation.outvars
            products.append(product.aval.shape)
    assert products == [(2, 5, 4), (2, 5, 4)]
