import jax
import jax.numpy as jnp
import numpy as np

from gmlp_flax.models.layers import LayerRng, add_branch, drop_path, dropout
from tests.models.reference import keys, quick_jit


def test_dropout():
    x = jnp.full((200, 100), 3.0)
    y = np.asarray(quick_jit(lambda: dropout(x, 0.2, keys(0, 200)))())
    zeros = y == 0
    np.testing.assert_allclose(y[~zeros], 3 / 0.8, rtol=1e-6)
    assert abs(zeros.mean() - 0.2) < 4 * np.sqrt(0.16 / x.size)
    assert zeros.mean(0).min() > 0
    assert zeros.mean(0).max() < 0.4
    assert dropout(x, 0.2, None) is x
    assert dropout(x, 0.0, keys(0, 200)) is x
    assert (
        jax.eval_shape(lambda: dropout(x.astype(jnp.bfloat16), 0.2, keys(0, 200))).dtype
        == jnp.bfloat16
    )


def drop_ones(dtype):
    """Ones of 4,000 examples, a branch of which survives with probability 0.6."""
    return drop_path(jnp.ones((4000, 2, 3), dtype), jnp.float32(0.6), keys(0, 4000))


def test_stochastic_depth_drops_whole_branches_of_single_examples():
    y = np.asarray(quick_jit(lambda: drop_ones("float32"))())
    assert (y == y[:, :1, :1]).all()
    dropped = y[:, 0, 0] == 0
    np.testing.assert_allclose(y[~dropped], 1 / 0.6, rtol=1e-5)
    assert abs(dropped.mean() - (1 - 0.6)) < 4 * np.sqrt(0.24 / 4000)


def test_stochastic_depth_keeps_the_type():
    y = jax.eval_shape(lambda: drop_ones("bfloat16"))
    assert y.dtype == jnp.bfloat16


def branch_of_ones(number, **options):
    """Which numbers of a branch survive in 400 examples, by stochastic depth and by dropout."""

    @quick_jit
    def added():
        rng = LayerRng(keys(0, 400), 0.5, jnp.float32(0.5))
        shape = (400, 10, 10)
        return add_branch(jnp.zeros(shape), jnp.ones(shape), rng, number, **options)

    return np.asarray(added()) > 0


def test_branches_draw_with_keys_of_their_own():
    """Of one example neither dropout nor stochastic depth of two branches agree more often than by
    chance."""
    first = branch_of_ones(0)
    second = branch_of_ones(1)
    both = first.any((1, 2)) & second.any((1, 2))
    is_equal = first == second
    assert abs(both.mean() - 0.25) < 0.1
    assert abs(is_equal[both].mean() - 0.5) < 0.02


def test_a_branch_without_dropout_survives_as_with_it():
    first = branch_of_ones(0)
    whole = branch_of_ones(0, dropped=False)
    np.testing.assert_array_equal(whole.any((1, 2)), first.any((1, 2)))


def test_a_branch_without_keys_is_added():
    one = jnp.ones((400, 10, 10))
    np.testing.assert_array_equal(add_branch(one, one, LayerRng()), 2 * one)
    assert LayerRng().mixing_keys is None
