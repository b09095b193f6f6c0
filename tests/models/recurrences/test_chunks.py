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
def test_joined_chunks_are_the_tokens(tokens, axis):
    """And zeros fill the last chunk."""
    shape = [2, 3, 5]
    shape[axis] = tokens
    x = normal(0, *shape).astype(np.float32)
    by_chunk = np.asarray(chunks.split(jnp.asarray(x), 4, axis))
    count = -(-tokens // 4)
    assert by_chunk.shape == (*shape[:axis], count, 4, *shape[axis + 1 :])
    for token in range(tokens):
        of_chunk = np.take(by_chunk, token // 4, axis)
        np.testing.assert_array_equal(np.take(of_chunk, token % 4, axis), np.take(x, token, axis))
    np.testing.assert_allclose(np.abs(by_chunk).sum(), np.abs(x).sum(), rtol=1e-5)
    np.testing.assert_array_equal(chunks.join(jnp.asarray(by_chunk), tokens, axis), x)


def test_tokens_see_earlier_ones_of_their_document():
    """In chunks of 3, the last with two added tokens, which belong to the last document."""
    padded = np.concatenate([DOCUMENTS, DOCUMENTS[:, -1:], DOCUMENTS[:, -1:]], axis=1)
    found = chunks.visibility(3, jnp.asarray(DOCUMENTS))
    assert found.pairs.shape == (2, 1, 3, 3, 3)
    for example, chunk, row in np.ndindex(2, 3, 3):
        first = 3 * chunk
        document = padded[example, first + row]
        state_document = padded[example, max(0, first - 1)]
        assert found.state[example, 0, chunk, row] == (document == state_document)
        last_document = padded[example, first + 2]
        assert found.last[example, 0, chunk, row] == (document == last_document)
        for column in range(3):
            expected = column <= row and padded[example, first + column] == document
            assert found.pairs[example, 0, chunk, row, column] == expected


def test_one_document_needs_no_array_for_each_chunk():
    found = chunks.visibility(3)
    assert found.pairs.shape == (1, 1, 1, 3, 3)
    np.testing.assert_array_equal(found.pairs[0, 0, 0], np.tril(np.ones((3, 3), bool)))
    assert found.state.all()
    assert found.last.all()


@pytest.mark.parametrize("by_document", [False, True])
@in_float64
def test_decays_are_products_of_the_tokens_between(by_document):
    size = 4
    decay = np.exp(-np.abs(normal(0, 2, 1, 2, size)))
    documents = jnp.asarray(np.array([[1, 1, 1, 1, 2, 2, 2, 2], [1, 1, 2, 2, 2, 2, 3, 3]]))
    visible = chunks.visibility(size, documents if by_document else None)
    found = chunks.decays(jnp.log(decay), visible)
    pairs = np.broadcast_to(visible.pairs, (2, 1, 2, size, size))
    state = np.broadcast_to(visible.state, (2, 1, 2, size))
    last = np.broadcast_to(visible.last, (2, 1, 2, size))
    for place in np.ndindex(2, 1, 2):
        of_chunk = decay[place]
        for row in range(size):
            expected = of_chunk[: row + 1].prod() if state[place][row] else 0
            np.testing.assert_allclose(found.from_state[place][row], expected, atol=1e-14)
            expected = of_chunk[row + 1 :].prod() if last[place][row] else 0
            np.testing.assert_allclose(found.to_end[place][row], expected, atol=1e-14)
            for column in range(size):
                between = of_chunk[column + 1 : row + 1].prod()
                expected = between if pairs[place][row, column] else 0
                np.testing.assert_allclose(found.ratios[place][row, column], expected, atol=1e-14)


def test_masked_exponents_may_overflow():
    """Neither the value nor the gradient is NaN."""
    mask = jnp.asarray([True, False, False])

    def total(exponents):
        return chunks.masked_exp(exponents, mask).sum()

    value, gradient = quick_jit(jax.value_and_grad(total))(jnp.asarray([0.5, 1e4, jnp.inf]))
    np.testing.assert_allclose(value, np.exp(0.5), rtol=1e-6)
    np.testing.assert_allclose(gradient, [np.exp(0.5), 0, 0], rtol=1e-6)
