"""Chunks and their decays, token by token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.models.recurrences import chunks
from tests.models.reference import in_float64, normal, quick_jit

DOCUMENTS = np.array([[1, 1, 1, 2, 2, 3, 3], [1, 1, 1, 1, 2, 0, 0]])


@pytest.mark.parametrize("tokens", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_chunks_hold_the_tokens_in_order(tokens, axis):
    """Zeros fill the last chunk."""
    x = tokens_on_axis(tokens, axis)
    by_chunk = np.asarray(chunks.split(jnp.asarray(x), 4, axis))
    chunk_count = -(-tokens // 4)
    expected_shape = list(x.shape)
    expected_shape[axis : axis + 1] = [chunk_count, 4]
    assert by_chunk.shape == tuple(expected_shape)
    for token in range(4 * chunk_count):
        chunk = np.take(by_chunk, token // 4, axis)
        found = np.take(chunk, token % 4, axis)
        expected = np.take(x, token, axis) if token < tokens else np.zeros_like(found)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("tokens", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_joined_chunks_are_the_tokens(tokens, axis):
    x = tokens_on_axis(tokens, axis)
    by_chunk = chunks.split(jnp.asarray(x), 4, axis)
    joined = chunks.join(by_chunk, tokens, axis)
    np.testing.assert_array_equal(joined, x)


def tokens_on_axis(tokens, axis):
    """Random numbers of shape [2, 3, 5] with another size of one axis."""
    shape = [2, 3, 5]
    shape[axis] = tokens
    return normal(0, *shape).astype(np.float32)


def test_tokens_see_earlier_ones_of_their_document():
    """In chunks of 3, the last with two added tokens, which belong to the last document."""
    last_tokens = DOCUMENTS[:, -1:]
    padded = np.concatenate([DOCUMENTS, last_tokens, last_tokens], axis=1)
    visible = chunks.visibility(3, jnp.asarray(DOCUMENTS))
    pairs = visible.pairs[:, 0]
    state = visible.state[:, 0]
    last = visible.last[:, 0]
    assert pairs.shape == (2, 3, 3, 3)
    for example, chunk, row in np.ndindex(2, 3, 3):
        documents = padded[example]
        first = 3 * chunk
        document = documents[first + row]
        is_in_state = document == documents[max(0, first - 1)]
        is_in_last = document == documents[first + 2]
        assert state[example, chunk, row] == is_in_state
        assert last[example, chunk, row] == is_in_last
        for column in range(3):
            is_same = documents[first + column] == document
            is_seen = is_same and column <= row
            assert pairs[example, chunk, row, column] == is_seen


def test_one_document_needs_one_array_for_all_chunks():
    visible = chunks.visibility(3)
    assert visible.pairs.shape == (1, 1, 1, 3, 3)
    expected = np.tri(3, dtype=bool)
    np.testing.assert_array_equal(visible.pairs[0, 0, 0], expected)
    assert visible.state.all()
    assert visible.last.all()


@pytest.mark.parametrize("by_document", [False, True])
@in_float64
def test_decays_are_products_of_the_tokens_between(by_document):
    size = 4
    decay = np.exp(-np.abs(normal(0, 2, 1, 2, size)))
    documents = None
    if by_document:
        documents = jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 2], [1, 1, 2, 2, 2, 2, 3, 3]])
    visible = chunks.visibility(size, documents)
    found = chunks.decays(jnp.log(decay), visible)
    pairs = np.broadcast_to(visible.pairs, (2, 1, 2, size, size))
    state = np.broadcast_to(visible.state, (2, 1, 2, size))
    last = np.broadcast_to(visible.last, (2, 1, 2, size))
    from_state = np.zeros((2, 1, 2, size))
    to_end = np.zeros((2, 1, 2, size))
    ratios = np.zeros((2, 1, 2, size, size))
    for *chunk, row in np.ndindex(from_state.shape):
        of_chunk = decay[*chunk]
        if state[*chunk, row]:
            from_state[*chunk, row] = of_chunk[: row + 1].prod()
        if last[*chunk, row]:
            to_end[*chunk, row] = of_chunk[row + 1 :].prod()
        for column in range(size):
            if pairs[*chunk, row, column]:
                between = of_chunk[column + 1 : row + 1]
                ratios[*chunk, row, column] = between.prod()
    np.testing.assert_allclose(found.from_state, from_state, atol=1e-14)
    np.testing.assert_allclose(found.to_end, to_end, atol=1e-14)
    np.testing.assert_allclose(found.ratios, ratios, atol=1e-14)


def test_masked_exponents_may_overflow():
    """Neither the value nor the gradient is NaN."""
    mask = jnp.asarray([True, False, False])

    def total(exponents):
        return chunks.masked_exp(exponents, mask).sum()

    exponents = jnp.asarray([0.5, 1e4, jnp.inf])
    value, gradient = quick_jit(jax.value_and_grad(total))(exponents)
    expected = np.exp(0.5)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, [expected, 0, 0], rtol=1e-6)
