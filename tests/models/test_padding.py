"""Zeros along one axis, against an array that is filled by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.models.padding import pad_axis


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
