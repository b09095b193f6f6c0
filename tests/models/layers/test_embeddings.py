import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models.layers import LearnedPositions, LearnedSegments
from gmlp_flax.models.parameters import POSITIONS
from tests.models.reference import function_of, params_of, small_spec


def positions(**fields):
    spec = small_spec(**fields)
    return LearnedPositions(spec, nnx.Rngs(0), POSITIONS)


def test_positions_of_too_many_tokens_are_refused():
    module = positions(dtype="float32")
    message = "the positions were made for at most 5 tokens and were given 6"
    with pytest.raises(ValueError, match=message):
        module(jnp.ones((1, 6, 6)))


def test_positions_have_the_input_type_and_a_float32_table():
    module = positions(dtype="bfloat16")
    y = module(jnp.ones((1, 5, 6), jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    assert params_of(module)["table"].dtype == np.float32


def test_positions_start_with_the_standard_deviation_of_bert():
    params = params_of(positions(length=300, d_model=20, dtype="float32"))
    table = params["table"]
    assert table.shape == (300, 20)
    assert_allclose(table.std(), 0.02, rtol=0.05)


def test_gradients_of_segments_are_summed_in_float32():
    """A sum of 4,096 ones in bfloat16 would stop at 256."""
    module = LearnedSegments(small_spec(dtype="bfloat16", d_model=1, d_ffn=2, heads=1))
    state, call = function_of(module)
    segments = np.zeros((32, 128), int)
    x = jnp.zeros((32, 128, 1), jnp.bfloat16)

    def total(state):
        return call(state, x, segments).sum()

    gradient = jax.jit(jax.grad(total))(state)
    table = params_of(gradient)["table"]
    assert_array_equal(table[:, 0], [4096, 0])
