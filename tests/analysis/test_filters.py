"""Learned spatial filters, as numbers and as images."""

import collections

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

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
    blocks = trained.params["encoder"]["blocks"]
    return blocks["gate"]["spatial"]


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "row", "column"), [(0, 0, 31), (1, 31, 0), (1, 16, 20)])
def test_matrices_are_toeplitz_for_text(text_run, layer, row, column):
    trained = pretrained.load(str(text_run))
    weights = filters.matrices(trained)
    taps = np.asarray(gate_params(trained)["taps"])
    assert weights.shape == (2, 32, 32)
    offset = column - row
    expected = taps[layer, 31 + offset]
    assert weights[layer, row, column] == expected


def test_long_rows_are_drawn_near_their_token_with_a_small_plot_of_the_whole_row():
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((2, 64, 64), np.float32)
    figure = filters.draw_text_filters(weights)
    assert len(figure.axes) == 2
    for axis in figure.axes:
        limits = (-filters.NEAR, filters.NEAR)
        assert axis.get_xlim() == limits
        [whole] = axis.child_axes
        line = whole.lines[0]
        first_offset, _ = whole.get_xlim()
        assert len(line.get_xdata()) == 64
        assert first_offset < -32


def test_text_figure_shows_the_middle_row_of_each_layer():
    count = 7 * 5 * 5
    numbers = np.arange(count, dtype=np.float32)
    weights = numbers.reshape(7, 5, 5)
    figure = filters.draw_text_filters(weights)
    axes = [axis for axis in figure.axes if axis.axison]
    titles = [axis.get_title(loc="left") for axis in axes]
    expected = [f"layer {number}" for number in range(1, 8)]
    assert titles == expected
    scales = {axis.get_ylim() for axis in axes}
    assert len(scales) == 1
    fourth = axes[3]
    target, row, mark = fourth.lines
    middle_row = weights[3, 2]
    assert_array_equal(row.get_ydata(), middle_row)
    places = row.get_xdata().tolist()
    assert places == [-2, -1, 0, 1, 2]
    assert set(target.get_xdata()) == {0}
    points = mark.get_xydata().tolist()
    assert points == [[0, middle_row[2]]]
    assert not fourth.child_axes


def test_weights_between_patches_are_whole_matrices_without_a_cls_token(image_run):
    trained = pretrained.load(str(image_run))
    model = trained.config.model
    weights, grid = filters.between_tokens(trained)
    assert grid == patch_grid(model.image_size, model.patch_size)
    assert_array_equal(weights, filters.matrices(trained))
    assert_array_equal(weights, gate_params(trained)["weight"])


def pixels_of(axis) -> np.ndarray:
    """The array of the image on an axis."""
    image = axis.images[0]
    return image.get_array()


def test_rows_of_patches_are_laid_out_as_the_image(image_run, monkeypatch):
    trained = pretrained.load(str(image_run))
    weights, grid = filters.between_tokens(trained)
    rows, columns = grid
    monkeypatch.setattr(filters, "PATCHES_SHOWN", 1)
    figure = filters.draw_patch_filters(weights, grid)
    *axes, colour_bar = figure.axes
    means = filters.mean_filters(weights, grid)
    for layer, mean_filter in enumerate(means):
        start = 3 * layer
        first, mean, noise = axes[start : start + 3]
        first_row = weights[layer, 0]
        first_filter = first_row.reshape(grid)
        assert_array_equal(pixels_of(first), first_filter)
        assert_array_equal(pixels_of(mean), mean_filter)
        assert pixels_of(noise).shape == mean_filter.shape
        assert first.patches[0].get_xy() == (-0.5, -0.5)
        center = (columns - 1.5, rows - 1.5)
        assert mean.patches[0].get_xy() == center
        assert first.get_ylabel() == f"layer {layer + 1}"
    drawn = axes[: 3 * len(weights)]
    scales = set()
    for axis in drawn:
        scales.add(axis.images[0].get_clim())
    assert len(scales) == 1
    assert colour_bar.get_ylabel() == "weight"


def test_a_mean_filter_has_the_mean_of_each_offset():
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((2, 6, 6))
    at_offset = collections.defaultdict(list)
    patches = list(np.ndindex(2, 3))
    for target, (row, column) in enumerate(patches):
        for source, (source_row, source_column) in enumerate(patches):
            down = source_row - row
            right = source_column - column
            entries = weights[:, target, source]
            at_offset[down, right].append(entries)
    means = filters.mean_filters(weights, (2, 3))
    assert means.shape == (2, 3, 5)
    assert len(at_offset) == 15
    for (down, right), values in at_offset.items():
        row = down + 1
        column = right + 2
        found = means[:, row, column]
        expected = np.mean(values, axis=0)
        assert_allclose(found, expected, rtol=1e-12)


def test_runs_without_spatial_gates_are_refused(tmp_path):
    config = tiny.text_config(tmp_path, block="transformer", heads=2)
    task = tasks.find(config.task)(config)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), task.shapes())
    model = Model(task, params, Partition.make())
    with pytest.raises(RunError, match="model.block is 'transformer'"):
        filters.matrices(model)


@pytest.mark.parametrize("kind", [pytest.param("text_run", marks=pytest.mark.slow), "image_run"])
def test_the_command_writes_an_image_in_three_formats(kind, request):
    workdir = request.getfixturevalue(kind)
    done = preloaded.gmlp("draw", "filters", str(workdir))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{workdir}/figures/filters.png"
    for suffix in (".png", ".svg", ".pdf"):
        assert (workdir / "figures" / f"filters{suffix}").exists()
