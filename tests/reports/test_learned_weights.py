"""Figures 3, 4, 9 and 10 as reports of a run; tests/runs/test_reproduce.py makes the whole report
of Figure 10."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gmlp_flax import config as config_lib
from gmlp_flax.errors import RunError
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.reports import learned_weights
from gmlp_flax.reports.learned_weights import across, locality, spread
from gmlp_flax.reports.runs import Run
from gmlp_flax.reports.web import page
from gmlp_flax.training import loop
from tests.training import tiny


def test_spread_equals_its_definition():
    """The third of five tokens is the middle one; the rows of the others do not count."""
    weights = np.full((2, 5, 5), 9.0)
    weights[0, 2] = [3, 0, 0, 0, -4]
    weights[1, 2] = [0, 1, 1, 0, 0]
    expected = [
        [9 / 25, 0, 16 / 25, 2],
        [0.5, 0.5, 0, np.sqrt(0.5)],
    ]
    assert_allclose(spread(weights), expected, rtol=1e-12)


def test_locality_equals_its_definition():
    """On a grid of 2 x 3 patches."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(2, 6, 6))
    positions = list(np.ndindex(2, 3))
    expected = []
    for layer in weights:
        shares = [0.0, 0.0, 0.0]
        square = 0.0
        rows = zip(positions, layer, strict=True)
        for (i, j), row in rows:
            total = sum(row * row)
            for (m, n), w in zip(positions, row, strict=True):
                energy = w * w / total / 6
                down = abs(i - m)
                right = abs(j - n)
                distance = max(down, right)
                shares[min(2, distance)] += energy
                squared_distance = down**2 + right**2
                square += energy * squared_distance
        root_mean_square = np.sqrt(square)
        expected.append((*shares, root_mean_square))
    found = locality(weights, (2, 3))
    assert_allclose(found, expected, rtol=1e-12)


@pytest.fixture
def dense_run(tmp_path):
    """A run with checkpoints at steps 3 and 6."""
    config = tiny.text_config(tmp_path, spatial="dense")
    config.checkpoint.every = 3
    loop.train(config, str(tmp_path / "run"))
    return tmp_path / "run"


def made(name, run, row="sgu"):
    config = config_lib.load(str(run / "config.json"))
    runs = [Run(row, str(run), config, ())]
    table = TABLES[name]
    return learned_weights.report(name, table, runs, "cpu", {})


def test_filters_of_text(text_run):
    report = made("figure4", text_run)
    assert report.table.columns == ("layer", "before", "itself", "after", "distance (tokens)")
    layers = []
    for layer, before, itself, after, distance in report.table.rows:
        layers.append(layer)
        total = before + itself + after
        assert total == pytest.approx(1)
        assert 0 < distance < 16
    assert layers == [1, 2]
    assert set(report.figures) == {"filters"}
    assert len(report.figures["filters"].axes) == 2
    note = report.notes[-1]
    assert note == f"The run: {text_run}"


def test_filters_of_images(image_run):
    report = made("figure3", image_run, "gmlp_b")
    layers = []
    offsets = []
    for layer, itself, neighbors, others, distance, *_, offset in report.table.rows:
        layers.append(layer)
        offsets.append(offset)
        total = itself + neighbors + others
        assert total == pytest.approx(1)
        assert 0 < distance < 8
    assert layers == [1, 2]
    [panel] = report.figures["offsets_share"].panels
    assert report.table.columns[-1] == "offsets"
    assert panel.series[0].y == offsets
    reference = panel.references[0]
    assert reference == ("noise", 48 / 255)
    assert ": steps 12 (paper: 93835); " in report.setting
    assert "; model.image_size (8, 8) (paper: (224, 224)); " in report.setting
    axes = report.figures["filters"].axes
    assert len(axes) == 2 * 6 + 1  # and a color bar


@pytest.mark.slow
def test_matrices_without_the_constraint(dense_run, tmp_path):
    report = made("figure9", dense_run)
    assert report.table.columns == ("step", "layer 1", "layer 2")
    steps = []
    first_shares = []
    for step, first, second in report.table.rows:
        steps.append(step)
        first_shares.append(first)
        # six steps leave noise nearly unchanged
        assert 0 < first < 0.5
        assert 0 < second < 0.5
    assert steps == [3, 6]
    assert "0.118 for noise" in report.notes[-2]  # 30 / 255
    page.write(report, str(tmp_path))
    for name in ("spatial_matrices.svg", "toeplitz_share.pdf", "table.csv"):
        assert (tmp_path / name).exists()
    [panel] = report.figures["toeplitz_share"].panels
    assert panel.series[0].y == first_shares


def test_shares_equal_their_definition():
    rng = np.random.default_rng(0)
    maps = rng.random((3, 5, 5))
    segments = np.array([0, 0, 0, 1, 1])
    expected = []
    for layer in maps:
        other = np.zeros((5, 5))  # weights from one sentence to the other
        for i, j in np.ndindex(5, 5):
            if segments[i] != segments[j]:
                other[i, j] = layer[i, j]
        between = other.sum() / 5
        within = layer.sum() / 5 - between
        largest = other.max()
        expected.append((between, within, largest))
    assert_allclose(across(maps, segments), expected, rtol=1e-12)
    # Even weights: three tokens give 2/5 to the other sentence, two give 3/5.
    even = np.full((1, 5, 5), 0.2)
    first_layer = across(even, segments)[0]
    between, *_ = first_layer
    weighted = 3 * 0.4 + 2 * 0.6
    assert between == pytest.approx(weighted / 5)


def test_run_without_finetuning_is_refused(tmp_path):
    table = TABLES["figure10"]
    run = Run("amlp_36", str(tmp_path), table.config("amlp_36", "cpu"), ())
    message = "amlp_36 was not finetuned on mnli, .*give --finetune=mnli=DATA"
    with pytest.raises(RunError, match=message):
        learned_weights.report("figure10", table, [run], "cpu", {"amlp_36": []})
