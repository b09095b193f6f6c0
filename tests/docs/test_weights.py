"""The weights of a run as the figures of docs/results read them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

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
    model = gmlp_flax.load(str(text_run), "latest")
    expected = filters.matrices(model)
    layers, tokens, _ = expected.shape
    lines = matrices.read("shift-invariance-bands", 2)
    assert len(lines) == layers * 17
    for (layer, offset), row in lines:
        matrix = expected[int(layer) - 1]
        for token, value in enumerate(row):
            neighbour = token + int(offset)
            if 0 <= neighbour < tokens:
                assert value == pytest.approx(matrix[token, neighbour], abs=1e-3)
            else:
                assert np.isnan(value)


def test_filters_of_images(image_run, folder):
    weights.write("image-filters-rows", str(image_run), folder)
    model = gmlp_flax.load(str(image_run), "latest")
    expected, grid = filters.between_tokens(model)
    height, width = grid
    rows = {}
    for names, row in matrices.read("image-filters-rows", 3):
        rows[tuple(names)] = row
    last = len(expected[0]) - 1
    filter_of_last = expected[1, last].reshape(grid)
    for number in range(height):
        row = rows["2", f"patch {last}", str(number)]
        assert_allclose(row[:width], filter_of_last[number], atol=1e-4)
    mean = filters.mean_filters(expected, grid)[0]
    assert_allclose(rows["1", "mean", "0"], mean[0], atol=1e-4)
