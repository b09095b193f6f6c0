"""Making a row of the comparison from a user's runs."""

import dataclasses
import json

import pytest

from gmlp_flax.errors import DataError, RunError
from gmlp_flax.paper.alternatives import COLUMNS
from gmlp_flax.reports import runs
from gmlp_flax.reports.alternatives import report, submissions, submitting
from gmlp_flax.reports.table import Spread
from tests.failures import raised
from tests.reports.test_language_models import cells, write_runs
from tests.reports.test_runs import write_run

ENVIRONMENT = {"packages": {"gmlp_flax": "0.3.0"}, "git_commit": "a" * 40, "git_dirty": True}
STEPS = 900


def write_own(folder, seeds=(0, 1, 2), perplexities=(50.0, 40.0, 45.0), **changes):
    """Runs of a mixer that is not in the comparison: a gMLP of five layers."""
    environment = json.dumps(ENVIRONMENT)
    for seed, perplexity in zip(seeds, perplexities, strict=True):
        configs = COLUMNS["mlm"].configs("cpu", ("sgu",))
        config = configs["sgu"]
        config.model.layers = 5
        config.data.train = "other.jsonl"
        config.update_from_flattened_dict({"seed": seed, **changes})
        rate = config.optimizer.learning_rate
        run = folder / f"own-{seed}-{rate}"
        write_run(run, config, ((STEPS, perplexity),))
        (run / "environment.json").write_text(environment)


@pytest.fixture
def own(tmp_path):
    write_own(tmp_path / "own")
    return tmp_path / "own"


def submit(folder, **changes):
    return submitting.submission("my_mixer", str(folder), "cpu", changes)


def test_row_of_three_seeds(own):
    changes = {"optimizer.learning_rate": 0.5, "data.search": True}
    write_own(own, (7,), (44.0,), **changes)
    made = submit(own)
    assert made.row == "my_mixer"
    assert made.scale == "cpu"
    assert made.version == "0.3.0"
    assert made.commit == "a" * 40 + "-changed"
    assert made.seeds == (0, 1, 2)
    assert made.perplexities == (50, 40, 45)
    assert made.median == 45
    assert made.rates == (made.rate, 0.5)
    configs = COLUMNS["mlm"].configs("cpu", ("sgu",))
    [config] = configs.values()
    assert made.rate == config.optimizer.learning_rate
    assert made.tokens == STEPS * config.batch_size * config.model.length
    assert 400_000 < made.parameters < 600_000


def test_paths_and_seeds_do_not_change_the_hashes(own, tmp_path):
    made = submit(own)
    write_own(tmp_path / "again", (5,), (9.0,), **{"data.train": "x.jsonl"})
    again = submit(tmp_path / "again")
    assert again.config == made.config
    assert again.setting == made.setting
    write_own(tmp_path / "wider", (5,), (9.0,), **{"model.d_ffn": 64})
    wider = submit(tmp_path / "wider")
    assert wider.config != made.config
    assert wider.setting == made.setting


def test_other_text_is_another_setting(own, tmp_path):
    made = submit(own)
    for run in own.iterdir():
        record = {"id": "x", "data": {"heldout": {"content": "y"}}}
        (run / "run.json").write_text(json.dumps(record))
    assert submit(own).setting != made.setting


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 100}, "steps is 100, and 900"),
        ({"masking.rate": 0.3}, "masking.rate"),
        ({"model.length": 64}, "model.length"),
    ],
)
def test_runs_with_another_setting_are_refused(changes, message, tmp_path):
    write_own(tmp_path / "own", **changes)
    error_message = raised(RunError, submit, tmp_path / "own")
    assert message in error_message


def test_setting_changed_for_all_rows(tmp_path):
    write_own(tmp_path / "own", **{"masking.rate": 0.3})
    assert submit(tmp_path / "own", **{"masking.rate": "0.3"}).median == 45


def test_runs_of_several_rows_are_refused(own, tmp_path):
    assert "no finished run" in raised(RunError, submit, tmp_path / "nothing")
    write_own(own, (9,), (44.0,), **{"optimizer.learning_rate": 0.5})
    assert "data.search" in raised(RunError, submit, own)
    folder = str(own)
    message = raised(DataError, submitting.submission, "bert", folder, "cpu", {})
    assert "bert" in message


@pytest.mark.nightly
def test_submitted_row_is_shown_with_ours(own, tmp_path):
    folder = tmp_path / "ours"
    perplexities = {"sgu": ((60.0, 50.0),), "bert": ((60.0, 40.0),)}
    write_runs(folder, "alternatives", perplexities)
    path = str(tmp_path / "rows.csv")
    submissions.append(path, submit(own))
    [row] = submissions.read(path)
    elsewhere = dataclasses.replace(row, row="elsewhere", setting="0" * 12)
    made = report.of_folder(str(folder), "cpu", submissions=[row, elsewhere])
    rows = cells(made)
    assert list(rows) == ["bert", "sgu", "my_mixer (submitted)"]
    submitted = rows["my_mixer (submitted)"]
    median = Spread(45.0, (50.0, 40.0, 45.0))
    assert submitted["masked LM, perplexity"] == median
    assert "rates tried: 1" in submitted["submitted"]
    assert "commit aaaaaaaa with changes" in submitted["submitted"]
    assert rows["sgu"]["submitted"] is None
    assert any(note.endswith("those of the rows here: elsewhere.") for note in made.notes)
    [panel] = made.figures["submitted"].panels
    points = {}
    for series in panel.series:
        points[series.name] = series
    mine = points["submitted"]
    assert mine.x == [2]
    assert mine.y == [45.0]
    assert mine.labels == ["my_mixer"]
    transformer = points["Transformer"]
    assert transformer.x == [1]
    assert transformer.y == [40.0]
    assert transformer.labels == ["bert"]
    without = report.of_folder(str(folder), "cpu")
    assert "submitted" not in without.figures


def test_all_runs_of_a_folder_are_submitted(own):
    found = list(runs.every_run(str(own)))
    assert {run.config.seed for run in found} == {0, 1, 2}
