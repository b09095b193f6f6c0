import shlex
import signal
import sys

import pytest

from tests import preloaded
from tests.runs.command import assert_done, await_line, final_state, metrics


def stopped(commands, flags, workdir, name):
    """Sends a signal after the first line of the loss, twice as to a group of processes; returns
    the code and standard error."""
    process = commands.start(*flags, f"--workdir={workdir}")
    await_line(process, "^step .* loss ")
    for _ in range(2):
        process.send_signal(name)
    stderr = process.communicate(timeout=120)[1]
    return process.returncode, stderr


# tests/processes/test_stopping.py sends a process every signal that stops a run.
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
    """With a code of its own, so that an engine starts it again; a finished run ends with 0."""
    flags = [
        text,
        "--config.steps=1000000",
        "--config.log.every=10",
        "--config.checkpoint.every=1000000",
    ]
    flags.append("--stopped_code=75")
    code, stderr = stopped(commands, flags, tmp_path / "run", getattr(signal, name))
    assert code == 75, stderr
    message = stderr.splitlines()[-1]
    step = int(message.split(" is saved")[0].rpartition(" ")[2])
    assert message.startswith(f"{name}: step {step} is saved in {tmp_path / 'run'}; to resume: ")
    assert step >= 10
    assert int(final_state(tmp_path / "run")["step"]) == step
    assert not (tmp_path / "run" / "result.json").exists()

    command = shlex.split(message.partition("to resume: ")[2])
    end = step // 10 * 10 + 20
    assert command == [
        sys.executable,
        "-m",
        "gmlp_flax",
        "train",
        *flags,
        f"--workdir={tmp_path / 'run'}",
    ]
    again = preloaded.run(*command[1:], f"--config.steps={end}")
    assert_done(again)
    assert f"resuming {tmp_path / 'run'} at step {step}" in again.stderr
    steps = [line["step"] for line in metrics(tmp_path / "run") if "changed" not in line]
    assert steps == [*range(10, end + 1, 10), end]


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("SIGTERM", 7, "SIGTERM: no step was running; give the same command again"),
        ("SIGINT", 130, "interrupted"),
    ],
)
def test_signal_before_the_first_step_leaves_no_folder(commands, text, tmp_path, name, code, said):
    """At the first line, so that the first step does not come before the signal on a busy
    machine."""
    process = commands.start(
        text, "--config.steps=1000000", "--stopped_code=7", f"--workdir={tmp_path / 'run'}"
    )
    await_line(process, "writing to ")
    process.send_signal(getattr(signal, name))
    stderr = process.communicate(timeout=120)[1]
    assert process.returncode == code
    assert stderr.splitlines()[-1] == said
    assert not (tmp_path / "run").exists()
