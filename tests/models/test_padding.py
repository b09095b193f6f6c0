"""Zeros along an axis, and in place of padding."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gmlp_flax.models.padding import documents_of, pad_axis, zero_padding


@pytest.mark.parametrize("axis", [1, -2])
def test_zeros_are_added_at_both_ends(axis):
    x = np.arange(12.0).reshape(2, 3, 2)
    expected = np.zeros((2, 6, 2))
    expected[:, 1:4] = x
    padded = pad_axis(jnp.asarray(x), axis, 1, 2)
    assert_array_equal(padded, expected)


def test_no_zeros_may_be_added():
    x = jnp.ones((2, 3), bool)
    padded = pad_axis(x, 0, 0, 0)
    assert padded.dtype == bool
    assert_array_equal(padded, x)


@pytest.mark.parametrize("dtype", [bool, np.int32], ids=["mask", "documents"])
def test_padding_becomes_zeros(dtype):
    """Even NaN."""
    x = np.full((2, 3, 2), 5.0)
    x[0, 2] = np.nan
    expected = np.full((2, 3, 2), 5.0)
    expected[0, 2] = 0
    padding_mask = jnp.asarray([[1, 2, 0], [1, 1, 1]], dtype)
    zeroed = zero_padding(jnp.asarray(x), padding_mask)
    assert_array_equal(zeroed, expected)


def test_numbers_without_a_mask_stay():
    x = jnp.asarray([[1.0, np.nan]])
    assert_array_equal(zero_padding(x, None), x)


def test_only_masks_of_whole_numbers_have_documents():
    """A mask of True and False has one document."""
    documents = jnp.asarray([[1, 2, 0]])
    assert_array_equal(documents_of(documents), documents)
    assert documents_of(documents > 0) is None
    assert documents_of(None) is None
