import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.blocks.external_attention import MEMORY, TOKENS, ExternalAttentionBlock, memory_weights, recall
from tests.models.reference import (
    in_float64,
    normal,
    quick_jit,
    small_spec,
)

OVER = pytest.mark.parametrize("over", [TOKENS, MEMORY])


def block(**fields):
    return ExternalAttentionBlock(small_spec(**{"block": "external_attention", "memory": 4} | fields), nnx.Rngs(0))


def token_jacobian(module, x):
    """Largest entry of each block of the Jacobian of a whole block: [output token, input token]."""
    jacobian = quick_jit(jax.jacrev(lambda x: module(x[None])[0]))(x)
    return np.abs(jacobian).max(axis=(1, 3))


@in_float64
def test_both_normalisations():
    """Columns over tokens first, then rows over the memory; over the memory alone, rows from the start."""
    scores = normal(0, 2, 1, 5, 4)
    weights = np.asarray(memory_weights(jnp.asarray(scores), TOKENS))
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-8)
    columns = np.exp(scores) / np.exp(scores).sum(2, keepdims=True)
    np.testing.assert_allclose(weights, columns / (1e-9 + columns.sum(-1, keepdims=True)), atol=1e-12)
    rows = np.asarray(memory_weights(jnp.asarray(scores), MEMORY))
    np.testing.assert_allclose(rows, np.exp(scores) / np.exp(scores).sum(-1, keepdims=True), atol=1e-12)


@in_float64
def test_fresh_tokens_are_coupled_by_the_softmax_over_tokens_alone():
    """d out_i / d x_j, i not j: not 0 with the published normalisation, exactly 0 with the softmax over the memory."""
    x = jnp.asarray(normal(0, 5, 6))
    off = ~np.eye(5, dtype=bool)
    coupled, apart = (token_jacobian(block(memory_softmax=over), x) for over in (TOKENS, MEMORY))
    assert coupled[off].min() > 1e-5
    assert (apart[off] == 0).all() and np.diag(apart).min() > 0.1


@in_float64
def test_tokens_are_coupled_through_a_factor_per_entry_alone():
    """What the other tokens change of a token's weights is one factor for each entry of the memory, the same for all
    tokens: before the second normalisation, weights are exp(score) / total(entry)."""
    scores = normal(0, 1, 1, 5, 4)
    other = scores.copy()
    other[:, :, 4] += 3
    weights, changed = (np.asarray(memory_weights(jnp.asarray(each), TOKENS)) for each in (scores, other))
    ratio = (changed / weights)[0, 0, :4]
    np.testing.assert_allclose(ratio / ratio[:, :1], np.broadcast_to((ratio / ratio[:, :1])[0], ratio.shape), rtol=1e-6)
    assert np.abs(ratio - 1).max() > 0.1


@in_float64
def test_a_memory_of_one_entry_gives_every_token_the_same():
    values = normal(0, 1, 3)
    found = recall(normal(1, 2, 1, 5, 3), normal(2, 1, 3), values, TOKENS)
    # 1e-9 beside a share of 1/5 or more.
    np.testing.assert_allclose(found, np.broadcast_to(values, (2, 1, 5, 3)), rtol=1e-7)


@pytest.mark.parametrize(("options", "message"), [
    ({"memory": 0}, "model.memory is 0: expected from 1 to"),
    ({"heads": 4}, "model.d_model is 6: model.heads, 4, must divide it"),
    ({"memory_softmax": "both"}, "model.memory_softmax is 'both': expected one of tokens, memory"),
])  # fmt: skip
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        small_spec(block="external_attention", **options)
