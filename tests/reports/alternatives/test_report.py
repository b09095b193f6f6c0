"""The report of the token mixers: tables of scores, costs and lengths, claims, figures."""

from __future__ import annotations

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.paper.alternatives import COLUMNS
from gmlp_flax.reports import catalogue
from gmlp_flax.reports.alternatives import report as alternatives
from gmlp_flax.reports.runs import NoRuns
from gmlp_flax.reports.table import Spread
from tests.reports import made_up_columns
from tests.reports.test_runs import write_run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alternatives")
    made_up_columns.write_everything(folder)
    return catalogue.of_folder("alternatives", str(folder), "cpu")


def cells(report, name="table"):
    table = report.tables[name]
    return {row[0]: dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.rows}


def test_every_score_stands_in_one_table(made):
    rows = cells(made)
    assert list(rows) == ["bert", "mixer", "sgu", "fnet", "random", "dynamic"]  # in the order of the comparison
    bert = rows["bert"]
    assert bert["masked LM, perplexity"] == Spread(61.0, (60.0, 62.0))
    assert bert["SST-2 (%)"] == Spread(pytest.approx(81), (80.0, 82.0))
    assert bert["IMDB (%), from random parameters"] == Spread(pytest.approx(60.5), (60.0, 61.0))
    assert rows["fnet"]["IMDB (%)"].centre == pytest.approx(76.5) and rows["sgu"]["IMDB (%)"] is None
    assert bert["CIFAR-10, top-1 (%)"].centre == pytest.approx(40)
    assert "ListOps (%)" not in made.table.columns and "MNLI-m (%)" not in made.table.columns
    # 0.4 M parameters in an encoder; a step of 2 x 1,024 tokens takes 0.8 s.
    assert bert["M parameters"] == pytest.approx(0.4, rel=0.02) and bert["layers"] == 2 and rows["sgu"]["layers"] == 4
    assert bert["rate"] == 2e-3


def test_costs_are_per_thousand_tokens(made):
    rows = cells(made, "table-costs")
    assert "ms per 1,000 tokens, n = 128" in rows["bert"] and "ms per 1,000 tokens, n = 1,024" not in rows["bert"]
    # dynamic: 0.6 s for 2,048 tokens at any length; bert was not run at 16,384.
    assert rows["dynamic"]["ms per 1,000 tokens, n = 128"].centre == pytest.approx(600 / 2.048)
    assert rows["bert"]["ms per 1,000 tokens, n = 4,096"].centre == pytest.approx(800 / 2.048 * 4)
    assert rows["bert"]["MB of a step, n = 16,384"] == pytest.approx(2e4)
    assert rows["bert"]["time grows as n^"] == pytest.approx(2) and rows["dynamic"][
        "time grows as n^"
    ] == pytest.approx(1)
    assert rows["dynamic"]["memory grows as n^"] == pytest.approx(1)
    assert any(note.startswith("Compiled but not run, for want of memory: bert at 16,384.") for note in made.notes)


def test_other_lengths_and_compiled_steps(made):
    rows, costs = cells(made, "table-other-lengths"), cells(made, "table-costs")
    shorter, longer = "perplexity at 64 / at its own", "perplexity at 256 / at its own"
    assert (rows["sgu"][shorter], rows["sgu"][longer]) == (75 / 60, "no")
    assert (rows["mixer"][shorter], rows["fnet"][longer], rows["random"][longer]) == ("no", 1.5, 2)
    assert (rows["dynamic"][shorter], rows["dynamic"][longer]) == ("yes", "no")
    assert "Parameters were extended or cut for 256 tokens: random." in made.notes
    assert costs["sgu"]["v5e: GB, n = 512"] == 5 and costs["bert"]["v5e: GB, n = 4,096"] == "20.0, does not fit"
    assert costs["sgu"]["v5e: ms per 1,000 tokens at least, n = 512"] == pytest.approx(100 / 32.768)


def test_what_is_absent_is_said(made):
    assert "Columns without anything: mnli, listops, bytes, pixels." in made.notes
    [absent] = [note for note in made.notes if note.startswith("Rows without anything: ")]
    assert "bert_rel, " in absent and "external" in absent and "sgu" not in absent
    [frame] = [note for note in made.notes if note.startswith("One frame: ")]
    assert (
        "0.397 to 0.402 M parameters in the encoder" in frame or "M parameters in the encoder (the same up to" in frame
    )
    assert ("steps", "900", "125000") in made.setting.scaled


def test_figures_and_claims(made):
    assert set(made.figures) == {"speed_mlm", "speed_sst2", "speed_imdb", "speed_cifar10", "costs"}
    sentences = made.sentences()
    said = "gMLP matches BERT, Table 3. masked LM, perplexity: sgu < 1.02 of bert holds; 55.5 ± 7.8 and 61.0 ± 1.4."
    assert said in sentences


def test_nothing_at_all(tmp_path):
    with pytest.raises(NoRuns, match="holds no run and no measurement of alternatives: make some of its columns first"):
        alternatives.of_folder(str(tmp_path), "cpu")


def test_unfinished_runs_are_named_and_runs_of_other_data_refused(tmp_path):
    for row, train in {"sgu": "a", "bert": "a", "fnet": "b"}.items():
        [config] = COLUMNS["cifar10"].configs("cpu", (row,)).values()
        config.data.train = train
        write_run(tmp_path / "cifar10" / row, config, finished=row == "bert")
        made_up_columns.write_cost(tmp_path, row, 128, (1.0,))
    with pytest.raises(RunError, match="runs of different configs: data.train is 'a' in .* and 'b' in .*fnet"):
        alternatives.of_folder(str(tmp_path), "cpu")
    made = alternatives.of_folder(str(tmp_path), "cpu", rows=("sgu", "bert"))
    assert any(note.startswith("CIFAR-10, top-1 (%): Not finished: sgu seed 0") for note in made.notes)


def test_flags_that_changed_the_runs(tmp_path):
    made_up_columns.write_runs(tmp_path, "alternatives", {"sgu": ((9.0, 8.0),), "bert": ((9.0, 7.0),)})
    for run in ("sgu-0", "bert-0"):
        path = tmp_path / run / "config.json"
        path.write_text(path.read_text().replace('"vocab_size": 2000', '"vocab_size": 500'))
    made_up_columns.write_imdb(tmp_path, "sgu", (0.5,))
    path = tmp_path / "finetuned" / "imdb-sgu" / "seed=0" / "config.json"
    path.write_text(path.read_text().replace('"vocab_size": 2000', '"vocab_size": 500'))
    with pytest.raises(NoRuns):
        alternatives.of_folder(str(tmp_path), "cpu")
    made = alternatives.of_folder(str(tmp_path), "cpu", ["--config.model.vocab_size=500", "--config.augment.mixup=0"])
    rows = cells(made)
    assert list(rows) == ["bert", "sgu"] and rows["sgu"]["IMDB (%)"].centre == pytest.approx(50)
