"""Signals end a run, which saves its state and can be resumed."""

import re
import shlex
import signal
import sys

import pytest

from tests import preloaded
from tests.runs.command import assert_done, await_line, final_state, metrics


def stopped(commands, flags, workdir, name):
    """Sends a signal after the first line about the loss, twice as to a group of processes. Returns the
    exit code and stderr."""
    process = commands.start(*flags, f"--workdir={workdir}")
    await_line(process, "^step .* loss ")
    for _ in range(2):
        process.send_signal(name)
    _, stderr = process.communicate(timeout=120)
    return process.returncode, stderr


# tests/processes/test_stopping.py sends a process every signal that stops a run.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "SIGTERM",
        "SIGUSR1",
        pytest.param("SIGINT", marks=pytest.mark.slow),
        pytest.param("SIGUSR2", marks=pytest.mark.nightly),
        pytest.param("SIGXCPU", marks=pytest.mark.nightly),
    ],
)
def test_signal_saves_and_the_printed_command_resumes(commands, text, tmp_path, name):
    """The exit code is configured, so that an engine restarts the run; a finished run ends with 0."""
    run = tmp_path / "run"
    flags = [
        text,
        "--config.steps=1000000",
        "--config.log.every=10",
        "--config.checkpoint.every=1000000",
        "--stopped_code=75",
    ]
    code, stderr = stopped(commands, flags, run, getattr(signal, name))
    assert code == 75, stderr
    message = stderr.splitlines()[-1]
    pattern = rf"{name}: step (\d+) is saved in {re.escape(str(run))}; to resume: (.*)"
    step, resume = re.fullmatch(pattern, message).groups()
    step = int(step)
    assert step >= 10
    assert int(final_state(run)["step"]) == step
    assert not (run / "result.json").exists()

    train = [sys.executable, "-m", "gmlp_flax", "train"]
    command = shlex.split(resume)
    assert command == [*train, *flags, f"--workdir={run}"]
    end = step // 10 * 10 + 20
    again = preloaded.run(*command[1:], f"--config.steps={end}")
    assert_done(again)
    assert f"resuming {run} at step {step}" in again.stderr
    steps = [line["step"] for line in metrics(run) if "changed" not in line]
    assert steps == [*range(10, end + 1, 10), end]


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("SIGTERM", 7, "SIGTERM: no step was running; give the same command again"),
        ("SIGINT", 130, "interrupted"),
    ],
)
def test_signal_before_the_first_step_leaves_no_folder(
    commands, text, tmp_path, name, code, message
):
    """It is sent at the first printed line, so that the first step cannot come before it on a busy
    machine."""
    run = tmp_path / "run"
    flags = ("--config.steps=1000000", "--stopped_code=7", f"--workdir={run}")
    process = commands.start(text, *flags)
    await_line(process, "writing to ")
    process.send_signal(getattr(signal, name))
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == code
    assert stderr.splitlines()[-1] == message
    assert not run.exists()
