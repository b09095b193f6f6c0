"""The slices of finished runs: scored once, and compared with a reference."""

import json
import math
import shutil

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.errors import RunError, UserError
from gmlp_flax.reports import recall_slices
from gmlp_flax.reports.runs import Run
from tests.failures import raised
from tests.reports.test_language_models import cells, gather, write_runs


def write_slices(run, perplexity, recall_perplexity, step=900, frequent_bigrams=1250):
    """The scores of a run with 1,000 predicted tokens, 100 of them AR hits."""
    predictions = 1000
    recalled = 100
    loss = math.log(perplexity)
    recall_loss = math.log(recall_perplexity)
    total_loss = predictions * loss
    total_recall_loss = recalled * recall_loss
    other_loss = (total_loss - total_recall_loss) / (predictions - recalled)
    content = {
        "step": step,
        "frequent_bigrams": frequent_bigrams,
        "eval": {
            "predictions": predictions,
            "loss": loss,
            "recall_predictions": recalled,
            "recall_perplexity": recall_perplexity,
            "recall_accuracy": 0.5,
            "other_perplexity": math.exp(other_loss),
            "other_accuracy": 0.25,
        },
    }
    (run / recall_slices.FILE).write_text(json.dumps(content))


@pytest.fixture
def table3(tmp_path):
    """A folder of runs of three rows, of which mixer has no slices."""
    perplexities = {
        "bert_rel": ((50.0, 20.0),),
        "sgu": ((50.0, 30.0), (50.0, 30.0)),
        "mixer": ((60.0, 40.0),),
    }
    write_runs(tmp_path, perplexities=perplexities)
    write_slices(tmp_path / "bert_rel-0", 20.0, 5.0)
    write_slices(tmp_path / "sgu-0", 30.0, 40.0)
    write_slices(tmp_path / "sgu-1", 30.0, 10.0)
    return tmp_path


def test_gap_to_attention_is_divided(table3):
    report = gather("table3", table3)
    rows = cells(report, "table-recall-slices")
    assert list(rows) == ["bert_rel", "sgu"]
    sgu = rows["sgu"]
    assert sgu["AR hits (% of tokens)"] == 10
    assert sgu["perplexity, AR hits"].centre == 25
    assert sgu["perplexity, AR hits"].values == (40, 10)
    assert sgu["accuracy, other tokens (%)"].centre == 25
    mean_recall_loss = (math.log(40) + math.log(10)) / 2
    recall_gap = 100 * (mean_recall_loss - math.log(5))
    gap = 1000 * math.log(30 / 20)
    title = "gap to bert_rel from AR hits (%)"
    assert sgu[title] == pytest.approx(100 * recall_gap / gap)
    assert rows["bert_rel"][title] is None
    [note] = [note for note in report.notes if note.startswith("AR hits: ")]
    assert "at most 1,250 times" in note


def test_runs_without_slices_have_no_table(tmp_path):
    write_runs(tmp_path)
    report = gather("table3", tmp_path)
    assert list(report.tables) == ["table"]
    for note in report.notes:
        assert not note.startswith("AR hits")


def test_slices_of_an_earlier_step_are_ignored(table3):
    write_slices(table3 / "sgu-0", 30.0, 40.0, step=450)
    rows = cells(gather("table3", table3), "table-recall-slices")
    assert rows["sgu"]["perplexity, AR hits"].values == (10,)


def test_runs_scored_differently_are_refused(table3):
    write_slices(table3 / "sgu-0", 30.0, 40.0, frequent_bigrams=0)
    message = raised(RunError, gather, "table3", table3)
    assert "sgu-0" in message
    assert "--slices" in message


WITHOUT_ACCURACY = {
    "step": 900,
    "frequent_bigrams": 1250,
    "eval": {"predictions": 9, "loss": 1.0, "recall_predictions": 3, "recall_perplexity": 2.0},
}


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"step": 900}', '{"step": 9, "eval": 3}', json.dumps(WITHOUT_ACCURACY)],
)
def test_damaged_file_is_refused_in_one_line(table3, content):
    path = table3 / "sgu-0" / recall_slices.FILE
    path.write_text(content)
    message = raised(UserError, gather, "table3", table3)
    assert str(path) in message


def finished_run(folder) -> Run:
    """The run in a folder."""
    config = config_lib.load(str(folder / "config.json"))
    lines = MetricsFile.read(str(folder / "metrics.jsonl"))
    return Run("sgu", str(folder), config, lines)


def test_run_is_scored_once(text_run, tmp_path):
    run = finished_run(shutil.copytree(text_run, tmp_path / "run"))
    assert recall_slices.read(run) is None
    recall_slices.measure(run, 5)
    scored = recall_slices.read(run)
    assert scored is not None
    assert scored.step == 12
    assert scored.frequent_bigrams == 5
    result = json.loads((text_run / "result.json").read_text())["eval"]
    assert scored.metrics["loss"] == pytest.approx(result["loss"], rel=1e-6)
    path = tmp_path / "run" / recall_slices.FILE
    content = path.read_text()
    shutil.rmtree(tmp_path / "run" / "checkpoints")  # it is not read again
    recall_slices.measure(run, 5)
    assert path.read_text() == content
