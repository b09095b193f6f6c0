"""The statistics of a sweep's points, against NumPy's."""

import numpy as np

from gmlp_flax import config as config_lib
from gmlp_flax.sweeps import summary
from gmlp_flax.sweeps.definition import Sweep, Trial

FOUND = {(8, 0): 10.0, (8, 1): 13.0, (8, 2): 11.0, (16, 0): 9.0}


def made():
    """Two points with three seeds each; of the second, one has ended."""
    trials = []
    for batch in (8, 16):
        for seed in range(3):
            config = config_lib.default()
            config.batch_size, config.seed = batch, seed
            trials.append(Trial({"batch_size": batch, "seed": seed}, [], config))
    ended = {
        trial.name: {"perplexity": FOUND[key], "note": "text"}
        for trial in trials
        if (key := (trial.config.batch_size, trial.config.seed)) in FOUND
    }
    sweep = Sweep("x.py", {}, tuple(trials), False, "perplexity", "min", "out")
    return sweep, summary.rows(sweep, ended)


def test_statistics_are_over_the_seeds_that_ended():
    _, (first, second) = made()
    values = np.array([10.0, 13.0, 11.0])
    assert first["summary"] == {
        "perplexity": {
            "median": np.median(values),
            "mean": values.mean(),
            "lowest": values.min(),
            "highest": values.max(),
        }
    }
    assert [run["seed"] for run in first["runs"]] == [0, 1, 2]
    assert second["point"] == {"batch_size": 16} and set(second["summary"]["perplexity"].values()) == {9.0}


def test_text_marks_what_has_not_ended_and_what_was_chosen():
    sweep, rows = made()
    lines = summary.text(sweep, [*rows, {"point": {}, "runs": [], "summary": {}}], 1).splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["batch_size=8", "3", "11", "11.333", "10", "13", "10", "13", "11"],
        ["batch_size=16", "1", "9", "9", "9", "9", "9"],
        ["the", "config", "as", "it", "is", "0", "-", "-", "-", "-"],
    ]
    assert lines[4].startswith("chosen: batch_size=16, for its held-out perplexity with seed 0")
