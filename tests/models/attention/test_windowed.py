from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

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
            half = spec.window // 2
            is_near = abs(query - key) <= half
            is_past = key <= query or not spec.causal
            is_visible = visible[query, key]
            if is_near and is_past and is_visible:
                keys.append(key)
        key_vectors = k[keys]
        scores = dot_products(q[query], key_vectors)
        mixed_row = softmax_mix(scores, v[keys])
        mixed.append(mixed_row)
    return np.stack(mixed)


TOKENS = {
    "a multiple of the window": 16,
    "one more": 17,
    "one less": 15,
    "shorter than the window": 3,
}


class Mask(NamedTuple):
    """A mask, which tokens (query, key) see each other by it, and how many rows have a meaning."""

    padding_mask: jax.Array | None
    visible: np.ndarray
    rows: int


def mask_of(kind, tokens):
    """No mask, two tokens of padding at the end, or documents of three tokens."""
    visible = np.ones((tokens, tokens), bool)
    if kind == "none":
        return Mask(None, visible, tokens)
    if kind == "padding":
        rows = tokens - 2
        is_text = np.arange(tokens) < rows
        visible[:, rows:] = False
        rows_of_text = jnp.asarray([is_text, is_text])
        return Mask(rows_of_text, visible, rows)
    documents = 1 + np.arange(tokens) // 3
    visible = documents[:, None] == documents
    batch = [documents, documents]
    padding_mask = jnp.asarray(batch, jnp.int32)
    return Mask(padding_mask, visible, tokens)


@pytest.mark.parametrize("tokens", TOKENS.values(), ids=TOKENS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["none", "padding", "documents"])
def test_windows_agree_with_loops(tokens, causal, kind):
    spec = transformer(window=4, causal=causal)
    numbers = normal(3, 2, 2, tokens, 8)
    q, k, v = np.asarray(numbers)
    mask = mask_of(kind, tokens)

    @quick_jit
    def attend(q, k, v):
        return attend_in_windows(q, k, v, spec, mask.padding_mask)

    mixed = attend(q, k, v)
    assert mixed.shape == (2, 2, tokens, 8)
    for index in np.ndindex(2, 2):
        found = mixed[index]
        expected = slow_mix(q[index], k[index], v[index], spec, mask.visible)
        rows = slice(mask.rows)
        expected_rows = expected[rows]
        assert_allclose(found[rows], expected_rows, atol=1e-5)


def test_windows_have_the_gradients_of_the_whole_matrix():
    """Also for examples with only padding, but without an array of tokens times tokens."""
    spec = transformer(window=4)
    inputs = normal(3, 2, 2, 33, 8)
    lengths = jnp.array([[30], [0]])
    mask = jnp.arange(33) < lengths
    is_text = mask[:, None, :, None]
    numbers = normal(2, 2, 33, 8, seed=1)
    weights = jnp.where(is_text, numbers, 0)

    def in_windows(q, k, v):
        return attend_in_windows(q, k, v, spec, mask)

    def whole(q, k, v):
        logits = dot_product.dot_products(q, k, spec)
        return dot_product.attend(logits, v, 33, mask)

    def gradient_of(mix):
        def loss(q, k, v):
            mixed = mix(q, k, v)
            return (weights * mixed).sum()

        return jax.grad(loss, argnums=(0, 1, 2))

    found = quick_jit(gradient_of(in_windows))(*inputs)
    expected = quick_jit(gradient_of(whole))(*inputs)
    for one, other in zip(found, expected, strict=True):
        assert np.isfinite(one).all()
        assert_allclose(one, other, atol=1e-5)
    windowed_jaxpr = jax.make_jaxpr(gradient_of(in_windows))(*inputs)
    assert "33,33]" not in str(windowed_jaxpr)
    whole_jaxpr = jax.make_jaxpr(gradient_of(whole))(*inputs)
    assert "33,33]" in str(whole_jaxpr)


@pytest.mark.nightly
def test_dropout_in_windows_keeps_the_mean():
    spec = transformer(window=4, attention_dropout=0.25)
    q, k, v = normal(3, 1, 2, 20, 8)

    def draw(key):
        dropout_keys = key[None]
        return attend_in_windows(q, k, v, spec, dropout_keys=dropout_keys)

    expected = attend_in_windows(q, k, v, spec)
    keys = jax.random.split(jax.random.key(0), 3000)
    draw_many = jax.vmap(jax.jit(draw))
    drawn = draw_many(keys)
    difference = jnp.abs(drawn[0] - expected)
    assert difference.max() > 0.1
    assert_allclose(drawn.mean(0), expected, atol=0.1)
