import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.models.attention import dot_product
from gmlp_flax.models.attention.windowed import attend_in_windows
from tests.models.attention.cases import normal, transformer
from tests.models.reference import dot_products, quick_jit, softmax_mix


def slow_mix(q, k, v, spec, visible):
    """softmax(q k^T / sqrt(d)) v, token by token: arrays [tokens, d], and who sees whom."""
    tokens, _ = q.shape
    mixed = []
    for query in range(tokens):
        keys = []
        for key in range(tokens):
            is_near = abs(query - key) <= spec.window // 2
            is_past = key <= query or not spec.causal
            if is_near and is_past and visible[query, key]:
                keys.append(key)
        scores = dot_products(q[query], k[keys])
        mixed.append(softmax_mix(scores, v[keys]))
    return np.stack(mixed)


TOKENS = {
    "a multiple of the window": 16,
    "one more": 17,
    "one less": 15,
    "shorter than the window": 3,
}


@pytest.mark.parametrize("tokens", TOKENS.values(), ids=TOKENS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", ["none", "padding", "documents"])
def test_windows_agree_with_loops(tokens, causal, mask):
    spec = transformer(window=4, causal=causal)
    q, k, v = np.asarray(normal(3, 2, 2, tokens, 8))
    padding_mask = None
    visible = np.ones((tokens, tokens), bool)
    read = tokens  # the rows that are compared: those of padding have no meaning
    if mask == "padding":
        read = tokens - 2
        padding_mask = jnp.broadcast_to(jnp.arange(tokens) < read, (2, tokens))
        visible[:, read:] = False
    elif mask == "documents":
        documents = 1 + np.arange(tokens) // 3
        padding_mask = jnp.broadcast_to(jnp.asarray(documents, jnp.int32), (2, tokens))
        visible = documents[:, None] == documents
    attend = quick_jit(lambda q, k, v: attend_in_windows(q, k, v, spec, padding_mask))
    mixed = attend(q, k, v)
    assert mixed.shape == (2, 2, tokens, 8)
    for index in np.ndindex(2, 2):
        expected = slow_mix(q[index], k[index], v[index], spec, visible)
        np.testing.assert_allclose(mixed[index][:read], expected[:read], atol=1e-5)


def test_windows_have_the_gradients_of_the_whole_matrix():
    """Also with examples of padding alone, and without an array of tokens times tokens."""
    spec = transformer(window=4)
    q, k, v = normal(3, 2, 2, 33, 8)
    mask = jnp.arange(33) < jnp.array([[30], [0]])
    is_text = mask[:, None, :, None]
    weights = jnp.where(is_text, normal(2, 2, 33, 8, seed=1), 0)

    def in_windows(q, k, v):
        mixed = attend_in_windows(q, k, v, spec, mask)
        return (weights * mixed).sum()

    def whole(q, k, v):
        logits = dot_product.dot_products(q, k, spec)
        mixed = dot_product.attend(logits, v, 33, mask)
        return (weights * mixed).sum()

    gradient_in_windows = jax.grad(in_windows, argnums=(0, 1, 2))
    gradient_of_whole = jax.grad(whole, argnums=(0, 1, 2))
    found = quick_jit(gradient_in_windows)(q, k, v)
    expected = quick_jit(gradient_of_whole)(q, k, v)
    for one, other in zip(found, expected, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert "33,33]" not in str(jax.make_jaxpr(gradient_in_windows)(q, k, v))
    assert "33,33]" in str(jax.make_jaxpr(gradient_of_whole)(q, k, v))


def test_dropout_in_windows_keeps_the_mean():
    spec = transformer(window=4, attention_dropout=0.25)
    q, k, v = normal(3, 1, 2, 20, 8)

    def draw(key):
        return attend_in_windows(q, k, v, spec, dropout_keys=key[None])

    expected = attend_in_windows(q, k, v, spec)
    keys = jax.random.split(jax.random.key(0), 3000)
    drawn = jax.vmap(jax.jit(draw))(keys)
    difference = jnp.abs(drawn[0] - expected)
    assert difference.max() > 0.1
    np.testing.assert_allclose(drawn.mean(0), expected, atol=0.1)
