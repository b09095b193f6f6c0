"""Scoring a checkpoint from the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def evaluate(workdir, *flags):
    """Runs the command; returns its exit code, standard output and standard error."""
    command = [sys.executable, "-m", "gmlp_flax.evaluate", f"--workdir={workdir}", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.smoke
def test_latest_is_the_runs_own_final_metrics(text_run):
    code, out, error = evaluate(text_run)
    assert code == 0, error
    result = json.loads((text_run / "result.json").read_text())
    found = json.loads(out)
    assert found["eval"] == result["eval"]  # every digit
    assert found["step"] == 12 and found["checkpoint"].endswith("checkpoints/12")


def test_ema_is_scored_beside_the_raw_weights(image_run):
    code, out, error = evaluate(image_run)
    assert code == 0, error
    found = json.loads(out)["eval"]
    assert found == json.loads((image_run / "result.json").read_text())["eval"]
    assert found["ema_loss"] != found["loss"]
    assert found["examples"] == found["ema_examples"] == 382


def test_a_step_and_the_best(text_run):
    lines = [json.loads(line) for line in (text_run / "metrics.jsonl").read_text().splitlines()]
    by_step = {line["step"]: line["eval"] for line in lines if "eval" in line}
    assert json.loads(evaluate(text_run, "--checkpoint=6")[1])["eval"] == by_step[6]
    best = min(by_step, key=lambda step: by_step[step]["perplexity"])
    assert json.loads(evaluate(text_run, "--checkpoint=best")[1])["step"] == best


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--checkpoint=7"], "has no checkpoint '7': give latest, best, or one of 6, 12"),
        (["--chekpoint=7"], "Unknown command line flag 'chekpoint'"),
        (["extra"], "'extra' is no flag"),
    ],
)
def test_mistakes_are_one_line(text_run, flags, message):
    code, _, error = evaluate(text_run, *flags)
    assert code == 2
    assert message in error and len(error.splitlines()) == 1


def test_a_folder_that_is_no_run(tmp_path):
    code, _, error = evaluate(tmp_path)
    assert code == 2
    assert "is no run folder: it has no config.json" in error and len(error.splitlines()) == 1
