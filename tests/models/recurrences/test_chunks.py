"""Chunks and their decays, token by token."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models.recurrences import chunks
from tests.models.reference import in_float64, normal, quick_jit

DOCUMENTS = np.array([[1, 1, 1, 2, 2, 3, 3], [1, 1, 1, 1, 2, 0, 0]])


def padded_documents():
    """The documents of three chunks of 3: two added tokens belong to the last document."""
    last_token = DOCUMENTS[:, -1:]
    return np.concatenate([DOCUMENTS, last_token, last_token], axis=1)


@pytest.mark.parametrize("tokens", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_chunks_hold_the_tokens_in_order(tokens, axis):
    """Zeros fill the last chunk."""
    x = tokens_on_axis(tokens, axis)
    split = chunks.split(jnp.asarray(x), 4, axis)
    by_chunk = np.asarray(split)
    chunk_count = -(-tokens // 4)
    expected_shape = list(x.shape)
    expected_shape[axis : axis + 1] = [chunk_count, 4]
    assert list(by_chunk.shape) == expected_shape
    for token in range(4 * chunk_count):
        number, place = divmod(token, 4)
        chunk = np.take(by_chunk, number, axis)
        found = np.take(chunk, place, axis)
        if token < tokens:
            expected = np.take(x, token, axis)
            assert_array_equal(found, expected)
        else:
            assert not found.any()


@pytest.mark.parametrize("tokens", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_joined_chunks_are_the_tokens(tokens, axis):
    x = tokens_on_axis(tokens, axis)
    tokens_array = jnp.asarray(x)
    by_chunk = chunks.split(tokens_array, 4, axis)
    joined = chunks.join(by_chunk, tokens, axis)
    assert_array_equal(joined, x)


def tokens_on_axis(tokens, axis):
    """Random numbers of shape [2, 3, 5] with another size of one axis."""
    shape = [2, 3, 5]
    shape[axis] = tokens
    return normal(0, *shape).astype(np.float32)


def test_tokens_see_earlier_ones_of_their_document():
    """In chunks of 3."""
    by_chunk = padded_documents().reshape(2, 3, 3)
    visible = chunks.visibility(3, jnp.asarray(DOCUMENTS))
    assert visible.pairs.shape == (2, 1, 3, 3, 3)
    is_earlier = np.tri(3, dtype=bool)
    for example, chunk in np.ndindex(2, 3):
        documents = by_chunk[example, chunk]
        is_same_document = documents[:, None] == documents
        pairs = visible.pairs[example, 0, chunk]
        assert_array_equal(pairs, is_earlier & is_same_document)


def test_tokens_see_the_state_and_the_last_token_of_their_document():
    """The state is that of the token before the chunk, or of the first token of the text."""
    padded = padded_documents()
    visible = chunks.visibility(3, jnp.asarray(DOCUMENTS))
    for example, chunk in np.ndindex(2, 3):
        documents = padded[example]
        first = 3 * chunk
        of_chunk = documents[first : first + 3]
        before = documents[max(0, first - 1)]
        last = documents[first + 2]
        state_visible = visible.state[example, 0, chunk]
        last_visible = visible.last[example, 0, chunk]
        assert_array_equal(state_visible, of_chunk == before)
        assert_array_equal(last_visible, of_chunk == last)


def test_one_document_needs_one_array_for_all_chunks():
    visible = chunks.visibility(3)
    assert visible.pairs.shape == (1, 1, 1, 3, 3)
    expected = np.tri(3, dtype=bool)
    assert_array_equal(visible.pairs[0, 0, 0], expected)
    assert visible.state.all()
    assert visible.last.all()


def decays_by_products(decay):
    """The decays of one chunk of one document."""
    size = len(decay)
    from_state = np.zeros(size)
    to_end = np.zeros(size)
    pairs = np.zeros((size, size))
    for row in range(size):
        up_to_row = decay[: row + 1]
        after_row = decay[row + 1 :]
        from_state[row] = up_to_row.prod()
        to_end[row] = after_row.prod()
        for column in range(size):
            between = up_to_row[column + 1 :]
            pairs[row, column] = between.prod()
    return DecaysOfChunk(from_state, to_end, pairs)


class DecaysOfChunk(NamedTuple):
    """From the state to each token, from each to the end, and from column to row of each pair."""

    from_state: np.ndarray
    to_end: np.ndarray
    pairs: np.ndarray


def assert_visible(found, decays, is_visible):
    """Asserts that hidden decays are 0."""
    expected = np.where(is_visible, decays, 0)
    assert_allclose(found, expected, atol=1e-14)


@pytest.mark.parametrize("by_document", [False, True])
@in_float64
def test_decays_are_products_of_the_tokens_between(by_document):
    size = 4
    logits = normal(0, 2, 1, 2, size)
    sizes = np.abs(logits)
    decay = np.exp(-sizes)
    documents = None
    if by_document:
        documents_of_examples = [[1, 1, 1, 1, 2, 2, 2, 2], [1, 1, 2, 2, 2, 2, 3, 3]]
        documents = jnp.asarray(documents_of_examples)
    visible = chunks.visibility(size, documents)
    log_decay = jnp.log(decay)
    found = chunks.decays(log_decay, visible)
    is_pair = np.broadcast_to(visible.pairs, (2, 1, 2, size, size))
    is_in_state = np.broadcast_to(visible.state, (2, 1, 2, size))
    is_in_last = np.broadcast_to(visible.last, (2, 1, 2, size))
    for chunk in np.ndindex(2, 1, 2):
        expected = decays_by_products(decay[chunk])
        from_state = found.from_state[chunk]
        assert_visible(from_state, expected.from_state, is_in_state[chunk])
        to_end = found.to_end[chunk]
        assert_visible(to_end, expected.to_end, is_in_last[chunk])
        ratios = found.ratios[chunk]
        assert_visible(ratios, expected.pairs, is_pair[chunk])


def test_masked_exponents_may_overflow():
    """Neither the value nor the gradient is NaN."""
    mask = jnp.asarray([True, False, False])

    def total(exponents):
        return chunks.masked_exp(exponents, mask).sum()

    exponents = jnp.asarray([0.5, 1e4, jnp.inf])
    value_and_gradient = quick_jit(jax.value_and_grad(total))
    value, gradient = value_and_gradient(exponents)
    expected = np.exp(0.5)
    assert_allclose(value, expected, rtol=1e-6)
    assert_allclose(gradient, [expected, 0, 0], rtol=1e-6)
