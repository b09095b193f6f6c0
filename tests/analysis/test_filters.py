"""Learned spatial filters, as numbers and as images."""

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


def test_matrices_are_toeplitz_for_text(text_run):
    trained = pretrained.load(str(text_run))
    weights = filters.matrices(trained)
    taps = np.asarray(trained.params["encoder"]["blocks"]["gate"]["spatial"]["taps"])
    assert weights.shape == (2, 32, 32)
    for layer, i, j in ((0, 0, 31), (1, 31, 0), (1, 16, 20)):
        assert weights[layer, i, j] == taps[layer, 31 + j - i]


def test_a_long_row_is_seen_near_its_token_and_whole():
    weights = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float32)
    for axis in filters.draw_text_filters(weights).axes:
        assert axis.get_xlim() == (-filters.NEAR, filters.NEAR)
        [whole] = axis.child_axes
        assert len(whole.lines[0].get_xdata()) == 64
        assert whole.get_xlim()[0] < -32


def test_text_figure_shows_the_middle_row_of_each_layer():
    weights = np.arange(7 * 5 * 5, dtype=np.float32).reshape(7, 5, 5)
    figure = filters.draw_text_filters(weights)
    shown = [axis for axis in figure.axes if axis.axison]
    assert [axis.get_title(loc="left") for axis in shown] == [
        f"layer {number}" for number in range(1, 8)
    ]
    target, row, mark = shown[3].lines
    np.testing.assert_array_equal(row.get_ydata(), weights[3, 2])
    assert set(target.get_xdata()) == {0}
    assert mark.get_xydata().tolist() == [[0, weights[3, 2, 2]]]
    assert row.get_xdata().tolist() == [-2, -1, 0, 1, 2]
    assert not shown[3].child_axes
    assert len({axis.get_ylim() for axis in shown}) == 1


def test_rows_of_patches_are_laid_out_as_the_image(image_run, monkeypatch):
    trained = pretrained.load(str(image_run))
    weights, (rows, columns) = filters.between_tokens(trained)
    assert (rows, columns) == patch_grid(
        trained.config.model.image_size, trained.config.model.patch_size
    )
    np.testing.assert_array_equal(weights, filters.matrices(trained))  # there is no cls token
    np.testing.assert_array_equal(
        weights, trained.params["encoder"]["blocks"]["gate"]["spatial"]["weight"]
    )
    monkeypatch.setattr(filters, "PATCHES_SHOWN", 1)
    figure = filters.draw_patch_filters(weights, (rows, columns))
    means = filters.mean_filters(weights, (rows, columns))
    for layer in range(len(weights)):
        first, mean, noise = figure.axes[3 * layer : 3 * layer + 3]
        np.testing.assert_array_equal(
            first.images[0].get_array(), weights[layer, 0].reshape(rows, columns)
        )
        np.testing.assert_array_equal(mean.images[0].get_array(), means[layer])
        assert noise.images[0].get_array().shape == means[layer].shape
        assert [axis.patches[0].get_xy() for axis in (first, mean)] == [
            (-0.5, -0.5),
            (columns - 1.5, rows - 1.5),
        ]
        assert first.get_ylabel() == f"layer {layer + 1}"
    assert len({axis.images[0].get_clim() for axis in figure.axes[: 3 * len(weights)]}) == 1
    assert figure.axes[-1].get_ylabel() == "weight"  # the colour bar


def test_a_mean_filter_has_the_mean_of_each_offset():
    weights, (rows, columns) = np.random.default_rng(0).standard_normal((2, 6, 6)), (2, 3)
    at = {}
    for to, target in enumerate(np.ndindex(rows, columns)):
        for of, source in enumerate(np.ndindex(rows, columns)):
            place = source[0] - target[0] + rows - 1, source[1] - target[1] + columns - 1
            at.setdefault(place, []).append(weights[:, to, of])
    found = filters.mean_filters(weights, (rows, columns))
    assert found.shape == (2, 3, 5)
    assert len(at) == 15
    for (row, column), values in at.items():
        np.testing.assert_allclose(found[:, row, column], np.mean(values, axis=0), rtol=1e-12)


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
    assert (done.returncode, done.stdout.strip()) == (0, f"{workdir}/figures/filters.png"), (
        done.stderr
    )
    assert all(
        (workdir / "figures" / f"filters{suffix}").exists() for suffix in (".png", ".svg", ".pdf")
    )
