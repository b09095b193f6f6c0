import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models.layers import LayerRng, add_branch, drop_path, dropout
from tests.models.reference import keys, quick_jit


def test_dropout_drops_single_numbers():
    """And scales the others."""
    x = jnp.full((200, 100), 3.0)
    y = np.asarray(quick_jit(lambda: dropout(x, 0.2, keys(0, 200)))())
    is_dropped = y == 0
    assert_allclose(y[~is_dropped], 3 / 0.8, rtol=1e-6)
    assert_share(is_dropped, 0.2)
    by_column = is_dropped.mean(0)
    assert by_column.min() > 0
    assert by_column.max() < 0.4


def assert_share(is_dropped, rate):
    """The share of dropped numbers is near the rate."""
    standard_error = np.sqrt(rate * (1 - rate) / is_dropped.size)
    assert abs(is_dropped.mean() - rate) < 4 * standard_error


def test_dropout_needs_a_key_and_a_rate():
    x = jnp.full((200, 100), 3.0)
    assert dropout(x, 0.2, None) is x
    assert dropout(x, 0.0, keys(0, 200)) is x


def test_dropout_keeps_the_type():
    x = jnp.ones((200, 100), jnp.bfloat16)
    y = jax.eval_shape(lambda: dropout(x, 0.2, keys(0, 200)))
    assert y.dtype == jnp.bfloat16


def drop_ones(dtype):
    """Ones of 4,000 examples, a branch of which survives with probability 0.6."""
    ones = jnp.ones((4000, 2, 3), dtype)
    return drop_path(ones, jnp.float32(0.6), keys(0, 4000))


def test_stochastic_depth_drops_whole_branches_of_single_examples():
    y = np.asarray(quick_jit(lambda: drop_ones("float32"))())
    by_example = y[:, 0, 0]
    is_dropped = by_example == 0
    assert (y == y[:, :1, :1]).all()
    assert_allclose(by_example[~is_dropped], 1 / 0.6, rtol=1e-5)
    assert_share(is_dropped, 1 - 0.6)


def test_stochastic_depth_keeps_the_type():
    y = jax.eval_shape(lambda: drop_ones("bfloat16"))
    assert y.dtype == jnp.bfloat16


def branch_of_ones(number, **options):
    """Which numbers of a branch survive in 400 examples, by stochastic depth and by dropout."""
    shape = (400, 10, 10)

    @quick_jit
    def added():
        rng = LayerRng(keys(0, 400), 0.5, jnp.float32(0.5))
        return add_branch(jnp.zeros(shape), jnp.ones(shape), rng, number, **options)

    return np.asarray(added()) > 0


def test_branches_are_dropped_independently():
    """Neither dropout nor stochastic depth of two branches of an example agree more often than by
    chance."""
    first = branch_of_ones(0)
    second = branch_of_ones(1)
    both_survive = first.any((1, 2)) & second.any((1, 2))
    assert abs(both_survive.mean() - 0.25) < 0.1
    is_equal = first[both_survive] == second[both_survive]
    assert abs(is_equal.mean() - 0.5) < 0.02


def test_dropout_does_not_change_which_branches_survive():
    with_dropout = branch_of_ones(0)
    without_dropout = branch_of_ones(0, dropped=False)
    survives = with_dropout.any((1, 2))
    assert_array_equal(without_dropout.any((1, 2)), survives)


def test_branches_without_keys_are_added():
    ones = jnp.ones((400, 10, 10))
    without_keys = LayerRng()
    y = add_branch(ones, ones, without_keys)
    assert_array_equal(y, 2 * ones)
    assert without_keys.mixing_keys is None
