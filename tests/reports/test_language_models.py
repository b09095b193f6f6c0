"""Tables made of run folders: their numbers, and what they say of the paper's claims."""

import numpy as np
import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.analysis.drawing import FAMILIES
from gmlp_flax.paper.alternatives import Statement
from gmlp_flax.paper.tables import SCORE_COLUMNS, TABLES, printed_score
from gmlp_flax.reports import claims, language_models, runs
from gmlp_flax.reports.language_models import Point
from gmlp_flax.reports.report import looks
from gmlp_flax.reports.runs import Run
from gmlp_flax.reports.table import Spread
from gmlp_flax.training import warm_start
from tests.reports.test_runs import write_run

PERPLEXITIES = {  # of two seeds, in the middle and at the end
    "sgu": ((50.0, 30.0), (52.0, 32.0)),
    "multiplicative": ((49.0, 35.0), (50.0, 36.0)),  # ahead of sgu in the middle
    "linear": ((60.0, 31.0), (61.0, 45.0)),  # its best seed between sgu's two
    "mixer": ((70.0, 20.0),),  # the paper has it last
}


def write_runs(folder, name="table3", perplexities=PERPLEXITIES, finished=True):
    """Runs of a report's rows at the small scale, with these held-out perplexities."""
    rows = TABLES[name].configs("cpu")
    for row, seeds in perplexities.items():
        for seed, (middle, end) in enumerate(seeds):
            made = rows[row].copy_and_resolve_references()
            made.seed, made.data.train = seed, "books.jsonl"
            write_run(folder / f"{row}-{seed}", made, ((450, middle), (900, end)), finished)


def gather(name, folder):
    rows = TABLES[name].configs("cpu")
    return language_models.perplexities(
        TABLES[name], runs.find(str(folder), rows), "cpu", runs.find_finetuned(str(folder), rows)
    )


def cells(report, name="table"):
    """Row -> column -> what stands there."""
    table = report.tables[name]
    return {row[0]: dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.rows}


def test_table_3(tmp_path):
    write_runs(tmp_path)
    made = gather("table3", tmp_path)
    rows = cells(made)
    sgu = rows["sgu"]
    assert (sgu["perplexity"], sgu["seeds"]) == ((31.0, (30.0, 32.0)), 2)
    assert (sgu["paper"], sgu["difference"]) == (4.35, pytest.approx(31 - 4.35))
    assert sgu["rate"] == TABLES["table3"].config("sgu", "cpu").optimizer.learning_rate
    assert sgu["M parameters"] == pytest.approx(0.6586, abs=1e-4)
    assert list(rows) == ["mixer", "linear", "multiplicative", "sgu"]  # no row of blanks
    [absent] = [note for note in made.notes if note.startswith("Without a run")]
    assert "bert (paper: 4.37), bert_rel" in absent and absent.endswith("amlp_36.")
    assert "| sgu < multiplicative | means 31 and 35.5 | holds |" in made.markdown()
    inside = ("sgu < linear", "is inside the spread", "means 31 and 38")
    assert made.claims.index(inside) > 2  # the first are of neighbours in the paper's column
    assert made.claims[2] == ("linear < mixer", "is reversed with one seed", "means 38 and 20")
    # Ranks: ours mixer 1, sgu 2, multiplicative 3, linear 4; the paper's 4, 1, 2, 3: 1 - 6 * 12 /
    # (4 * 15).
    [rank] = [note for note in made.notes if note.startswith("Spearman")]
    # 15 of 24
    assert rank.endswith(
        "-0.20 over 4 models, after 1,843,200 tokens; one-sided permutation p = 0.62."
    )
    assert made.setting.startswith(
        "Scale cpu. Scaled down for mixer: steps 900 (paper: 125000); batch_size"
    )
    assert "; model.vocab_size 2000 (paper: 32000); " in made.setting
    assert not any("Not finished" in note for note in made.notes)


def test_curves_have_their_seeds_ranges(tmp_path):
    write_runs(tmp_path)
    made = gather("table3", tmp_path)
    [panel] = made.figures["curves"].panels
    series = {each.name: each for each in panel.series}
    sgu = series["sgu"]
    assert (sgu.x, sgu.y, sgu.low, sgu.high) == ([921600, 1843200], [51, 31], [50, 30], [52, 32])
    assert not series["mixer"].low and panel.y.log
    assert series["sgu"].look == looks(TABLES["table3"].rows)["sgu"]
    [panel] = made.figures["places"].panels
    places = {each.name: list(each.y) for each in panel.series}
    assert places == {
        "mixer (paper: 4)": [4, 1],
        "linear (paper: 3)": [3, 4],
        "multiplicative (paper: 2)": [1, 3],
        "sgu (paper: 1)": [2, 2],
    }
    assert panel.y.backwards and panel.title.startswith("Places of 4 models: rho = -0.20")


def test_runs_that_are_behind_are_not_compared(tmp_path):
    """A column has one token budget."""
    perplexities = {
        "sgu": ((50.0, 30.0), (52.0, 32.0)),
        "linear": ((60.0, 31.0),),
        "mixer": ((9.0, 9.0),),
    }
    write_runs(tmp_path, perplexities=perplexities)
    for run in ("sgu-1", "mixer-0"):
        (tmp_path / run / "result.json").unlink()
        lines = (tmp_path / run / "metrics.jsonl").read_text().splitlines()[:-1]
        (tmp_path / run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    made = gather("table3", tmp_path)
    rows = cells(made)
    assert rows["sgu"]["perplexity"] == (30, (30,)) and rows["mixer"]["perplexity"] == (9, (9,))
    assert {name: row["note"] for name, row in rows.items()} == {
        "sgu": "seed 1 at 921,600 tokens: behind the other runs, not counted",
        "linear": None,
        "mixer": "seed 0 at 921,600 tokens: behind the other runs, shown, but compared with no other row",
    }
    assert [claim.text for claim in made.claims] == ["sgu < linear"]


def test_one_run_has_no_figures_of_a_single_dot(tmp_path):
    write_runs(tmp_path, "table4", {"gmlp_18": ((50.0, 30.0),)})
    path = tmp_path / "gmlp_18-0" / "metrics.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:2]) + "\n")
    made = gather("table4", tmp_path)
    assert not made.figures and len(made.table.rows) == 1


def test_rows_that_only_the_paper_has(tmp_path):
    write_runs(tmp_path, "table6", {"gmlp_base": ((50.0, 30.0),)})
    made = gather("table6", tmp_path)
    rows = cells(made)
    devlin = rows["BERT-base (Devlin et al.)"]
    assert (devlin["paper's SST-2"], devlin["M parameters"], devlin["perplexity"]) == (
        92.7,
        110,
        None,
    )
    assert devlin["note"].startswith("the paper's row, not trained here")


def write_finetuned(
    folder, row, accuracies, init_from="anywhere", pretrained="table4", task="sst2", **changes
):
    """Runs of a model finetuned on SST-2, a seed an accuracy."""
    start = TABLES[pretrained].config(row, "cpu")
    name = (
        {"sst2": "sst2", "own": "imdb"}[task]
        + f"-{row}"
        + "-random" * (changes.get("init_parameters") is False)
    )
    for seed, accuracy in enumerate(accuracies):
        made = config_lib.from_file("configs/finetune_glue.py", f"{task},scale=small")
        made = warm_start.inherit_model(made, start)
        made.update({"seed": seed, "init_from": str(init_from), **changes})
        write_run(
            folder / "finetuned" / name / f"seed={seed}", made, [(2, accuracy)], metric="accuracy"
        )


def test_figure_7_has_two_axes(tmp_path):
    """Depth, and data: the same model after more steps is a row of its own, as is what was
    finetuned from it."""
    ends = {"gmlp_18": (60.0, 0.6), "gmlp_36": (50.0, 0.65)}
    ends |= {"gmlp_36,data=2": (40.0, 0.7), "gmlp_36,data=4": (30.0, 0.8)}
    write_runs(tmp_path, "figure7", {row: ((2 * end, end),) for row, (end, _) in ends.items()})
    for row, (_, accuracy) in ends.items():
        write_finetuned(
            tmp_path, row, [accuracy], init_from=tmp_path / f"{row}-0", pretrained="figure7"
        )
    made = gather("figure7", tmp_path)
    rows = cells(made)
    assert list(rows) == ["gmlp_18", "gmlp_36", "gmlp_36,data=2", "gmlp_36,data=4"]
    for row, (end, accuracy) in ends.items():
        assert (rows[row]["perplexity"].centre, rows[row]["SST-2"].centre) == (
            end,
            pytest.approx(100 * accuracy),
        )
    assert rows["gmlp_36,data=4"]["paper"] is None
    [panel] = made.figures["transfer"].panels
    lines = {series.name: (series.x, series.y) for series in panel.series}
    assert lines["gMLP"] == ([50, 60], pytest.approx([65, 60]))
    assert lines["gMLP, more data"] == ([30, 40, 50], pytest.approx([80, 70, 65]))
    # More data is none of the models whose perplexity is fitted over parameters.
    assert "two points, no interval" in next(
        note for note in made.notes if note.startswith("gMLP: ")
    )


def test_finetuned_runs_stand_beside_the_papers(tmp_path):
    write_runs(tmp_path, "table4", {"gmlp_18": ((60.0, 50.0),), "gmlp_36": ((60.0, 40.0),)})
    for row, accuracies in {"gmlp_18": (0.6, 0.7, 0.65), "gmlp_36": (0.8,)}.items():
        write_finetuned(tmp_path, row, accuracies)
    made = gather("table4", tmp_path)
    rows = cells(made)
    assert (rows["gmlp_18"]["SST-2"].centre, rows["gmlp_18"]["paper's SST-2"]) == (
        pytest.approx(65),
        91.2,
    )
    assert (
        rows["gmlp_36"]["SST-2"].centre == pytest.approx(80)
        and rows["gmlp_36"]["paper's MNLI-m"] == 80.9
    )
    assert "MNLI-m" not in made.table.columns  # nothing was finetuned on it
    # of its four models
    law = "gMLP in the paper: perplexity is proportional to parameters ** -0.234"
    assert any(note.startswith(law) for note in made.notes)
    assert (
        "SST-2: rank correlation with the paper's column 1.00 over 2 models; one-sided permutation p = 0.5."
        in made.notes
    )
    assert (
        set(made.figures) == {"curves", "scaling", "transfer"}
        and len(made.figures["scaling"].panels) == 2
    )


SST2, MNLI, *_ = SCORE_COLUMNS


TRIVIAL = {"name": "the most frequent label", "eval": {"accuracy": 0.509}}


def tuned_runs(folder, values, task="sst2", metric="accuracy", finished=True, **changes):
    """Runs that end with these values, one a seed."""
    for seed, value in enumerate(values):
        made = config_lib.from_file("configs/finetune_glue.py", f"{task},scale=small")
        made.update_from_flattened_dict({"seed": seed, **changes})
        path = folder / f"{len(list(folder.iterdir())) if folder.exists() else 0}"
        write_run(path, made, finished=finished)
        lines = [
            {"step": 1, "eval": {metric: 0.1}},
            {"step": 2, "eval": {metric: value}, "baseline": TRIVIAL},
        ]
        yield Run("gmlp_36", str(path), made, lines)


def test_the_median_of_the_best_rate_counts(tmp_path):
    slow = list(tuned_runs(tmp_path / "slow", (0.80, 0.84, 0.81)))
    fast = list(
        tuned_runs(tmp_path / "fast", (0.90, 0.70, 0.75), **{"optimizer.learning_rate": 0.5})
    )
    half = list(tuned_runs(tmp_path / "half", (0.99,), finished=False))
    found = language_models.score([*slow, *fast, *half], SST2)
    assert found == ((pytest.approx(81), pytest.approx((80, 84, 81))), 4e-3, 32)
    assert language_models.score(fast, SST2).rate == 0.5
    assert language_models.score(half, SST2) is None and language_models.score(slow, MNLI) is None


def test_a_lucky_run_of_one_seed_is_not_the_best(tmp_path):
    """As `gmlp sweep` leaves them, which gives all seeds to the best point alone."""
    lucky = tuned_runs(tmp_path / "a", [0.95], **{"optimizer.learning_rate": 0.5})
    many = tuned_runs(tmp_path / "b", [0.92, 0.91, 0.93], **{"optimizer.learning_rate": 0.25})
    assert language_models.score([*lucky, *many], SST2).rate == 0.25


def test_cells_and_notes(tmp_path):
    large, small = (
        list(tuned_runs(tmp_path / "b", (0.5,))),
        list(tuned_runs(tmp_path / "a", (0.6, 0.7, 0.8))),
    )
    scores = language_models.Scores(("sst2",), {"gmlp_36": small, "gmlp_72": large, "sgu": []})
    columns = scores.cells(["gmlp_36", "gmlp_72", "sgu", "absent"])
    assert list(columns) == ["SST-2", "paper's SST-2"]
    assert columns["SST-2"] == {
        "gmlp_36": (pytest.approx(70), pytest.approx((60, 70, 80))),
        "gmlp_72": (pytest.approx(50), (pytest.approx(50),)),
    }
    assert columns["paper's SST-2"] == {
        "gmlp_36": 92.3,
        "gmlp_72": 93.5,
        "sgu": None,
        "absent": None,
    }
    spread, trivial, ranks = scores.notes()
    assert trivial == "SST-2, to compare: the most frequent label: 50.9."
    assert (
        "gmlp_36 60.0 to 80.0 (3 runs, rate 0.004, batch 32), gmlp_72 50.0 to 50.0 (1 runs"
        in spread
    )
    assert (
        ranks
        == "SST-2: rank correlation with the paper's column -1.00 over 2 models; one-sided permutation p = 1."
    )


def test_orderings_are_claims(tmp_path):
    """Each is about every pair of runs of two rows; what began from random parameters does not
    count."""
    random = tuned_runs(tmp_path / "c", (0.55, 0.65), init_parameters=False)
    others = [
        *tuned_runs(tmp_path / "b", (0.5, 0.59)),
        *tuned_runs(tmp_path / "d", (0.4,), init_parameters=False),
    ]
    by_row = {
        "gmlp_36": [*tuned_runs(tmp_path / "a", (0.6, 0.7, 0.8)), *random],
        "transformer_12": others,
    }
    transfers = [
        Statement("Table 4", "gmlp_36", "transformer_12", ("sst2",)),
        Statement("Table 4", "transformer_12", "gmlp_36", ("mnli",)),
        Statement("Table 4", "amlp_36", "gmlp_36", ("sst2",)),
    ]
    scores = language_models.Scores(("sst2",), by_row, transfers)
    assert [(claim.text.partition(" (")[0], *claim[1:]) for claim in scores.claims()] == [
        ("SST-2: gmlp_36 > transformer_12", claims.HOLDS, "medians 70.0 and 54.5"),
    ]
    assert scores.of("gmlp_36")["SST-2"].values == pytest.approx((60, 70, 80))


def test_the_papers_claims_on_finetuning_are_its_numbers():
    """What the tables claim agrees with the scores that they print; of aMLP at other depths there
    are none."""
    claimed = [
        *TABLES["table4"].transfers,
        *TABLES["figure8"].transfers,
        *TABLES["table6"].transfers,
    ]
    for _, better, worse, tasks, _ in claimed:
        column = next(each for each in SCORE_COLUMNS if each.task == tasks[0])
        if not better.startswith("amlp_") or better == "amlp_base":
            assert printed_score(better, column) > printed_score(worse, column), (
                better,
                worse,
                tasks,
            )
    assert len(claimed) == 8 + 11 + 3


def test_mnli_has_two_columns(tmp_path):
    made = list(tuned_runs(tmp_path / "a", (0.4,), "mnli", "accuracy_mm"))
    scores = language_models.Scores(("mnli",), {"gmlp_base": made})
    spread = (pytest.approx(40), (pytest.approx(40),))
    papers = {"paper's MNLI-m": {"gmlp_base": 83.7}, "paper's MNLI-mm": {"gmlp_base": 84.1}}
    assert scores.cells(["gmlp_base"]) == {"MNLI-m": {}, "MNLI-mm": {"gmlp_base": spread}} | papers
    assert scores.of("gmlp_base") == {"MNLI-mm": spread}
    neither = language_models.Scores(("sst2", "mnli"), {"gmlp_36": [], "amlp_36": []})  # of MNLI-mm
    assert list(neither.cells([])) == ["SST-2", "paper's SST-2", "MNLI-m", "paper's MNLI-m"]


SERIES = {
    "gMLP": [
        Point("gmlp_18", 50, Spread(6.0, (5.5, 6.5)), {"SST-2": Spread(90.0, (89.0, 91.0))}),
        Point("gmlp_36", 100, Spread(3.0, (3.0,)), {"SST-2": Spread(92.0, (92.0,))}),
    ],
    "aMLP": [Point("amlp_18", 60, Spread(5.0, (5.0,)), {})],
}


def test_a_panel_of_perplexities_and_one_of_each_score():
    chart, notes = language_models.scaling(SERIES)
    perplexities, accuracies = chart.panels
    gmlp, amlp = perplexities.series
    assert (gmlp.name, gmlp.x, gmlp.y, gmlp.labels) == ("gMLP", [50, 100], [6, 3], ["18", "36"])
    assert (gmlp.low, gmlp.high, gmlp.joined) == ([5.5, 3], [6.5, 3], False)
    assert gmlp.fit == pytest.approx([6, 3]) and not amlp.fit
    assert (gmlp.look.colour, amlp.look.colour) == (FAMILIES["gMLP"], FAMILIES["aMLP"])
    assert (
        perplexities.x.log
        and perplexities.y.log
        and perplexities.title == "Perplexity over parameters"
    )
    [scores] = accuracies.series
    assert (scores.x, scores.y, scores.low, scores.joined) == ([50, 100], [90, 92], [89, 92], True)
    assert (
        accuracies.y.label == "SST-2 (%)" and accuracies.title == "SST-2: gmlp_36 is best, 92.0 %"
    )
    law = "perplexity is proportional to parameters ** -1.000 (two points, no interval; R squared 1.000)"
    assert notes == [f"gMLP: {law}."]


def test_scores_over_perplexity_which_falls_to_the_right():
    [panel] = language_models.transfer(SERIES).panels
    assert panel.x.backwards and panel.series[0].x == [3, 6] and panel.series[0].y == [92, 90]


def test_a_single_point_is_no_figure():
    assert language_models.scaling({"aMLP": SERIES["aMLP"], "gMLP": []}) == (None, [])
    assert language_models.transfer({"gMLP": SERIES["gMLP"][:1]}) is None
    assert (
        len(language_models.scaling({"aMLP": [*SERIES["aMLP"], SERIES["gMLP"][1]]})[0].panels) == 1
    )


def test_power_law_against_its_formulas():
    """Least squares on logarithms, and Student's t with two degrees of freedom (4.3027)."""
    x, y = [59.0, 102.0, 187.0, 357.0], [5.25, 4.35, 3.79, 3.43]
    u, v = np.log(x), np.log(y)
    slope = np.sum((u - u.mean()) * (v - v.mean())) / np.sum((u - u.mean()) ** 2)
    residuals = v - v.mean() - slope * (u - u.mean())
    error = np.sqrt(np.sum(residuals**2) / 2 / np.sum((u - u.mean()) ** 2))
    law = language_models.power_law(x, y)
    assert law.exponent == pytest.approx(slope)
    assert (law.low, law.high) == pytest.approx(
        (slope - 4.30265 * error, slope + 4.30265 * error), rel=1e-4
    )
    assert law.r_squared == pytest.approx(1 - np.sum(residuals**2) / np.sum((v - v.mean()) ** 2))
