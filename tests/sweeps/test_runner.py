"""Several runs, some at a time: what is resumed, what is stopped, and that none outlives the script."""

import concurrent.futures
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.sweeps import runner
from tests import preloaded
from tests.sweeps.stand_in import Trainer

ROOT = Path(__file__).parents[2]
# A script of its own that trains two runs.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # Shells start background jobs, perhaps these tests, without.
sys.executable = {executable!r}
from gmlp_flax.commands import cli
from gmlp_flax.sweeps.runner import TrainingPool

def main():
    with TrainingPool({out!r}, {jobs}) as pool:
        print([run.result() for run in [pool.submit(name, []) for name in ("first", "second")]])

with cli.show_errors():
    main()
"""


@pytest.fixture
def trainer(tmp_path):
    return Trainer(tmp_path)


def results(patch, trainer, names, jobs=1):
    with patch.context() as patched, runner.TrainingPool(str(trainer.folder / "out"), jobs) as pool:
        patched.setattr(sys, "executable", str(trainer.executable))
        runs = {pool.submit(name, [f"--config={name}.py"]): name for name in names}
        return {runs[run]: run.result() for run in concurrent.futures.as_completed(runs)}


def start(trainer: Trainer, jobs: int = 1) -> subprocess.Popen:
    """A script whose first run hangs, once it does."""
    trainer.plan({"first": "hangs"})
    program = PROGRAM.format(executable=str(trainer.executable), out=str(trainer.folder / "out"), jobs=jobs)
    process = preloaded.start("-c", program)
    wait_until(lambda: (trainer.folder / "hanging").exists())
    return process


def wait_until(true) -> None:
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert true()


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_each_run_gives_its_metrics(monkeypatch, trainer):
    trainer.plan({"a": {"accuracy": 0.5, "loss": 1.0}, "b": {"accuracy": 0.25}})
    metrics = results(monkeypatch, trainer, "ab")
    assert metrics == {"a": {"accuracy": 0.5, "loss": 1.0}, "b": {"accuracy": 0.25}}
    train, out = ["-m", "gmlp_flax.train"], trainer.folder / "out"
    assert trainer.calls() == [[*train, f"--workdir={out}/{name}", f"--config={name}.py"] for name in "ab"]
    # What is there is read, not trained again.
    assert results(monkeypatch, trainer, "abc")["b"] == {"accuracy": 0.25}
    assert trainer.names() == ["a", "b", "c"]


def test_failing_run_ends_those_beside_it(monkeypatch, tmp_path):
    """Though it is the second, and the first would go on for long."""
    trainer = Trainer(tmp_path, waits=True)
    trainer.plan({"a": "hangs", "b": "fails"})
    with pytest.raises(RunError, match=r"^the run .*/out/b failed \(the reason of b\): its output is in .*/out/b.log$"):
        results(monkeypatch, trainer, "abc", jobs=2)
    assert "b says fails" in trainer.log("b").read_text()
    wait_until(lambda: not alive(int((tmp_path / "hanging").read_text())))


def test_a_failed_run_has_the_reason_of_its_last_start(monkeypatch, trainer):
    """Also if the log holds an older one, and none if it tells none."""
    trainer.log("a").parent.mkdir()
    trainer.log("a").write_bytes(b"error: an older one\n\xff\n")
    trainer.plan({"a": "fails"})
    with pytest.raises(RunError, match=r"failed \(the reason of a\): its output"):
        results(monkeypatch, trainer, "a")
    trainer.executable.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(RunError, match="/out/a failed: its output"):
        results(monkeypatch, trainer, "a")


def test_log_that_cannot_be_written_is_one_line(monkeypatch, trainer):
    out = trainer.folder / "out"
    out.write_text("")
    with pytest.raises(RunError, match=r"^making .*/out failed \(File exists\): "):
        results(monkeypatch, trainer, "a")
    out.unlink()
    out.mkdir()
    (out / "a.log").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"^writing .*/out/a.log failed \(No space left on device\): .*free space"):
        results(monkeypatch, trainer, "a")
    assert not trainer.calls()


def test_run_that_something_else_stopped(monkeypatch, trainer):
    """A trainer that is told to stop saves and ends well, without a result."""
    trainer.plan({"a": "stops"})
    with pytest.raises(RunError, match="^the run .*/out/a was stopped before its end: the same command again goes on$"):
        results(monkeypatch, trainer, "a")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_ends_all_runs(trainer, name):
    process = start(trainer)
    process.send_signal(getattr(signal, name))
    printed, errors = process.communicate(timeout=30)
    assert (process.returncode, printed, errors) == (130, "", "interrupted\n")
    assert trainer.names() == ["first"] and not alive(int((trainer.folder / "hanging").read_text()))
