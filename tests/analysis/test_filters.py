"""Learned spatial filters, as numbers and as images."""

import collections

import jax
import numpy as np
import pytest

from gmlp_flax import tasks
from gmlp_flax.analysis import filters
from gmlp_flax.errors import RunError
from gmlp_flax.models.image import patch_grid
from gmlp_flax.training import pretrained
from gmlp_flax.training.model import Model
from gmlp_flax.training.partition import Partition
from tests import preloaded
from tests.training import tiny


def gate_params(trained):
    return trained.params["encoder"]["blocks"]["gate"]["spatial"]


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "row", "column"), [(0, 0, 31), (1, 31, 0), (1, 16, 20)])
def test_matrices_are_toeplitz_for_text(text_run, layer, row, column):
    trained = pretrained.load(str(text_run))
    weights = filters.matrices(trained)
    taps = np.asarray(gate_params(trained)["taps"])
    assert weights.shape == (2, 32, 32)
    assert weights[layer, row, column] == taps[layer, 31 + column - row]


def test_a_long_row_is_seen_near_its_token_and_whole():
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((2, 64, 64), np.float32)
    for axis in filters.draw_text_filters(weights).axes:
        assert axis.get_xlim() == (-filters.NEAR, filters.NEAR)
        [whole] = axis.child_axes
        assert len(whole.lines[0].get_xdata()) == 64
        assert whole.get_xlim()[0] < -32


def test_text_figure_shows_the_middle_row_of_each_layer():
    numbers = np.arange(7 * 5 * 5, dtype=np.float32)
    weights = numbers.reshape(7, 5, 5)
    figure = filters.draw_text_filters(weights)
    shown = [axis for axis in figure.axes if axis.axison]
    for number, axis in enumerate(shown, 1):
        assert axis.get_title(loc="left") == f"layer {number}"
    assert len(shown) == 7
    assert len({axis.get_ylim() for axis in shown}) == 1
    target, row, mark = shown[3].lines
    np.testing.assert_array_equal(row.get_ydata(), weights[3, 2])
    assert row.get_xdata().tolist() == [-2, -1, 0, 1, 2]
    assert set(target.get_xdata()) == {0}
    assert mark.get_xydata().tolist() == [[0, weights[3, 2, 2]]]
    assert not shown[3].child_axes


def test_rows_of_patches(image_run):
    trained = pretrained.load(str(image_run))
    model = trained.config.model
    weights, grid = filters.between_tokens(trained)
    assert grid == patch_grid(model.image_size, model.patch_size)
    np.testing.assert_array_equal(weights, filters.matrices(trained))  # there is no cls token
    np.testing.assert_array_equal(weights, gate_params(trained)["weight"])


def pixels_of(axis) -> np.ndarray:
    """The array of the image on an axis."""
    return axis.images[0].get_array()


def test_rows_of_patches_are_laid_out_as_the_image(image_run, monkeypatch):
    trained = pretrained.load(str(image_run))
    weights, (rows, columns) = filters.between_tokens(trained)
    monkeypatch.setattr(filters, "PATCHES_SHOWN", 1)
    figure = filters.draw_patch_filters(weights, (rows, columns))
    means = filters.mean_filters(weights, (rows, columns))
    for layer, weight in enumerate(weights):
        start = 3 * layer
        first, mean, noise = figure.axes[start : start + 3]
        np.testing.assert_array_equal(pixels_of(first), weight[0].reshape(rows, columns))
        np.testing.assert_array_equal(pixels_of(mean), means[layer])
        assert pixels_of(noise).shape == means[layer].shape
        assert first.patches[0].get_xy() == (-0.5, -0.5)
        assert mean.patches[0].get_xy() == (columns - 1.5, rows - 1.5)
        assert first.get_ylabel() == f"layer {layer + 1}"
    with_images = figure.axes[: 3 * len(weights)]
    assert len({axis.images[0].get_clim() for axis in with_images}) == 1
    assert figure.axes[-1].get_ylabel() == "weight"  # the colour bar


def test_a_mean_filter_has_the_mean_of_each_offset():
    weights = np.random.default_rng(0).standard_normal((2, 6, 6))
    at_offset = collections.defaultdict(list)
    for to, (row, column) in enumerate(np.ndindex(2, 3)):
        for source, (other_row, other_column) in enumerate(np.ndindex(2, 3)):
            offset = (other_row - row + 1, other_column - column + 2)
            at_offset[offset].append(weights[:, to, source])
    means = filters.mean_filters(weights, (2, 3))
    assert means.shape == (2, 3, 5)
    assert len(at_offset) == 15
    for (row, column), values in at_offset.items():
        expected = np.mean(values, axis=0)
        np.testing.assert_allclose(means[:, row, column], expected, rtol=1e-12)


def test_a_run_without_spatial_gates(tmp_path):
    config = tiny.text_config(tmp_path, block="transformer", heads=2)
    task = tasks.find(config.task)(config)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), task.shapes())
    with pytest.raises(RunError, match="model.block is 'transformer'"):
        filters.matrices(Model(task, params, Partition.make()))


@pytest.mark.parametrize("kind", ["text_run", "image_run"])
def test_command_writes_an_image(kind, request):
    workdir = request.getfixturevalue(kind)
    done = preloaded.gmlp("draw", "filters", str(workdir))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{workdir}/figures/filters.png"
    for suffix in (".png", ".svg", ".pdf"):
        assert (workdir / "figures" / f"filters{suffix}").exists()
