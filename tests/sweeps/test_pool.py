"""Runs in processes, with a stand-in for the trainer: what they return, and how they end."""

import concurrent.futures
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.errors import RunError
from gmlp_flax.sweeps import pool
from gmlp_flax.sweeps.definition import Trial
from tests import preloaded
from tests.failures import raised
from tests.sweeps.stand_in import Trainer

# A script that trains two runs.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # Shells start background jobs, perhaps these tests, without.
sys.executable = {executable!r}
from gmlp_flax.commands import cli
from gmlp_flax.sweeps.pool import training_pool
from tests.sweeps.test_pool import trial

def main():
    with training_pool({out!r}, {jobs}) as submit:
        print([run.result() for run in [submit([trial(name)]) for name in ("first", "second")]])

with cli.show_errors():
    main()
"""


def trial(name: str, seed: int = 0, rate: float = 1e-3) -> Trial:
    """A trial of this name."""
    options = config_lib.default()
    options.seed = seed
    options.optimizer.learning_rate = rate
    flags = [
        f"--config={name}.py",
        f"--config.seed={seed}",
        f"--config.optimizer.learning_rate={rate}",
        "--config.steps=7",
    ]
    return Trial({"config": name}, flags, options)


def results(patch, trainer, names, jobs=1):
    """The outcome of each trial; the first error of one is raised."""
    outcomes = {}
    with (
        patch.context() as patched,
        pool.training_pool(str(trainer.folder / "out"), jobs) as submit,
    ):
        patched.setattr(sys, "executable", str(trainer.executable))
        runs = [submit([trial(name)]) for name in names]
        for run in concurrent.futures.as_completed(runs):
            for name, outcome in run.result().items():
                if isinstance(outcome, RunError):
                    raise outcome
                outcomes[name] = outcome
    return outcomes


def test_trials_that_differ_in_seed_and_rate_alone_are_trained_together():
    steps_of_trials = {"a": 7, "b": 7, "c": 8, "d": 7}
    trials = []
    for number, (name, steps) in enumerate(steps_of_trials.items()):
        options = config_lib.default()
        options.steps = steps
        options.seed = number
        options.optimizer.learning_rate = 1e-3 * (1 + number)
        trials.append(Trial({"config": name}, [], options))
    a, b, c, d = trials
    assert pool.groups(trials, 1) == [[a], [b], [c], [d]]
    assert pool.groups(trials, 2) == [[a, b], [d], [c]]
    assert pool.groups(trials, 8) == [[a, b, d], [c]]
    assert a.config.seed == 0


def test_trains_a_group_in_one_process(monkeypatch, trainer):
    """The members' keys are not set by flags too, and a finished run is left out."""
    out = trainer.folder / "out"
    (out / "b").mkdir(parents=True)
    (out / "b" / "result.json").write_text('{"eval": {"perplexity": 9.0}}')
    trainer.plan({"a": 20.0, "c": 30.0})
    members = [trial("a", 0, 1e-3), trial("b", 1, 1e-3), trial("c", 1, 2e-3)]
    monkeypatch.setattr(sys, "executable", str(trainer.executable))
    with pool.training_pool(str(out), 1) as submit:
        outcomes = submit(members).result()
    assert outcomes == {
        "a": {"perplexity": 20.0},
        "b": {"perplexity": 9.0},
        "c": {"perplexity": 30.0},
    }
    assert trainer.calls() == [
        [
            "-m",
            "gmlp_flax.train",
            f"--member=0:0.001:{out}/a",
            f"--member=1:0.002:{out}/c",
            "--config=a.py",
            "--config.steps=7",
        ]
    ]


def test_a_member_that_fails_does_not_fail_the_others(monkeypatch, trainer):
    trainer.plan({"b": "fails"})
    monkeypatch.setattr(sys, "executable", str(trainer.executable))
    out = trainer.folder / "out"
    with pool.training_pool(str(out), 1) as submit:
        run = submit([trial("a"), trial("b", 1)])
        outcomes = run.result()
    assert outcomes["a"] == {"perplexity": 10.0}
    message = f"the run {out}/b failed (the reason of b): its output is in {out}/a.log"
    assert str(outcomes["b"]) == message


def start(trainer: Trainer, jobs: int = 1) -> subprocess.Popen:
    """A script whose first run hangs, once it does."""
    trainer.plan({"first": "hangs"})
    executable = str(trainer.executable)
    out = str(trainer.folder / "out")
    program = PROGRAM.format(executable=executable, out=out, jobs=jobs)
    process = preloaded.start("-c", program)
    wait_until((trainer.folder / "hanging").exists)
    return process


def wait_until(true) -> None:
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert true()


def alive(process: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    _, _, after_name = stat.rpartition(")")
    state, *_ = after_name.split()
    return state != "Z"


def test_each_run_gives_its_metrics(monkeypatch, trainer):
    planned = {"a": {"accuracy": 0.5, "loss": 1.0}, "b": {"accuracy": 0.25}}
    trainer.plan(planned)
    assert results(monkeypatch, trainer, "ab") == planned
    out = trainer.folder / "out"
    expected = []
    for name in "ab":
        call = ["-m", "gmlp_flax.train", f"--workdir={out}/{name}", *trial(name).flags]
        expected.append(call)
    assert trainer.calls() == expected
    # Finished runs are read, not trained again.
    again = results(monkeypatch, trainer, "abc")
    assert again["b"] == {"accuracy": 0.25}
    assert trainer.names() == ["a", "b", "c"]


def test_a_failing_run_ends_the_running_ones(monkeypatch, tmp_path):
    """Even if it is the second, and the first would run for a long time."""
    trainer = Trainer(tmp_path, waits=True)
    trainer.plan({"a": "hangs", "b": "fails"})
    message = r"^the run .*/out/b failed \(the reason of b\): its output is in .*/out/b.log$"
    with pytest.raises(RunError, match=message):
        results(monkeypatch, trainer, "abc", jobs=2)
    assert "b says fails" in trainer.log("b").read_text()
    wait_until(lambda: not alive(int((tmp_path / "hanging").read_text())))


def test_a_failed_run_reports_the_error_of_its_last_start(monkeypatch, trainer):
    """Not an older one in the same log; no reason is given if the run printed none."""
    trainer.log("a").parent.mkdir()
    trainer.log("a").write_bytes(b"error: an older one\n\xff\n")
    trainer.plan({"a": "fails"})
    assert "failed (the reason of a): its output" in raised(
        RunError, results, monkeypatch, trainer, "a"
    )
    trainer.executable.write_text("#!/bin/sh\nexit 1\n")
    assert "/out/a failed: its output" in raised(RunError, results, monkeypatch, trainer, "a")


def test_reports_a_log_that_cannot_be_written(monkeypatch, trainer):
    out = trainer.folder / "out"
    out.write_text("")
    with pytest.raises(RunError, match=r"^making .*/out failed \(File exists\): "):
        results(monkeypatch, trainer, "a")
    out.unlink()
    out.mkdir()
    (out / "a.log").symlink_to("/dev/full")
    with pytest.raises(
        RunError, match=r"^writing .*/out/a.log failed \(No space left on device\): .*free space"
    ):
        results(monkeypatch, trainer, "a")
    assert not trainer.calls()


def test_reports_a_run_that_was_stopped(monkeypatch, trainer):
    """A trainer that receives SIGTERM saves and exits with 0, without a result."""
    trainer.plan({"a": "stops"})
    with pytest.raises(
        RunError,
        match="^the run .*/out/a was stopped before its end: give the same command again to resume it$",
    ):
        results(monkeypatch, trainer, "a")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_all_runs(trainer, name):
    process = start(trainer)
    process.send_signal(getattr(signal, name))
    printed, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert printed == ""
    assert errors == "interrupted\n"
    assert trainer.names() == ["first"]
    assert not alive(int((trainer.folder / "hanging").read_text()))
