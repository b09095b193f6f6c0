"""Zeros along one axis and at padding, against arrays that are filled by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.models.padding import documents_of, pad_axis, zero_padding


@pytest.mark.parametrize("axis", [1, -2])
def test_pad_axis(axis):
    x = np.arange(12.0).reshape(2, 3, 2)
    expected = np.zeros((2, 6, 2))
    expected[:, 1:4] = x
    np.testing.assert_array_equal(pad_axis(jnp.asarray(x), axis, 1, 2), expected)


def test_nothing_is_added():
    x = jnp.ones((2, 3), bool)
    padded = pad_axis(x, 0, 0, 0)
    assert padded.dtype == bool
    np.testing.assert_array_equal(padded, x)


@pytest.mark.parametrize("dtype", [bool, np.int32])
def test_padding_becomes_zeros(dtype):
    """By a mask, or by the documents of the tokens. What was there, such as NaN, leaves no trace."""
    x = np.full((2, 3, 2), 5.0)
    x[0, 2] = np.nan
    expected = np.full((2, 3, 2), 5.0)
    expected[0, 2] = 0
    padding_mask = jnp.asarray([[1, 2, 0], [1, 1, 1]], dtype)
    np.testing.assert_array_equal(zero_padding(jnp.asarray(x), padding_mask), expected)
    np.testing.assert_array_equal(zero_padding(jnp.asarray(x), None), x)


def test_documents_are_whole_numbers():
    """A mask of True and False has one document."""
    documents = jnp.asarray([[1, 2, 0]])
    np.testing.assert_array_equal(documents_of(documents), documents)
    assert documents_of(documents > 0) is None
    assert documents_of(None) is None
