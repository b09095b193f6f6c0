"""The report on the token mixers: tables of scores and costs, claims, figures."""

import json
import shutil

import pytest

from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.paper.alternatives import COLUMNS, ROWS
from gmlp_flax.reports.alternatives import report
from gmlp_flax.reports.alternatives.report import over_speed
from gmlp_flax.reports.costs import read_costs
from gmlp_flax.reports.runs import NoRuns
from gmlp_flax.reports.table import Spread
from gmlp_flax.sweeps import points
from tests.custom_blocks import AVERAGING
from tests.reports import made_up_columns
from tests.reports.test_language_models import cells
from tests.reports.test_runs import write_run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alternatives")
    made_up_columns.write_everything(folder)
    return report.of_folder(str(folder), "cpu")


@pytest.mark.slow
def test_all_scores_are_in_one_table(made):
    rows = cells(made)
    # in the order of the comparison
    assert list(rows) == ["bert", "sgu", "fnet", "random", "dynamic"]
    bert = rows["bert"]
    assert bert["masked LM, perplexity"] == Spread(61.0, (60.0, 62.0))
    median = Spread(pytest.approx(81), (80.0, 82.0), "median")
    assert bert["SST-2 (%)"] == median
    random_start = bert["IMDB (%), from random parameters"]
    random_median = Spread(pytest.approx(60.5), (60.0, 61.0), "median")
    assert random_start == random_median
    imdb = rows["fnet"]["IMDB (%)"]
    assert imdb.centre == pytest.approx(76.5)
    assert rows["sgu"]["IMDB (%)"] is None
    assert bert["CIFAR-10, top-1 (%)"].centre == pytest.approx(40)
    assert "ListOps (%)" not in made.table.columns
    assert "MNLI-m (%)" not in made.table.columns
    # 0.4 M parameters in an encoder; a step of 2 x 1,024 tokens takes 0.8 s.
    assert bert["M parameters"] == pytest.approx(0.4, rel=0.02)
    assert bert["layers"] == 2
    assert rows["sgu"]["layers"] == 4
    assert bert["rate"] == 2e-3


@pytest.mark.slow
def test_user_defined_class_has_a_row_a_rate_and_marks(tmp_path):
    """Its search and costs are in files whose names have no colon."""
    made_up_columns.write_everything(tmp_path)
    column = COLUMNS["mlm"]
    configs = column.configs("cpu", [AVERAGING])
    config = configs[AVERAGING]
    config.data.train = "books.jsonl"
    scores = ((450, 50.0), (900, 45.0))
    write_run(tmp_path / "averaging", config, scores)
    perplexities = (60, 55, 50, 52, 90)
    searched = zip(column.search_points("cpu", AVERAGING), perplexities, strict=True)
    for point, perplexity in searched:
        point_name = points.name(point)
        folder = tmp_path / "search" / point_name
        folder.mkdir(parents=True)
        result = {"step": 900, "eval": {"perplexity": perplexity}}
        (folder / "result.json").write_text(json.dumps(result))
    costs_name = points.folder_name(AVERAGING)
    made_up_columns.write_cost(tmp_path, costs_name, 128, (0.5,))
    made_up_columns.write_cost(tmp_path, costs_name, 1024, (0.5,))
    made = report.of_folder(str(tmp_path), "cpu", classes=[AVERAGING])
    row = cells(made)[AVERAGING]
    assert row["masked LM, perplexity"].centre == 45
    assert row["M parameters"] == pytest.approx(0.395776)
    rates = cells(made, "table-rates-mlm")[AVERAGING]
    assert rates["0.001"] == 60
    assert rates["0.016"] == 90
    assert rates["best"] == 4e-3
    costs = cells(made, "table-costs")[AVERAGING]
    cost = costs["ms per 1,000 tokens, n = 128"]
    assert cost.centre == pytest.approx(500 / 2.048)
    [panel] = made.figures["speed_mlm"].panels
    [series] = [series for series in panel.series if series.name == "Averaging"]
    assert series.labels == ["Averaging"]
    without_class = report.of_folder(str(tmp_path), "cpu")
    assert AVERAGING not in cells(without_class)


def test_costs_are_per_thousand_tokens(made):
    rows = cells(made, "table-costs")
    bert = rows["bert"]
    dynamic = rows["dynamic"]
    assert "ms per 1,000 tokens, n = 128" in bert
    assert "ms per 1,000 tokens, n = 1,024" not in bert
    # dynamic: 0.6 s for 2,048 tokens at any length; bert was not run at 16,384.
    short_cost = dynamic["ms per 1,000 tokens, n = 128"]
    assert short_cost.centre == pytest.approx(600 / 2.048)
    long_cost = bert["ms per 1,000 tokens, n = 4,096"]
    assert long_cost.centre == pytest.approx(800 / 2.048 * 4)
    assert bert["MB of a step, n = 16,384"] == pytest.approx(2e4)
    assert bert["time grows as n^"] == pytest.approx(2)
    assert rows["sgu"]["95 % interval"] == "1.50 to 1.50"
    assert dynamic["time grows as n^"] == pytest.approx(1)
    assert dynamic["memory grows as n^"] == pytest.approx(1)
    start = "Compiled but not run, for want of memory: bert at 16,384."
    assert any(note.startswith(start) for note in made.notes)


def test_missing_runs_are_named(made):
    assert "Columns without results: longer, mnli, listops, bytes, pixels." in made.notes
    [frame] = [note for note in made.notes if note.startswith("All rows have ")]
    assert "M parameters in the encoder (the same up to" in frame
    assert ": steps 900 (paper: 125000); " in made.setting


def test_figures_and_claims(made):
    assert set(made.figures) == {"speed_mlm", "speed_sst2", "speed_imdb", "speed_cifar10", "costs"}
    claim = "gMLP matches BERT, Table 3. masked LM, perplexity: sgu < 1.02 of bert"
    assert f"\n| {claim} | 55.5 ± 7.8 and 61.0 ± 1.4 | holds |\n" in made.markdown()


@pytest.mark.slow
def test_unfinished_runs_are_named_and_runs_on_other_data_refused(tmp_path):
    data_of_rows = {"sgu": "a", "bert": "a", "fnet": "b"}
    for row, train in data_of_rows.items():
        configs = COLUMNS["cifar10"].configs("cpu", (row,))
        [config] = configs.values()
        config.data.train = train
        is_finished = row == "bert"
        write_run(tmp_path / "cifar10" / row, config, finished=is_finished)
        made_up_columns.write_cost(tmp_path, row, 128, (1.0,))
    with pytest.raises(RunError, match="data.train is 'a' in .* and 'b' in .*fnet"):
        report.of_folder(str(tmp_path), "cpu")
    shutil.rmtree(tmp_path / "cifar10" / "fnet")
    made = report.of_folder(str(tmp_path), "cpu")
    start = "CIFAR-10, top-1 (%): Not finished: sgu seed 0"
    assert any(note.startswith(start) for note in made.notes)


@pytest.mark.slow
def shrink_vocabulary(run) -> None:
    """Changes the vocabulary size in the config of a run from 2000 to 500."""
    path = run / "config.json"
    config = path.read_text()
    path.write_text(config.replace('"vocab_size": 2000', '"vocab_size": 500'))


@pytest.mark.slow
def test_changed_flags_are_shown(tmp_path):
    perplexities = {"sgu": ((9.0, 8.0),), "bert": ((9.0, 7.0),)}
    made_up_columns.write_runs(tmp_path, "alternatives", perplexities)
    made_up_columns.write_finetuned(tmp_path, "sgu", (0.5,), pretrained="alternatives", task="own")
    for run in ("sgu-0", "bert-0", "finetuned/imdb-sgu/seed=0"):
        shrink_vocabulary(tmp_path / run)
    with pytest.raises(NoRuns):
        report.of_folder(str(tmp_path), "cpu")
    with pytest.raises(ConfigError, match="model.vocab_size"):
        report.of_folder(str(tmp_path), "cpu", {"model.vocab_size": "x"})
    changes = {"model.vocab_size": "500", "augment.mixup": "0"}
    made = report.of_folder(str(tmp_path), "cpu", changes)
    rows = cells(made)
    assert list(rows) == ["bert", "sgu"]
    imdb = rows["sgu"]["IMDB (%)"]
    assert imdb.centre == pytest.approx(50)


@pytest.fixture
def costs(tmp_path):
    made_up_columns.write_costs(tmp_path)
    return read_costs(str(tmp_path), ROWS)


def test_figure_of_score_over_speed(costs):
    scores = {
        "bert": Spread(60.0, (58.0, 62.0)),
        "fnet": Spread(70.0, (70.0,)),
        "mixer": Spread(10.0, (10.0,)),
    }
    mlm = COLUMNS["mlm"]
    [panel] = over_speed(mlm, scores, costs, 128).panels
    transformer, fnet = panel.series  # the Mixer's speed is not known
    assert transformer.name == "Transformer"
    assert transformer.labels == ["bert"]
    # bert: 0.4 s for a sequence of 1,024 tokens, a 64th of it for 128, and 16 sequences in a step.
    speed = 2048 / (0.4 / 64 * 16)
    assert transformer.x == [pytest.approx(speed)]
    assert transformer.y == [60]
    assert transformer.low == [58]
    assert transformer.high == [62]
    assert fnet.name == "FNet"
    assert fnet.labels == ["fnet"]
    assert panel.x.label == "tokens per second in training, n = 128"
    assert panel.y.log
    with_random = {
        **scores,
        "random": Spread(40.0, (40.0,)),
        "fixed_random": Spread(30.0, (30.0,)),
    }
    costs_of_family = {"fixed_random": costs["bert"], **costs}
    sst2 = COLUMNS["sst2"]
    [accuracies] = over_speed(sst2, with_random, costs_of_family, 128).panels
    assert accuracies.title == "SST-2 (%) over speed"
    assert not accuracies.y.log
    [synthesizer] = [series for series in accuracies.series if series.name == "Synthesizer"]
    assert synthesizer.labels == ["random", "fixed_random"]  # a family is one series
    assert synthesizer.y == [40, 30]
    assert not synthesizer.joined


def test_only_speeds_at_one_length_are_compared(costs, tmp_path):
    made_up_columns.write_cost(tmp_path, "mixer", 256, (1.0,))
    both = read_costs(str(tmp_path), ROWS)
    score = Spread(50.0, (50.0,))
    scores = dict.fromkeys(("bert", "sgu", "mixer"), score)
    chart = over_speed(COLUMNS["mlm"], scores, both, 128)
    [panel] = chart.panels
    labels = [series.labels for series in panel.series]
    assert labels == [["bert"], ["sgu"]]
    panels = over_speed(COLUMNS["mlm"], {"bert": score}, both, 128)
    assert panels is None
    chart = over_speed(COLUMNS["bytes"], scores, both, 1024)
    [panel] = chart.panels
    assert panel.x.label.endswith("n = 1,024")
    # nothing was measured at 32 tokens
    listops = COLUMNS["listops"]
    assert over_speed(listops, scores, both, 32) is None
