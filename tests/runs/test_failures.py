"""Failures in the middle of a run: one line, exit code 2, and a checkpoint to resume from."""

import json
import os

import jax
import numpy as np
import pytest
from absl import logging

from gmlp_flax import config
from gmlp_flax.errors import RunError
from gmlp_flax.training import loop
from tests.runs.command import (
    assert_done,
    assert_one_line_error,
    assert_same_run,
    final_state,
    metrics,
)


@pytest.mark.slow
def test_infinite_loss_ends_the_run(workdir):
    options = config.load(str(workdir / "config.json"))
    options.steps = 40
    options.checkpoint.every = 100
    options.optimizer.update(learning_rate=1e30, clip=0.0)
    last = f"the last good checkpoint is {workdir}/checkpoints/12"
    message = f"stopped being finite between steps 13 and 15; {last}; .*learning_rate"
    with pytest.raises(RunError, match=message):
        loop.train(options, str(workdir))
    assert metrics(workdir)[-1]["step"] == 12
    state = final_state(workdir)
    assert int(state["step"]) == 12
    for leaf in jax.tree.leaves(state):
        assert np.isfinite(leaf).all()


@pytest.mark.slow
def test_full_disk_is_one_line(commands, text, tmp_path):
    """Files are limited to 260 KB, which the checkpoint exceeds: Orbax then fails as on a full
    disk."""
    workdir = tmp_path / "run"
    flags = [
        text,
        "--config.model.d_model=256",
        "--config.checkpoint.every=2",
        f"--workdir={workdir}",
    ]
    assert_done(commands(*flags, "--config.steps=4"))
    limited = ("bash", "-c", 'ulimit -f 260; exec "$@"', "bash")
    result = commands(*flags, "--config.steps=8", prefix=limited)
    last = f"the last good checkpoint is {workdir}/checkpoints/4"
    assert_one_line_error(result, last, "File too large", "free space")
    assert int(final_state(workdir)["step"]) == 4
    again = commands(*flags, "--config.steps=8")
    assert_done(again)
    assert f"resuming {workdir} at step 4" in again.stderr
    # one line is the change of config.steps
    steps = [line["step"] for line in metrics(workdir)]
    assert steps == [3, 4, 4, 4, 6, 8, 8]
    assert int(final_state(workdir)["step"]) == 8


@pytest.mark.slow
def test_damaged_checkpoint_is_named_and_the_previous_one_used(
    commands, workdir, finished, capsys, monkeypatch
):
    newest = workdir / "checkpoints" / "12"
    for data in newest.rglob("d/*"):  # of the parameters and of the optimizer
        content = bytearray(data.read_bytes())
        for position in range(0, len(content), 100):
            content[position] ^= 1
        data.write_bytes(content)
    evaluated = commands(f"--workdir={workdir}", command="evaluate")
    assert_one_line_error(evaluated, f"{newest}", "; the run also has checkpoint 8")
    messages = []

    def record(form, *values):
        messages.append(form % values)

    monkeypatch.setattr(logging, "error", record)
    loop.train(config.load(str(workdir / "config.json")), str(workdir))
    assert f"resuming {workdir} at step 8" in capsys.readouterr().err
    *_, message = messages
    assert message.startswith(str(newest))
    assert f"moved to {workdir}/damaged/12" in message
    assert_same_run(workdir, finished)


@pytest.mark.slow
@pytest.mark.smoke
def test_finished_run_does_nothing_again(commands, text, workdir, finished):
    """The config that it wrote can also be started from."""
    result = commands(f"--config={workdir}/config.json", f"--workdir={workdir}")
    assert_done(result)
    assert metrics(workdir) == metrics(finished)
    assert (workdir / "config.json").read_text() == (finished / "config.json").read_text()
    result = json.loads((workdir / "result.json").read_text())
    expected = json.loads((finished / "result.json").read_text())
    assert result["eval"] == expected["eval"]
    assert result["step"] == 12
    files = {"config.json", "environment.json", "metrics.jsonl", "tokenizer.model", "figures"}
    assert set(os.listdir(workdir)) >= files
