"""The weights of a run as the figures of docs/results read them."""

import numpy as np
import pytest

import gmlp_flax
from docs import generate
from docs.results import matrices, weights
from gmlp_flax.analysis import filters


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "DATA", tmp_path)
    return tmp_path


def test_bands(text_run, folder):
    weights.write("shift-invariance-bands", str(text_run), folder)
    expected = filters.matrices(gmlp_flax.load(str(text_run), "latest"))
    layers, tokens, _ = expected.shape
    lines = matrices.read("shift-invariance-bands", 2)
    assert len(lines) == layers * 17
    for (layer, offset), row in lines:
        for token, value in enumerate(row):
            neighbour = token + int(offset)
            if 0 <= neighbour < tokens:
                wanted = expected[int(layer) - 1, token, neighbour]
                assert value == pytest.approx(wanted, abs=1e-3)
            else:
                assert np.isnan(value)


def test_filters_of_images(image_run, folder):
    weights.write("image-filters-rows", str(image_run), folder)
    model = gmlp_flax.load(str(image_run), "latest")
    expected, grid = filters.between_tokens(model)
    lines = {tuple(names): row for names, row in matrices.read("image-filters-rows", 3)}
    last = len(expected[0]) - 1
    shown = expected[1, last].reshape(grid)
    for row in range(grid[0]):
        found = lines["2", f"patch {last}", str(row)][: grid[1]]
        np.testing.assert_allclose(found, shown[row], atol=1e-4)
    mean = filters.mean_filters(expected, grid)[0]
    np.testing.assert_allclose(lines["1", "mean", "0"], mean[0], atol=1e-4)
