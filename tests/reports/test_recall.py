"""The report on recall: rates, accuracies, claims and the figure."""

import json
from pathlib import Path

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.paper import recall
from gmlp_flax.paper.recall import Cell
from gmlp_flax.reports import recall as report_lib
from gmlp_flax.reports.claims import EARLY, HOLDS, OPEN, REVERSED
from gmlp_flax.reports.runs import NoRuns
from gmlp_flax.reports.table import Spread
from gmlp_flax.sweeps import points, states, training
from gmlp_flax.sweeps.progress import Work
from tests.custom_blocks import AVERAGING


def write_result(folder, point, accuracy, step=1000):
    """Writes the result of a run, as training does."""
    run = folder / points.name(point)
    run.mkdir(parents=True)
    result = {"step": step, "eval": {"accuracy": accuracy, "loss": 1.0}}
    (run / "result.json").write_text(json.dumps(result))


def write_search(folder, cell, accuracies, steps=(1000, 1000, 1000)) -> None:
    """Writes the results of a search, one for each learning rate."""
    search = folder / "search"
    points = recall.search_points(cell, "cpu")
    for point, accuracy, step in zip(points, accuracies, steps, strict=True):
        write_result(search, point, accuracy, step)


@pytest.fixture
def plan(tmp_path):
    """A plan of one row, whose runs with n = 64 and d = 32 have finished."""
    cell = Cell("sgu_causal", 64, 32)
    write_search(tmp_path, cell, (0.3, 0.5, 0.4))
    seed_points = recall.points(cell, "cpu", 3e-3)
    seeds = zip(seed_points, (0.5, 0.75, 0.25), strict=True)
    for point, accuracy in seeds:
        write_result(tmp_path, point, accuracy)
    return report_lib.Plan(("sgu_causal",), "cpu", str(tmp_path))


def test_best_rate_of_the_search_is_reported(plan):
    cell = Cell("sgu_causal", 64, 32)
    assert report_lib.best_rate(plan, cell) == 3e-3
    long_cell = Cell("sgu_causal", 128, 32)
    assert report_lib.best_rate(plan, long_cell) == 3e-3  # of n = 64
    small_cell = Cell("sgu_causal", 64, 16)
    assert report_lib.best_rate(plan, small_cell) is None
    found = report_lib.accuracies(plan)
    score = Spread.mean([50.0, 75.0, 25.0])
    assert found == {cell: score}


def test_fastest_of_several_solving_rates_is_taken(tmp_path):
    cell = Cell("bert_causal", 64, 64)
    plan = report_lib.Plan(("bert_causal",), "cpu", str(tmp_path))
    write_search(tmp_path, cell, (0.48, 0.9945, 0.995), steps=(2000, 700, 900))
    assert report_lib.best_rate(plan, cell) == 3e-3


def test_user_defined_class_is_a_separate_family(tmp_path):
    plan = report_lib.Plan((AVERAGING,), "cpu", str(tmp_path))
    cell = Cell(AVERAGING, 64, 32)
    write_search(tmp_path, cell, (0.3, 0.5, 0.4))
    for point in recall.points(cell, "cpu", 3e-3):
        write_result(tmp_path, point, 0.5)
    made = report_lib.report(plan)
    score = Spread.mean([50.0] * 3)
    assert made.table.rows == [[AVERAGING, score]]
    [panel] = made.figures["accuracy"].panels
    names = [series.name for series in panel.series]
    assert names == ["Averaging"]


def test_report_has_table_rates_and_figure(plan):
    report = report_lib.report(plan)
    assert report.table.columns == ("model", "n 64, d 32")
    assert "50.0 ± 25.0" in report.markdown()
    cells = report.more_tables["cells"]
    score = Spread.mean([50.0, 75.0, 25.0])
    assert cells.rows == [("sgu_causal", 64, 32, score, 3e-3)]
    assert cells.csv().splitlines()[1] == "sgu_causal,64,32,50.0,25.0,25.0,75.0,3,0.003"
    [panel] = report.charts["accuracy"].panels
    assert panel.references == [("a guess among the values", 25.0)]
    assert "a guess among the values shown has 25.0 % at n = 64" in " ".join(report.sentences())


def test_plan_may_select_lengths_and_widths(plan):
    elsewhere = plan._replace(lengths=(128,))
    with pytest.raises(NoRuns):
        report_lib.report(elsewhere)
    one_cell = plan._replace(lengths=(64,), widths=(32,))
    assert one_cell.cells() == [Cell("sgu_causal", 64, 32)]
    table = report_lib.report(one_cell).table
    assert len(table.rows) == 1


def test_runs_are_counted_over_all_cells(plan, tmp_path, monkeypatch):
    """For one row at two lengths: a search, which both share, and two times three seeds. Some runs of
    the first length have finished."""
    counts = []

    def train(sweep, jobs, together, progress):
        work = states.work_of(sweep)
        progress.begin_sweep(work)
        part = progress.part()
        counts.append((work, progress.runs, part))
        for trial in sweep.trials:
            run = Path(sweep.out, trial.name)
            if not run.exists():
                write_result(Path(sweep.out), trial.point, 0.5)
            progress.end_run()
        progress.advance(0)
        return True

    monkeypatch.setattr(training, "train", train)
    changes = {"steps": "10", "model.d_model": "16"}
    both = plan._replace(lengths=(64, 128), widths=(32,), changes=changes)
    assert report_lib.make(both)
    after_search = Work(3, 30, 0)
    assert counts == [
        (after_search, 9, Work(9, 90, 30)),
        (after_search, 9, Work(6, 90, 30)),
        (Work.of(3, 10), 9, Work.of(3, 30)._replace(left=30)),
    ]
    counts.clear()
    other_folder = str(tmp_path / "other")
    other = both._replace(runs=other_folder)
    assert report_lib.make(other)
    left = []
    for _, total, part in counts:
        assert total == 9
        left.append(part.left)
    assert left == [90, 60, 30]


def test_changed_keys_of_runs_are_named(plan):
    cell = Cell("sgu_causal", 64, 32)
    assert "differ:" not in report_lib.report(plan).setting
    config = config_lib.open_config(cell.config("cpu"))
    config.steps = 2
    config.synthetic.heldout_examples = 8
    config.optimizer.learning_rate = 3e-3
    first, *_ = recall.points(cell, "cpu", 3e-3)
    folder = Path(plan.runs) / points.name(first)
    path = folder / "config.json"
    path.write_text(config_lib.to_json(config))
    steps = "config.steps is 2 instead of 6000"
    examples = "config.synthetic.heldout_examples is 8 instead of 1000"
    changes = f"{steps}, {examples}"
    assert f"All runs differ: {changes}." in report_lib.report(plan).setting
    other = Cell("sgu_causal", 64, 16)
    accuracies = (0.5, 0.5, 0.5)
    write_search(Path(plan.runs), other, accuracies)
    for point in recall.points(other, "cpu", 1e-3):
        write_result(Path(plan.runs), point, 0.5)
    setting = report_lib.report(plan).setting
    assert f"The runs of sgu_causal at n = 64, d = 32 differ: {changes}." in setting


def test_missing_runs_are_refused(tmp_path):
    with pytest.raises(NoRuns, match="holds no finished run of recall"):
        report_lib.report(report_lib.Plan(("sgu",), "cpu", str(tmp_path)))


def verdicts(found):
    """The verdict of each claim, without our numbers."""
    return {claim.text: claim.verdict for claim in report_lib.claims(found)}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([99.5, 100.0, 99.0], HOLDS),
        ([99.5, 98.9, 100.0], OPEN),
        ([98.9, 25.0, 30.0], REVERSED),
    ],
)
def test_attention_solves_it_if_all_seeds_do(values, expected):
    cell = Cell("bert_causal", 64, 64)
    found = verdicts({cell: Spread.mean(values)})
    assert found["attention solves it at d = 64, Zoology, figure 2: n = 64"] == expected


def growth_claim(solved_64, solved_128):
    """The claim about widths, if rows of n = 64 and n = 128 solve it from these widths on, or at
    none."""
    accuracies = {}
    lengths = ((64, solved_64), (128, solved_128))
    for length, solved in lengths:
        for width in (32, 64, 128):
            is_solved = solved is not None and width >= solved
            value = 100.0 if is_solved else 50.0
            cell = Cell("sgu_causal", length, width)
            accuracies[cell] = Spread.mean([value])
    claims = report_lib.claims(accuracies)
    [claim] = [claim for claim in claims if "grows with n" in claim.text]
    return claim


def test_gated_convolutions_need_a_growing_width():
    growing = growth_claim(32, 64)
    assert growing.verdict == HOLDS
    assert growing.detail == "n = 64: d = 32; n = 128: d = 64"
    unsolved_at_128 = growth_claim(64, None)
    assert unsolved_at_128.verdict == HOLDS
    assert unsolved_at_128.detail == "n = 64: d = 64; n = 128: none of these"
    assert growth_claim(64, 64).verdict == REVERSED
    assert growth_claim(None, None).verdict == EARLY


def test_gate_with_and_without_tiny_attention():
    found = {
        Cell("sgu_causal", 64, 128): Spread.mean([40.0, 41.0]),
        Cell("amlp_causal", 64, 128): Spread.mean([99.9, 100.0]),
        Cell("amlp_causal", 64, 64): Spread.mean([30.0]),
    }
    claims = verdicts(found)
    where = "n = 64, d = 128"
    assert claims[f"a gate alone does not solve it (ours): sgu_causal at {where}"] == HOLDS
    assert claims[f"tiny attention solves it (ours): amlp_causal at {where}"] == HOLDS
    for text in claims:
        assert "d = 64" not in text


def test_unsolved_cells_are_undecided():
    """At n = 64, attention guesses as well. At n = 128, one seed of attention solves it, at another
    width."""
    found = {
        Cell("bert_causal", 64, 32): Spread.mean([25.0, 26.0]),
        Cell("sgu_causal", 64, 32): Spread.mean([24.0, 23.0]),
        Cell("amlp_causal", 64, 32): Spread.mean([25.0, 25.0]),
        Cell("bert_causal", 128, 16): Spread.mean([12.0, 99.5]),
        Cell("sgu_causal", 128, 32): Spread.mean([12.0, 13.0]),
        Cell("amlp_causal", 128, 32): Spread.mean([12.0, 13.0]),
    }
    claims = {}
    for claim in report_lib.claims(found):
        claims[claim.text] = claim
    gate = "a gate alone does not solve it (ours): sgu_causal at"
    tiny = "tiny attention solves it (ours): amlp_causal at"
    for claim in (gate, tiny):
        early = claims[f"{claim} n = 64, d = 32"]
        assert early.verdict == EARLY
        assert early.detail.endswith("no row solves n = 64: nothing can be concluded")
    assert claims[f"{gate} n = 128, d = 32"].verdict == HOLDS
    assert claims[f"{tiny} n = 128, d = 32"].verdict == REVERSED
    assert "nothing" not in claims[f"{tiny} n = 128, d = 32"].detail


def test_family_is_drawn_by_its_best_row_at_each_width():
    found = {
        Cell("bert", 64, 32): Spread.mean([30.0]),
        Cell("bert_rel", 64, 32): Spread.mean([60.0]),
        Cell("bert", 64, 64): Spread.mean([90.0]),
        Cell("sgu", 64, 32): Spread.mean([25.0]),
        Cell("sgu", 128, 32): Spread.mean([99.0]),
    }
    best = report_lib.best_of_families(found, 64)
    expected = {
        "Transformer": {32: found[Cell("bert_rel", 64, 32)], 64: found[Cell("bert", 64, 64)]},
        "gMLP": {32: found[Cell("sgu", 64, 32)]},
    }
    assert best == expected
