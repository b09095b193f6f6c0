import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.positions import LearnedPositions, LearnedSegments
from gmlp_flax.models.resize import Positions
from tests.models.reference import function_of, in_float64, normal, params_of, randomized, small_spec


def positions(**fields):
    return LearnedPositions(small_spec(**fields), nnx.Rngs(0), Positions())


@pytest.mark.parametrize("tokens", [1, 3, 5])
@in_float64
def test_each_position_has_a_vector(tokens):
    module, x = randomized(positions), normal(0, 2, tokens, 6)
    table = params_of(module)["table"]
    expected = [[x[b, i] + table[i] for i in range(tokens)] for b in range(2)]
    np.testing.assert_array_equal(module(x), expected)


def test_more_tokens_are_refused():
    with pytest.raises(ValueError, match="the positions were made for at most 5 tokens and were given 6"):
        positions(dtype="float32")(jnp.ones((1, 6, 6)))


def test_the_type_is_the_input_s_and_the_table_float32():
    module = positions(dtype="bfloat16")
    assert module(jnp.ones((1, 5, 6), jnp.bfloat16)).dtype == jnp.bfloat16
    assert params_of(module)["table"].dtype == np.float32


def test_the_table_starts_with_berts_deviation():
    table = params_of(positions(length=300, d_model=20, dtype="float32"))["table"]
    assert table.shape == (300, 20)
    np.testing.assert_allclose(table.std(), 0.02, rtol=0.05)


@in_float64
def test_each_segment_has_a_vector_and_starts_without():
    make = lambda: LearnedSegments(small_spec())  # noqa: E731
    x, segments = normal(0, 2, 4, 6), np.array([[0, 0, 1, 1], [1, 0, 1, 0]])
    np.testing.assert_array_equal(make()(x, segments), x)
    module = randomized(make)
    table = params_of(module)["table"]
    expected = [[x[b, i] + table[segments[b, i]] for i in range(4)] for b in range(2)]
    np.testing.assert_array_equal(module(x, segments), expected)


def test_gradients_of_segments_are_summed_in_float32():
    """4,096 equal ones in bfloat16 would stand still at 256."""
    module = LearnedSegments(small_spec(dtype="bfloat16", d_model=1, d_ffn=2, heads=1))
    state, call = function_of(module)
    segments = np.zeros((32, 128), int)
    gradient = jax.grad(lambda state: call(state, jnp.zeros((32, 128, 1), jnp.bfloat16), segments).sum())(state)
    np.testing.assert_array_equal(params_of(gradient)["table"][:, 0], [4096, 0])
