import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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


def test_linear_starts_glorot_uniform_with_no_bias():
    params = params_of(Linear(small_spec(dtype="float32"), 300, 100, nnx.Rngs(0)))
    bound = math.sqrt(6 / 400)
    assert (params["bias"] == 0).all()
    assert params["kernel"].shape == (300, 100)
    assert 0.99 * bound < np.abs(params["kernel"]).max() <= bound
    np.testing.assert_allclose(params["kernel"].std(), bound / math.sqrt(3), rtol=0.02)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_linear_computes_in_the_type_of_its_input(dtype):
    layer = randomized(lambda: Linear(small_spec(dtype="bfloat16"), 4, 7, nnx.Rngs(0)))
    assert layer.kernel.dtype == layer.bias.dtype == jnp.float32
    y = jax.eval_shape(layer, jax.ShapeDtypeStruct((2, 4), dtype))
    assert y.dtype == dtype


@in_float64
def test_parts_and_activation_of_a_linear_layer_change_no_number():
    spec = small_spec()
    x = normal(0, 2, 5, 6)
    plain, made = (
        Linear(spec, 6, 8, nnx.Rngs(0), **options)
        for options in ({}, {"parts": 2, "activation": "gelu"})
    )
    np.testing.assert_allclose(
        *quick_jit(lambda x: (made(x), activation("gelu", plain(x))))(x), atol=1e-12
    )
    # Each part is a product of its own, so a split of the output copies nothing.
    products = [
        e.outvars[0].aval.shape for e in program(made, x) if e.primitive.name == "dot_general"
    ]
    assert products == [(2, 5, 4)] * 2
