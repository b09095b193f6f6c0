"""Tables of run folders: their numbers, and what they say about the paper's claims."""

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.reports import language_models, runs
from gmlp_flax.reports.report import looks
from gmlp_flax.reports.table import Spread
from tests.reports.test_runs import write_run

PERPLEXITIES = {  # of two seeds, in the middle and at the end
    "sgu": ((50.0, 30.0), (52.0, 32.0)),
    "multiplicative": ((49.0, 35.0), (50.0, 36.0)),  # ahead of sgu in the middle
    "linear": ((60.0, 31.0), (61.0, 45.0)),  # its best seed between sgu's two
    "mixer": ((70.0, 20.0),),  # the paper has it last
}


def write_runs(folder, name="table3", perplexities=PERPLEXITIES, finished=True):
    """Writes runs of a report's rows at the small scale, with these held-out perplexities."""
    configs = TABLES[name].configs("cpu")
    for row, seeds in perplexities.items():
        for seed, (middle, end) in enumerate(seeds):
            config = configs[row].copy_and_resolve_references()
            config.seed = seed
            config.data.train = "books.jsonl"
            points = ((450, middle), (900, end))
            run = folder / f"{row}-{seed}"
            write_run(run, config, points, finished)


def gather(name, folder):
    """The report of a folder of runs."""
    table = TABLES[name]
    rows = table.configs("cpu")
    found = runs.find(str(folder), rows)
    finetuned = runs.find_finetuned(str(folder), rows)
    return language_models.perplexities(table, found, "cpu", finetuned)


def cells(report, name="table"):
    """The cells of a table: row -> column -> cell."""
    table = report.tables[name]
    _, *columns = table.columns
    rows = {}
    for row, *values in table.rows:
        rows[row] = dict(zip(columns, values, strict=True))
    return rows


def test_table_3(tmp_path):
    write_runs(tmp_path)
    made = gather("table3", tmp_path)
    rows = cells(made)
    sgu = rows["sgu"]
    perplexity = Spread.mean([30.0, 32.0])
    assert sgu["perplexity"] == perplexity
    assert sgu["seeds"] == 2
    assert sgu["paper"] == 4.35
    assert sgu["difference"] == pytest.approx(31 - 4.35)
    row_config = TABLES["table3"].config("sgu", "cpu")
    assert sgu["rate"] == row_config.optimizer.learning_rate
    assert sgu["M parameters"] == pytest.approx(0.6586, abs=1e-4)
    assert list(rows) == ["mixer", "linear", "multiplicative", "sgu"]  # no row of blanks
    [absent] = [note for note in made.notes if note.startswith("Without a run")]
    assert "bert (paper: 4.37), bert_rel" in absent
    assert absent.endswith("amlp_36.")
    assert "| sgu < multiplicative | means 31 and 35.5 | holds |" in made.markdown()
    inside = ("sgu < linear", "is inside the spread", "means 31 and 38")
    assert made.claims.index(inside) > 2  # neighbors in the paper's column come first
    assert made.claims[2] == ("linear < mixer", "is reversed with one seed", "means 38 and 20")
    # Ranks: ours mixer 1, sgu 2, multiplicative 3, linear 4; the paper's 4, 1, 2, 3: 1 - 6 * 12 /
    # (4 * 15).
    [rank] = [note for note in made.notes if note.startswith("Spearman")]
    # 15 of 24
    rho = "-0.20 over 4 models, after 1,843,200 tokens"
    assert rank.endswith(f"{rho}; one-sided permutation p = 0.62.")
    start = "Scale cpu. Scaled down for mixer: steps 900 (paper: 125000); batch_size"
    assert made.setting.startswith(start)
    assert "; model.vocab_size 2000 (paper: 32000); " in made.setting
    for note in made.notes:
        assert "Not finished" not in note


def test_curves_show_the_range_of_seeds(tmp_path):
    write_runs(tmp_path)
    made = gather("table3", tmp_path)
    [panel] = made.figures["curves"].panels
    series = {}
    for each in panel.series:
        series[each.name] = each
    sgu = series["sgu"]
    assert sgu.x == [921600, 1843200]
    assert sgu.y == [51, 31]
    assert sgu.low == [50, 30]
    assert sgu.high == [52, 32]
    expected_looks = looks(TABLES["table3"].rows)
    assert sgu.look == expected_looks["sgu"]
    assert not series["mixer"].low
    assert panel.y.log
    [panel] = made.figures["places"].panels
    places = {}
    for each in panel.series:
        places[each.name] = list(each.y)
    assert places == {
        "mixer (paper: 4)": [4, 1],
        "linear (paper: 3)": [3, 4],
        "multiplicative (paper: 2)": [1, 3],
        "sgu (paper: 1)": [2, 2],
    }
    assert panel.y.backwards
    assert panel.title.startswith("Places of 4 models: rho = -0.20")


def test_unfinished_runs_are_not_compared(tmp_path):
    """A column has a single token budget."""
    perplexities = {
        "sgu": ((50.0, 30.0), (52.0, 32.0)),
        "linear": ((60.0, 31.0),),
        "mixer": ((9.0, 9.0),),
    }
    write_runs(tmp_path, perplexities=perplexities)
    for name in ("sgu-1", "mixer-0"):
        run = tmp_path / name
        (run / "result.json").unlink()
        *lines, _ = (run / "metrics.jsonl").read_text().splitlines()
        content = "\n".join(lines) + "\n"
        (run / "metrics.jsonl").write_text(content)
    made = gather("table3", tmp_path)
    rows = cells(made)
    sgu = rows["sgu"]
    assert sgu["perplexity"] == Spread.mean([30])
    assert rows["mixer"]["perplexity"] == Spread.mean([9])
    behind = "at 921,600 tokens: behind the other runs"
    assert rows["sgu"]["note"] == f"seed 1 {behind}, not counted"
    assert rows["linear"]["note"] is None
    mixer = rows["mixer"]["note"]
    assert mixer == f"seed 0 {behind}, shown, but compared with no other row"
    assert set(rows) == {"sgu", "linear", "mixer"}
    [claim] = made.claims
    assert claim.text == "sgu < linear"


def test_single_run_has_no_figures(tmp_path):
    write_runs(tmp_path, "table4", {"gmlp_18": ((50.0, 30.0),)})
    path = tmp_path / "gmlp_18-0" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    content = "\n".join(lines[:2]) + "\n"
    path.write_text(content)
    made = gather("table4", tmp_path)
    assert not made.figures
    assert len(made.table.rows) == 1


def test_rows_only_in_the_paper(tmp_path):
    write_runs(tmp_path, "table6", {"gmlp_base": ((50.0, 30.0),)})
    made = gather("table6", tmp_path)
    rows = cells(made)
    devlin = rows["BERT-base (Devlin et al.)"]
    assert devlin["paper's SST-2"] == 92.7
    assert devlin["M parameters"] == 110
    assert devlin["perplexity"] is None
    assert devlin["note"].startswith("the paper's row, not trained here")


def write_finetuned(
    folder, row, accuracies, init_from="anywhere", pretrained="table4", task="sst2", **changes
):
    """Writes runs of a finetuned model, with one seed for each accuracy."""
    pretrained_config = TABLES[pretrained].config(row, "cpu")
    start = config_lib.Start("pretrained", pretrained_config, {})
    data_set = "imdb" if task == "own" else task
    name = f"{data_set}-{row}"
    if changes.get("init_parameters") is False:
        name += "-random"
    for seed, accuracy in enumerate(accuracies):
        options = config_lib.from_file("configs/finetune_glue.py", f"{task},scale=small")
        resolved = config_lib.resolve(options, lambda _: start)
        config = config_lib.mutable_copy(resolved.config)
        config.update({"seed": seed, "init_from": str(init_from), **changes})
        tuned_folder = folder / "finetuned" / name
        run = tuned_folder / f"seed={seed}"
        points = [(2, accuracy)]
        write_run(run, config, points, metric="accuracy")


@pytest.mark.slow
def test_figure_7_has_two_axes(tmp_path):
    """Depth, and data: the same model after more steps is a separate row, and so are the models
    finetuned from it."""
    ends = {
        "gmlp_18": (60.0, 0.6),
        "gmlp_36": (50.0, 0.65),
        "gmlp_36,data=2": (40.0, 0.7),
        "gmlp_36,data=4": (30.0, 0.8),
    }
    for row, (end, accuracy) in ends.items():
        one_seed = ((2 * end, end),)
        write_runs(tmp_path, "figure7", {row: one_seed})
        start = tmp_path / f"{row}-0"
        write_finetuned(tmp_path, row, [accuracy], init_from=start, pretrained="figure7")
    made = gather("figure7", tmp_path)
    rows = cells(made)
    assert list(rows) == ["gmlp_18", "gmlp_36", "gmlp_36,data=2", "gmlp_36,data=4"]
    for row, (end, accuracy) in ends.items():
        assert rows[row]["perplexity"].centre == end
        score = rows[row]["SST-2"]
        assert score.centre == pytest.approx(100 * accuracy)
    assert rows["gmlp_36,data=4"]["paper"] is None
    [panel] = made.figures["transfer"].panels
    lines = {}
    for series in panel.series:
        lines[series.name] = series
    gmlp = lines["gMLP"]
    assert gmlp.x == [50, 60]
    assert gmlp.y == pytest.approx([65, 60])
    with_data = lines["gMLP, more data"]
    assert with_data.x == [30, 40, 50]
    assert with_data.y == pytest.approx([80, 70, 65])
    # Models with more data are not among those whose perplexity is fitted over parameters.
    [law, *_] = [note for note in made.notes if note.startswith("gMLP: ")]
    assert "two points, no interval" in law


def test_finetuned_runs_are_shown_with_the_paper(tmp_path):
    points_of_18 = ((60.0, 50.0),)
    write_runs(tmp_path, "table4", {"gmlp_18": points_of_18, "gmlp_36": ((60.0, 40.0),)})
    write_finetuned(tmp_path, "gmlp_18", (0.6, 0.7, 0.65))
    write_finetuned(tmp_path, "gmlp_36", (0.8,))
    made = gather("table4", tmp_path)
    rows = cells(made)
    shallow = rows["gmlp_18"]["SST-2"]
    assert shallow.centre == pytest.approx(65)
    assert rows["gmlp_18"]["paper's SST-2"] == 91.2
    deep = rows["gmlp_36"]["SST-2"]
    assert deep.centre == pytest.approx(80)
    assert rows["gmlp_36"]["paper's MNLI-m"] == 80.9
    assert "MNLI-m" not in made.table.columns  # nothing was finetuned on it
    # of the paper's four models
    law = "gMLP in the paper: perplexity is proportional to parameters ** -0.234"
    assert any(note.startswith(law) for note in made.notes)
    correlation = "rank correlation with the paper's column 1.00 over 2 models"
    assert f"SST-2: {correlation}; one-sided permutation p = 0.5." in made.notes
    assert set(made.figures) == {"curves", "scaling", "transfer"}
    assert len(made.figures["scaling"].panels) == 2
