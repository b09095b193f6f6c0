"""A sweep on the engine `local` whose runs are taken away in the middle, as spot machines are."""

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.runs.command import assert_done, final_state, metrics

pytestmark = pytest.mark.slow

EVERY, STEPS = 40, 160
# Steps of some tens of milliseconds: a checkpoint, which is written beside them, is done before the next one is due.
FLAGS = (
    f"--config.steps={STEPS}",
    "--config.log.every=1",
    f"--config.checkpoint.every={EVERY}",
    "--config.eval.every=1000",
    "--config.batch_size=32",
    "--config.model.length=64",
    "--config.model.d_model=64",
    "--config.model.d_ffn=256",
)
ENGINE = ("--on=local", "--processes=1", "--name=rates")


def process_of(workdir: Path) -> int:
    """The process that trains in a folder."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if f"--workdir={workdir}".encode() in words and b"gmlp_flax.train" in words[1:3]:
                return int(path.parent.name)
    raise AssertionError(f"nobody trains in {workdir}")


def taken_away(workdir: Path, number: signal.Signals) -> None:
    """Sends a signal to a run as soon as it has a checkpoint."""
    deadline = time.monotonic() + 120
    while not (workdir / "checkpoints" / str(EVERY)).exists():
        assert time.monotonic() < deadline, "the run did not get so far"
        time.sleep(0.01)
    os.kill(process_of(workdir), number)


def test_preemption_in_a_sweep_costs_no_more_than_the_steps_since_a_checkpoint(commands, text, tmp_path):
    """The first run is killed without notice, the second one is told to end; the same command again ends both."""
    sweep = (text, *FLAGS, f"--out={tmp_path}", "--sweep.seed=0,1")
    first, second = (tmp_path / f"seed={seed}" for seed in range(2))
    launcher = commands.start(*sweep, *ENGINE, command="sweep")
    taken_away(first, signal.SIGKILL)
    taken_away(second, signal.SIGTERM)
    said, told = launcher.communicate(timeout=120)
    assert launcher.returncode == 137 and "rates-0: ended with code 137" in told, told
    assert "[0] SIGTERM: step " in said
    reached = [metrics(run)[-1]["step"] for run in (first, second)]
    assert all(EVERY <= step < STEPS for step in reached), reached
    status = commands(*sweep, "--status", command="sweep")
    assert status.stdout.endswith("0 done, 0 failed, 2 part way, 0 not begun\n")

    done = commands(*sweep, *ENGINE, command="sweep")
    assert_done(done)
    resumed = [int(step) for step in re.findall(r"resuming \S+ at step (\d+)", done.stdout)]
    assert reached[0] - EVERY <= resumed[0] <= reached[0] and resumed[0] % EVERY == 0, (reached, resumed)
    assert resumed[1] == reached[1]
    for run in (first, second):
        assert [line["step"] for line in metrics(run) if "loss" in line] == list(range(1, STEPS + 1))
        assert int(final_state(run)["step"]) == STEPS
    status = commands(*sweep, *ENGINE, command="sweep")
    assert status.stdout.endswith("2 done, 0 failed, 0 part way, 0 not begun\n")
