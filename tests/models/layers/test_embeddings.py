import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.layers import LearnedPositions, LearnedSegments
from gmlp_flax.models.parameters import POSITIONS
from tests.models.reference import function_of, params_of, small_spec


def positions(**fields):
    return LearnedPositions(small_spec(**fields), nnx.Rngs(0), POSITIONS)


def test_more_tokens_are_refused():
    with pytest.raises(
        ValueError, match="the positions were made for at most 5 tokens and were given 6"
    ):
        positions(dtype="float32")(jnp.ones((1, 6, 6)))


def test_the_type_is_the_input_s_and_the_table_float32():
    module = positions(dtype="bfloat16")
    assert module(jnp.ones((1, 5, 6), jnp.bfloat16)).dtype == jnp.bfloat16
    assert params_of(module)["table"].dtype == np.float32


def test_the_table_starts_with_berts_deviation():
    table = params_of(positions(length=300, d_model=20, dtype="float32"))["table"]
    assert table.shape == (300, 20)
    np.testing.assert_allclose(table.std(), 0.02, rtol=0.05)


def test_gradients_of_segments_are_summed_in_float32():
    """4,096 equal ones in bfloat16 would stand still at 256."""
    module = LearnedSegments(small_spec(dtype="bfloat16", d_model=1, d_ffn=2, heads=1))
    state, call = function_of(module)
    segments = np.zeros((32, 128), int)
    x = jnp.zeros((32, 128, 1), jnp.bfloat16)
    gradient = jax.jit(jax.grad(lambda state: call(state, x, segments).sum()))(state)
    np.testing.assert_array_equal(params_of(gradient)["table"][:, 0], [4096, 0])
