"""The rows of sweep.json."""

import numpy as np

from gmlp_flax import config as config_lib
from gmlp_flax.sweeps import summary
from gmlp_flax.sweeps.definition import Sweep, Trial

# Batch size and seed -> perplexity, of the runs that have ended.
PERPLEXITIES = {(8, 0): 10.0, (8, 1): 13.0, (8, 2): 11.0, (16, 0): 9.0}


def trial(batch_size: int, seed: int) -> Trial:
    config = config_lib.default()
    config.batch_size = batch_size
    config.seed = seed
    return Trial({"batch_size": batch_size, "seed": seed}, [], config)


def test_statistics_are_over_the_seeds_that_ended():
    """Two points with three seeds each; one seed of the second has ended."""
    trials = []
    metrics = {}
    for batch_size in (8, 16):
        for seed in (0, 1, 2):
            added = trial(batch_size, seed)
            trials.append(added)
            if (batch_size, seed) in PERPLEXITIES:
                perplexity = PERPLEXITIES[batch_size, seed]
                metrics[added.name] = {"perplexity": perplexity, "note": "text"}
    sweep = Sweep("x.py", {}, tuple(trials), False, "perplexity", "min", "out")
    first, second = summary.rows(sweep, metrics)
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
    assert second["point"] == {"batch_size": 16}
    assert set(second["summary"]["perplexity"].values()) == {9.0}
