import numpy as np
import pytest
from numpy.testing import assert_allclose

from gmlp_flax.models.matrix_mixers.base import View
from tests.models.matrix_mixers.cases import mixer
from tests.models.reference import in_float64, params_of


@pytest.mark.parametrize("causal", [False, True])
@in_float64
def test_fewer_tokens_use_the_upper_left_corner(causal):
    module = mixer("dense", False, causal=causal)
    weight = params_of(module)["matrix"]["weight"]
    assert weight.shape == (3, 5, 5)
    expected = weight[:, :4, :4] / np.sqrt(5)
    if causal:
        expected = np.tril(expected)
    [corner] = module.matrix.rows({}, View(0, 4, 4))
    assert_allclose(corner, expected, atol=1e-12)
    [rows] = module.matrix.rows({}, View(1, 2, 4))
    assert_allclose(rows, expected[:, 1:3], atol=1e-12)
