import numpy as np
import pytest

from gmlp_flax.models.matrix_mixers.base import View
from tests.models.matrix_mixers.cases import mixer
from tests.models.reference import in_float64, params_of


@pytest.mark.parametrize("causal", [False, True])
@in_float64
def test_learned_matrices_are_products_of_queries_and_keys(causal):
    """Low rank over sqrt(n d_state), attention a softmax over the keys that a query sees."""
    visible = np.tril(np.ones((5, 5), bool)) if causal else np.ones((5, 5), bool)
    for kind in ("low_rank", "attention"):
        module = mixer(kind, False, causal=causal)
        p = params_of(module)["matrix"]
        products = p["queries"] @ p["keys"].swapaxes(1, 2)  # [heads, n, n]
        if kind == "low_rank":
            expected = np.where(visible, products / np.sqrt(5 * 4), 0)
        else:
            exponentials = np.where(visible, np.exp(products / np.sqrt(4)), 0)
            expected = exponentials / exponentials.sum(-1, keepdims=True)
        rows = module.matrix.rows({}, View(0, 5, 5))
        np.testing.assert_allclose(rows[0], expected, atol=1e-12)
