"""The scores in a folder of the alternatives, by column and row."""

import pytest

from gmlp_flax.reports.alternatives import scores as scores_lib
from gmlp_flax.reports.alternatives.scores import RANDOM
from gmlp_flax.reports.table import Spread
from tests.reports import made_up_columns


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The runs of every column in the made-up folder."""
    folder = tmp_path_factory.mktemp("alternatives")
    made_up_columns.write_everything(folder)
    return scores_lib.find_runs(str(folder), "cpu", {})


def test_runs_are_found_by_column(runs):
    counts = {name: len(found) for name, found in runs.items() if found}
    assert counts == {"mlm": 10, "sst2": 4, "imdb": 6, "cifar10": 3}


def test_perplexity_is_the_one_of_the_last_evaluation(runs):
    scores = scores_lib.scores_of(runs)
    assert scores["mlm"]["bert"] == Spread(61.0, (60.0, 62.0))
    assert scores["mlm"]["dynamic"].values == (40.0, 41.0)


def test_accuracies_are_in_percent_with_random_starts_separate(runs):
    scores = scores_lib.scores_of(runs)
    assert scores["cifar10"]["sgu"].values == (50.0,)
    assert scores["imdb"]["bert"].centre == pytest.approx(81)
    assert scores["imdb" + RANDOM]["bert"].values == (60.0, 61.0)
    assert "fnet" not in scores["imdb" + RANDOM]
    assert "listops" not in scores


def test_best_baseline_of_a_column():
    baselines = {
        "mlm": {"a": 300.0, "b": 260.0},
        "cifar10": {"a": 10.0, "b": 11.0},
        "bytes": {},
    }
    assert scores_lib.best_baselines(baselines) == {"mlm": 260.0, "cifar10": 11.0}


def test_masked_lm_runs_are_in_the_top_folder():
    assert scores_lib.folder_of("runs", "mlm") == "runs"
    assert scores_lib.folder_of("runs", "cifar10") == "runs/cifar10"
