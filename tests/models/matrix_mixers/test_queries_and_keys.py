import numpy as np
import pytest
from numpy.testing import assert_allclose

from gmlp_flax.models.matrix_mixers.base import View
from tests.models.matrix_mixers.cases import mixer
from tests.models.reference import in_float64, params_of


@pytest.mark.parametrize(("kind", "size"), [("low_rank", 5 * 4), ("attention", 4)])
@pytest.mark.parametrize("causal", [False, True])
@in_float64
def test_learned_matrices_are_products_of_queries_and_keys(causal, kind, size):
    """Low rank over sqrt(n d_state), attention a softmax over the keys that a query sees."""
    module = mixer(kind, False, causal=causal)
    p = params_of(module)["matrix"]
    products = p["queries"] @ p["keys"].swapaxes(1, 2)  # [heads, n, n]
    expected = products / np.sqrt(size)
    if kind == "attention":
        expected = np.exp(expected)
    if causal:
        expected = np.tril(expected)
    if kind == "attention":
        expected = expected / expected.sum(-1, keepdims=True)
    [rows] = module.matrix.rows({}, View(0, 5, 5))
    assert_allclose(rows, expected, atol=1e-12)
