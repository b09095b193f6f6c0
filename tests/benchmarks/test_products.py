"""Single products: ours and torch's compute the same. The speed itself is not tested."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gmlp_flax.benchmarks import products
from gmlp_flax.benchmarks.products import KINDS, PRODUCTS, Product

SMALL = [
    Product("a model", (6, 10), 5, 6, is_over_tokens=False),
    Product("a model", (7, 5), 5, 6, is_over_tokens=True),
]


@pytest.mark.parametrize("product", SMALL)
def test_both_compute_the_product_and_its_gradients(product):
    torch = pytest.importorskip("torch")
    arrays = product.arrays(2)
    x = arrays["x"].astype(np.float64)
    weight = arrays["weight"].astype(np.float64)
    gradient = arrays["gradient"].astype(np.float64)
    if product.is_over_tokens:
        expected = (
            np.einsum("ij,bjc->bic", weight, x),
            np.einsum("ij,bic->bjc", weight, gradient),
            np.einsum("bic,bjc->ij", gradient, x),
        )
    else:
        expected = (
            x @ weight,
            gradient @ weight.T,
            np.einsum("bti,bto->io", x, gradient),
        )
    ours = products.our_functions(product)
    theirs = products.torch_functions(product)
    for kind, values in zip(KINDS, expected, strict=True):
        found = ours[kind](**arrays)
        assert_allclose(found, values, rtol=1e-4, atol=1e-4)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        of_torch = theirs[kind](**tensors)
        assert_allclose(of_torch.numpy(), values, rtol=1e-4, atol=1e-4)


def test_operations_are_two_for_each_multiply_add():
    over_channels, over_tokens = SMALL
    assert over_channels.flops(2) == 2 * (2 * 5) * 6 * 10
    assert over_tokens.flops(2) == 2 * (2 * 6) * 7 * 5


@pytest.mark.slow
def test_rows_have_the_rate_and_the_ratio(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(products, "PRODUCTS", SMALL)
    monkeypatch.setattr(products, "BATCHES", (2,))
    rows = list(products.bench_products(1))
    names = [entry["name"] for entry in rows]
    assert len(names) == len(SMALL) * len(KINDS) * 2
    assert names[0] == "a model: [6, 10] on [2, 5, 6], forward"
    assert names[1] == "a model: [6, 10] on [2, 5, 6], forward, ours / torch"
    assert {entry["unit"] for entry in rows} == {"GFLOP/s", "x"}


def test_weights_fit_the_models():
    for product in PRODUCTS:
        d_in = product.weight[1] if product.is_over_tokens else product.weight[0]
        assert d_in == (product.tokens if product.is_over_tokens else product.channels)
