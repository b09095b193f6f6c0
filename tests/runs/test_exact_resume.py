"""A run that is killed and restarted ends as an uninterrupted one: with the same bits and lines,
and optimized programs.

It is killed twice, once in training and once while it starts; every night three times.
`KILLS=24 pytest tests/runs/test_exact_resume.py` kills it 24 times, in about three minutes.
"""

import json
import math
import os
import random

import pytest

from tests.runs.command import assert_done, assert_same_run, metrics
from tests.runs.kill import kill_until_done

FLAGS = ["--config.checkpoint.every=7", "--config.log.every=5", "--config.eval.every=50"]
FLAGS += [
    "--config.optimizer.ema=0.9",
    "--config.model.dropout=0.1",
    "--config.optimizer.grad_accum_steps=2",
]
OPTIMIZED = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""}  # as users have them
OFTEN = int(os.environ.get("KILLS", "3"))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, pytest.param(OFTEN, marks=pytest.mark.nightly)])
def test_killed_runs_resume_exactly(commands, text, tmp_path, kills):
    """Checkpoints, lines and evaluations are at different steps. EMA and dropout are resumed as
    well."""
    steps = 50 * math.ceil(1 + kills / 2)  # enough to be killed in
    flags = [text, *FLAGS, f"--config.steps={steps}"]
    expected = tmp_path / "uninterrupted"
    workdir = tmp_path / "killed"
    assert_done(commands(*flags, f"--workdir={expected}", **OPTIMIZED))
    command = [*flags, f"--workdir={workdir}"]

    def start():
        return commands.start(*command, **OPTIMIZED)

    rng = random.Random(steps)
    done, output = kill_until_done(start, kills, startup=3.0, lines=8, rng=rng)
    assert done == kills, "the run finished too early to be killed so often: give it more steps"
    last = commands(*command, **OPTIMIZED)
    assert_done(last)
    assert "resuming " in last.stderr

    assert_same_run(workdir, expected)
    found = metrics(workdir)
    training_steps = [line["step"] for line in found if "eval" not in line]
    assert training_steps == list(range(5, steps + 1, 5))
    evaluated_steps = [line["step"] for line in found if "eval" in line]
    assert evaluated_steps == list(range(50, steps + 1, 50))
    for folder in (workdir, expected):
        result = json.loads((folder / "result.json").read_text())
        assert result["eval"] == found[-1]["eval"]
    assert not (workdir / "damaged").exists()
    # all that were killed after some steps, except the first
    assert output.count("resuming ") >= math.ceil(kills / 2) - 1
