import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.models.attention import dot_product
from gmlp_flax.models.attention.windowed import attend_in_windows
from tests.models.attention.cases import normal, transformer
from tests.models.reference import quick_jit


def slow_mix(q, k, v, spec, visible):
    """softmax(q k^T / sqrt(d)) v, token by token: arrays [tokens, d], and who sees whom."""
    tokens, d = q.shape
    mixed = np.zeros_like(v)
    for query in range(tokens):
        keys = []
        for key in range(tokens):
            is_near = abs(query - key) <= spec.window // 2
            is_past = key <= query or not spec.causal
            if is_near and is_past and visible[query, key]:
                keys.append(key)
        scores = np.array([q[query] @ k[key] for key in keys]) / np.sqrt(d)
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        mixed[query] = sum(weight * v[key] for weight, key in zip(weights, keys, strict=True))
    return mixed


# Lengths that are a multiple of the window, one more, one less, and shorter than the window.
@pytest.mark.parametrize("tokens", [16, 17, 15, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", ["none", "padding", "documents"])
def test_windows_are_those_of_the_slow_loop(tokens, causal, mask):
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
    for example in range(2):
        for head in range(2):
            expected = slow_mix(q[example, head], k[example, head], v[example, head], spec, visible)
            np.testing.assert_allclose(mixed[example, head, :read], expected[:read], atol=1e-5)


def test_windows_have_the_gradients_of_the_whole_matrix():
    """Also with examples of padding alone, and without an array of tokens times tokens."""
    spec = transformer(window=4)
    q, k, v = normal(3, 2, 2, 33, 8)
    mask = jnp.arange(33) < jnp.array([[30], [0]])
    weights = normal(2, 2, 33, 8, seed=1) * mask[:, None, :, None]

    def in_windows(q, k, v):
        return (weights * attend_in_windows(q, k, v, spec, mask)).sum()

    def whole(q, k, v):
        logits = dot_product.dot_products(q, k, spec)
        return (weights * dot_product.attend(logits, v, 33, mask)).sum()

    found = quick_jit(jax.grad(in_windows, argnums=(0, 1, 2)))(q, k, v)
    expected = quick_jit(jax.grad(whole, argnums=(0, 1, 2)))(q, k, v)
    for one, other in zip(found, expected, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, atol=1e-5)
    program = str(jax.make_jaxpr(jax.grad(in_windows))(q, k, v))
    assert "33,33]" not in program
    assert "33,33]" in str(jax.make_jaxpr(jax.grad(whole))(q, k, v))


def test_dropout_in_windows_keeps_the_mean():
    spec = transformer(window=4, attention_dropout=0.25)
    q, k, v = normal(3, 1, 2, 20, 8)
    expected = attend_in_windows(q, k, v, spec)
    draw = jax.jit(lambda key: attend_in_windows(q, k, v, spec, dropout_keys=key[None]))
    drawn = jax.vmap(draw)(jax.random.split(jax.random.key(0), 3000))
    assert float(jnp.abs(drawn[0] - expected).max()) > 0.1
    np.testing.assert_allclose(drawn.mean(0), expected, atol=0.1)
