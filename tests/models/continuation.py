"""Texts that a causal language model reads in parts, with a cache, against the whole text."""

import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose

from tests.models.reference import function_of, quick_jit


def assert_same_logits_in_parts(model, tokens):
    """In float64: a prompt of four tokens, padded to six, then token by token, then two at once.
    Returns the logits of the whole text."""
    batch, length = tokens.shape
    state, extend = function_of(model, "extend")
    extend = quick_jit(extend)
    whole = quick_jit(model)(tokens)

    def assert_logits_after(position, logits):
        assert_allclose(logits, whole[:, position], atol=1e-10)

    padding = np.full((batch, 2), 10)
    prompt = np.concatenate([tokens[:, :4], padding], axis=1)
    logits, cache = extend(state, prompt, None, 0, 3)
    assert_logits_after(3, logits)
    for position in range(4, length - 2):
        token = tokens[:, position : position + 1]
        logits, cache = extend(state, token, cache, position, 0)
        assert_logits_after(position, logits)
    last_two = tokens[:, length - 2 :]
    logits, _ = extend(state, last_two, cache, length - 2, 1)
    assert_logits_after(length - 1, logits)
    return whole


def assert_same_logits_token_by_token(model, tokens):
    """In float32. Returns the caches after the last token."""
    whole = quick_jit(model)(tokens)
    extend = quick_jit(model.extend)
    caches = None
    for position in range(tokens.shape[1]):
        token = tokens[:, position : position + 1]
        logits, caches = extend(token, caches, jnp.int32(position), jnp.int32(0))
        assert_allclose(logits, whole[:, position], rtol=1e-4, atol=1e-5)
    return caches
