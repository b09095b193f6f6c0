"""The report of a sweep, from the files of a sweep, and the curve of a run."""

import json

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.analysis import figure_files
from gmlp_flax.errors import RunError
from gmlp_flax.reports import curves
from gmlp_flax.reports.table import Spread
from tests.data import writers
from tests.failures import raised


def write_metrics(run, perplexities) -> None:
    """A metrics file with a training loss, and an evaluation every ten steps."""
    lines = [{"step": 5, "loss": 3.0}]
    for number, perplexity in enumerate(perplexities, 1):
        lines.append({"step": 10 * number, "eval": {"perplexity": perplexity}})
    run.mkdir()
    (run / "metrics.jsonl").write_bytes(writers.json_lines(*lines))


@pytest.fixture
def folder(tmp_path):
    """Three points: two with two seeds, of which the first has one run that is longer, and one that
    has not finished."""
    runs_of_points = {
        8: {0: [90.0, 50.0, 40.0], 1: [70.0, 30.0]},
        16: {0: [80.0], 1: [60.0]},
        32: {},
    }
    points = []
    for batch, runs in runs_of_points.items():
        finished = []
        for seed, perplexities in runs.items():
            name = f"batch_size={batch},seed={seed}"
            write_metrics(tmp_path / name, perplexities)
            last = {"perplexity": perplexities[-1]}
            finished.append({"seed": seed, "workdir": name, "eval": last})
        points.append({"point": {"batch_size": batch}, "runs": finished, "summary": {}})
    sweep = {
        "config": "quickstart_text",
        "overrides": {},
        "metric": "perplexity",
        "mode": "min",
        "chosen": 1,
        "points": points,
    }
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    return tmp_path


def test_each_point_has_a_row_and_a_curve(folder):
    made = curves.of_sweep(str(folder))
    assert made.table.rows == [
        ("batch_size=8", 2, 35.0, 35.0, 30.0, 40.0, "40.0 30.0"),
        ("batch_size=16", 2, 70.0, 70.0, 60.0, 80.0, "80.0 60.0"),
        ("batch_size=32", 0, None, None, None, None, ""),
    ]
    first, second, third = made.charts["curves"].panels[0].series
    assert first.name == "batch_size=8"
    assert first.x == [10, 20]
    assert first.y == [80.0, 40.0]
    assert first.low == [70.0, 30.0]
    assert first.high == [90.0, 50.0]
    assert second.x == [10]
    assert second.y == [Spread.mean([80.0, 60.0]).centre]
    assert not third.x
    looks = {series.look for series in (first, second, third)}
    assert len(looks) == 3
    assert made.notes[0].startswith("chosen: batch_size=16, for its perplexity with seed 0")


def test_runs_without_metrics_have_no_figure(folder):
    for path in folder.glob("*/metrics.jsonl"):
        path.unlink()
    assert curves.of_sweep(str(folder)).figures == {}


def test_folder_without_a_run_is_refused(tmp_path):
    """Also if a run was stopped before its first line."""
    path = tmp_path / "metrics.jsonl"
    assert str(path) in raised(RunError, curves.of_run, str(tmp_path))
    path.write_text("")
    assert str(path) in raised(RunError, curves.of_run, str(tmp_path))


def test_curve_has_training_and_heldout_points(tmp_path):
    lines = [
        {"step": 5, "loss": 3.0},
        {"step": 10, "loss": 2.0},
        {"step": 10, "eval": {"loss": 2.5}},
    ]
    (tmp_path / "metrics.jsonl").write_bytes(writers.json_lines(*lines))
    [path] = figure_files.save({"loss": curves.of_run(str(tmp_path))}, str(tmp_path))
    [panel] = curves.of_run(str(tmp_path)).panels
    training, heldout = panel.series
    assert training.name == "training"
    assert list(training.x) == [5, 10]
    assert list(training.y) == [3.0, 2.0]
    assert heldout.name == "held out"
    assert list(heldout.x) == [10]
    assert list(heldout.y) == [2.5]
    assert panel.title == "held-out loss 2.5 after 10 steps"
    assert path == str(tmp_path / "figures" / "loss.png")
    config = config_lib.default(task="image_classification")
    config.augment.mixup = 0.8
    (tmp_path / "config.json").write_text(config_lib.to_json(config))
    [panel] = curves.of_run(str(tmp_path)).panels
    assert panel.series[0].name == "training, of softened targets"
    names = {file.name for file in (tmp_path / "figures").iterdir()}
    assert names == {"loss.png", "loss.svg", "loss.pdf"}
