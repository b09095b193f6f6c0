"""Tables of a sweep: what --status tells of its runs, and the statistics of its points, against NumPy's."""

import json

import numpy as np

from gmlp_flax import config as config_lib
from gmlp_flax.sweeps import tables
from gmlp_flax.sweeps.definition import Sweep, Trial
from tests.commands.test_sweep import TEXT
from tests.sweeps.test_definition import FIRST, SECOND, sweep

FOUND = {(8, 0): 10.0, (8, 1): 13.0, (8, 2): 11.0, (16, 0): 9.0}


def test_status(trainer):
    """A run that is done, one part way, two that failed; half a line ends the metrics."""
    out = trainer.folder / "out"
    lines = [{"step": 100, "eval": {"perplexity": 90.0}}, {"step": 200, "loss": 4.0}]
    for run in (FIRST + "0", FIRST + "1"):
        (out / run).mkdir(parents=True)
        (out / run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3')
    (out / (FIRST + "0") / "result.json").write_text('{"step": 500, "eval": {"perplexity": 45.678}}')
    command = f"python -m gmlp_flax.train --workdir={out}/x\n"
    (out / f"{FIRST}1.log").write_text(f"{command}error: no text\n{command}step 100/500\n")
    (out / f"{SECOND}0.log").write_text(f"{command}error: no text\n")
    (out / f"{SECOND}1.log").write_text(f"{command}Traceback (most recent call last):\nKeyError\n")
    code, printed, told = sweep(trainer, "--sweep=@points.py:2", "--status")
    assert code == 0, told
    assert printed == [
        f"{FIRST}0: done, perplexity 45.678",
        f"{FIRST}1: step 200 of 500",
        f"{SECOND}0: failed: no text",
        f"{SECOND}1: failed: Traceback",
        "1 of 4 runs are done",
    ]
    assert not trainer.calls()


def test_status_of_a_sweep_that_chooses(trainer):
    """Only runs that have begun are shown."""
    (trainer.folder / "out" / "batch_size=8,seed=1").mkdir(parents=True)
    code, printed, _ = sweep(trainer, f"--config={TEXT}", "--grid=batch_size=8,16", "--seeds=0,1", "--status")
    assert code == 0 and printed[0].startswith("batch_size=8,seed=1: step 0 of ") and len(printed) == 2


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
    return sweep, tables.rows(sweep, ended)


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
