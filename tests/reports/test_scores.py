"""Scores of finetuned runs: medians, the paper's numbers and claims."""

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.paper.alternatives import Statement
from gmlp_flax.paper.tables import SCORE_COLUMNS, TABLES, printed_score
from gmlp_flax.reports import claims
from gmlp_flax.reports.runs import Run
from gmlp_flax.reports.scores import Scores, score
from gmlp_flax.reports.table import MEDIAN
from tests.reports.test_runs import write_run

SST2, MNLI, *_ = SCORE_COLUMNS


TRIVIAL = {"name": "the most frequent label", "eval": {"accuracy": 0.509}}


def tuned_runs(folder, values, task="sst2", metric="accuracy", finished=True, **changes):
    """Writes and yields runs that end with these values, one for each seed."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, value in enumerate(values):
        made = config_lib.from_file("configs/finetune_glue.py", f"{task},scale=small")
        made.update_from_flattened_dict({"seed": seed, **changes})
        number = len(list(folder.iterdir()))
        path = folder / str(number)
        write_run(path, made, finished=finished)
        lines = [
            {"step": 1, "eval": {metric: 0.1}},
            {"step": 2, "eval": {metric: value}, "baselines": [TRIVIAL]},
        ]
        yield Run("gmlp_36", str(path), made, lines)


def test_median_of_the_best_rate_is_reported(tmp_path):
    slow = list(tuned_runs(tmp_path / "slow", (0.80, 0.84, 0.81)))
    fast_rate = {"optimizer.learning_rate": 0.5}
    fast = list(tuned_runs(tmp_path / "fast", (0.90, 0.70, 0.75), **fast_rate))
    unfinished = list(tuned_runs(tmp_path / "unfinished", (0.99,), finished=False))
    found = score([*slow, *fast, *unfinished], SST2)
    assert found.rate == 4e-3
    assert found.spread.centre == pytest.approx(81)
    assert found.spread.values == pytest.approx((80, 84, 81))
    assert found.spread.statistic == MEDIAN
    assert found.batch == 32
    assert score(fast, SST2).rate == 0.5
    assert score(unfinished, SST2) is None
    assert score(slow, MNLI) is None


def test_single_lucky_seed_is_not_the_best(tmp_path):
    """As `gmlp sweep` runs them: only the best point has all seeds."""
    fast = {"optimizer.learning_rate": 0.5}
    slow = {"optimizer.learning_rate": 0.25}
    lucky = tuned_runs(tmp_path / "a", [0.95], **fast)
    many = tuned_runs(tmp_path / "b", [0.92, 0.91, 0.93], **slow)
    best = score([*lucky, *many], SST2)
    assert best.rate == 0.25


def test_cells_and_notes(tmp_path):
    large = list(tuned_runs(tmp_path / "b", (0.5,)))
    small = list(tuned_runs(tmp_path / "a", (0.6, 0.7, 0.8)))
    scores = Scores(("sst2",), {"gmlp_36": small, "gmlp_72": large, "sgu": []})
    assert scores.cells("gmlp_36") == {
        "SST-2": (pytest.approx(70), pytest.approx((60, 70, 80)), MEDIAN),
        "paper's SST-2": 92.3,
    }
    assert scores.cells("gmlp_72") == {
        "SST-2": (pytest.approx(50), (pytest.approx(50),), MEDIAN),
        "paper's SST-2": 93.5,
    }
    nothing = {"SST-2": None, "paper's SST-2": None}
    assert scores.cells("sgu") == nothing
    assert scores.cells("absent") == nothing
    spread, trivial, ranks = scores.notes()
    assert trivial == "SST-2, to compare: the most frequent label: 50.9."
    small_range = "gmlp_36 60.0 to 80.0 (3 runs, rate 0.004, batch 32)"
    assert f"{small_range}, gmlp_72 50.0 to 50.0 (1 runs" in spread
    correlation = "SST-2: rank correlation with the paper's column -1.00 over 2 models"
    assert ranks == f"{correlation}; one-sided permutation p = 1."


def test_orderings_are_claims(tmp_path):
    """Each claim is about all pairs of runs of two rows. Runs from random parameters do not count."""
    random = {"init_parameters": False}
    by_row = {
        "gmlp_36": [
            *tuned_runs(tmp_path / "a", (0.6, 0.7, 0.8)),
            *tuned_runs(tmp_path / "c", (0.55, 0.65), **random),
        ],
        "transformer_12": [
            *tuned_runs(tmp_path / "b", (0.5, 0.59)),
            *tuned_runs(tmp_path / "d", (0.4,), **random),
        ],
    }
    transfers = [
        Statement("Table 4", "gmlp_36", "transformer_12", ("sst2",)),
        Statement("Table 4", "transformer_12", "gmlp_36", ("mnli",)),
        Statement("Table 4", "amlp_36", "gmlp_36", ("sst2",)),
    ]
    scores = Scores(("sst2",), by_row, transfers)
    [claim] = scores.claims()
    assert claim.text == "SST-2: gmlp_36 > transformer_12"
    assert claim.verdict == claims.HOLDS
    assert claim.detail == "medians 70.0 and 54.5"
    assert scores.medians("gmlp_36")["SST-2"].values == pytest.approx((60, 70, 80))


def test_finetuning_claims_of_the_paper_match_its_numbers():
    """The tables' claims agree with the scores that they print. For aMLP at other depths they print
    none."""
    claimed = [
        *TABLES["table4"].transfers,
        *TABLES["figure8"].transfers,
        *TABLES["table6"].transfers,
    ]
    for _, better, worse, tasks, _ in claimed:
        [column, *_] = [column for column in SCORE_COLUMNS if column.task == tasks[0]]
        if not better.startswith("amlp_") or better == "amlp_base":
            better_score = printed_score(better, column)
            assert better_score > printed_score(worse, column), (better, worse, tasks)
    assert len(claimed) == 8 + 11 + 3


def test_mnli_has_two_columns(tmp_path):
    made = list(tuned_runs(tmp_path / "a", (0.4,), "mnli", "accuracy_mm"))
    scores = Scores(("mnli",), {"gmlp_base": made})
    spread = (pytest.approx(40), (pytest.approx(40),), MEDIAN)
    assert scores.cells("gmlp_base") == {
        "MNLI-m": None,
        "paper's MNLI-m": 83.7,
        "MNLI-mm": spread,
        "paper's MNLI-mm": 84.1,
    }
    assert scores.medians("gmlp_base") == {"MNLI-mm": spread}
    neither = Scores(("sst2", "mnli"), {"gmlp_36": [], "amlp_36": []})  # of MNLI-mm
    assert list(neither.cells("gmlp_36")) == ["SST-2", "paper's SST-2", "MNLI-m", "paper's MNLI-m"]
