"""A sweep is trained in this process: what it notes of runs that fail; what it chooses is in
tests/commands."""

import concurrent.futures
import io
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.sweeps import definition, training
from gmlp_flax.sweeps.definition import Sweep, Trial
from gmlp_flax.sweeps.progress import Progress, Work
from tests import preloaded
from tests.commands.test_sweep import TEXT
from tests.failures import raised
from tests.sweeps.stand_in import Trainer
from tests.sweeps.test_definition import FIRST, SECOND

# As a user's block ends a run, with the note that JAX adds.
TRACEBACK = """Traceback (most recent call last):
  File "block.py", line 3, in __call__
    raise KeyError('bad')
KeyError: 'bad'
--------------------
For simplicity, JAX has removed its internal frames from the traceback.
"""


@pytest.fixture
def sweep(trainer, monkeypatch):
    trainer.plan({"seed=0": "fails", "seed=1": 20.0})
    monkeypatch.setattr(sys, "executable", str(trainer.executable))
    points = ({"seed": 0}, {"seed": 1})
    return definition.define(TEXT, points, {"steps": "7"}, str(trainer.folder / "out"))


def test_other_runs_continue_if_one_fails(sweep, trainer, capfd):
    assert training.train(sweep) is False
    report = json.loads((trainer.folder / "out" / "sweep.json").read_text())
    assert report["failed"] == ["seed=0"]
    assert report["overrides"] == {"steps": 7}
    [point] = report["points"]
    assert [run["workdir"] for run in point["runs"]] == ["seed=1"]
    assert "the reason of seed=0" in capfd.readouterr().err
    trainer.plan({"seed=0": 10.0})
    assert training.train(sweep) is True
    assert trainer.names() == ["seed=0", "seed=1", "seed=0"]


def write_steps(folder: Path, step: int, name: str) -> None:
    """A run folder with metrics up to a step, and an empty file of this name."""
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": step, "loss": 4.0}) + "\n")
    (folder / name).write_text("{}")


def test_remaining_steps_are_counted(trainer):
    """Of seven each: none of a run that has ended early, four of one that has taken three."""
    out = trainer.folder / "out"
    points = ({"seed": 0}, {"seed": 1}, {"seed": 2})
    sweep = definition.define(TEXT, points, {"steps": "7"}, str(out))
    write_steps(out / "seed=0", 5, "result.json")
    write_steps(out / "seed=1", 3, "config.json")
    assert training.work_of(sweep) == Work(3, 21, 0 + 4 + 7)


def test_progress_covers_the_whole_command(trainer, monkeypatch, capfd):
    """Two sweeps, of one and of two runs, count three."""
    monkeypatch.setattr(sys, "executable", str(trainer.executable))
    progress = Progress({"": [Work.of(1, 7), Work.of(2, 7)]})
    for number, seeds in enumerate(((0,), (1, 2))):
        points = tuple({"seed": seed} for seed in seeds)
        out = trainer.folder / f"out{number}"
        sweep = definition.define(TEXT, points, {"steps": "7"}, str(out))
        assert training.train(sweep, progress=progress)
    stderr = capfd.readouterr().err
    for number in (1, 2, 3):
        assert f"({number} of 3 runs" in stderr


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Pipe(io.StringIO):
    def isatty(self):
        return False


@pytest.mark.parametrize("stream", [Terminal(), Pipe()])
def test_run_status_is_shown_before_its_first_step(sweep, monkeypatch, stream):
    """The last line of its log; then how many steps are taken: in a bar, or in plain lines."""
    out = Path(sweep.out)
    out.mkdir()
    log = out / "seed=0.log"
    command = f"python -m gmlp_flax.train --workdir={out}/seed=0\n"
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(training, "PAUSE", 0.02)
    monkeypatch.setattr(training, "SILENCE", 0.1)
    first = Future()
    second = Future()
    shown = []

    def show(text: str) -> None:
        """Waits until a text is shown."""
        stream.truncate(0)
        wait_until(lambda: text in stream.getvalue())
        shown.append(text)

    def run() -> None:
        """What happens to the first run."""
        log.write_text(command)
        show("preparing: starting, 0 of 2 runs")
        log.write_text(f"{command}training a tokenizer of 100 pieces\n")
        show("preparing: training a tokenizer of 100 pieces, 0 of 2 runs")
        write_steps(out / "seed=0", 3, "config.json")
        show("3 of 14 steps, 0 of 2 runs, ETA ")
        first.set_result({})
        second.set_result({})

    progress = Progress({"": [training.work_of(sweep)]})
    progress.begin_sweep(training.work_of(sweep))
    group_of = {first: sweep.trials[:1], second: sweep.trials[1:]}
    with concurrent.futures.ThreadPoolExecutor() as threads:
        happening = threads.submit(run)
        assert set(training.ended(group_of, sweep.out, progress)) == {first, second}
        happening.result()
    assert len(shown) == 3
    has_bar = "%|" in stream.getvalue()
    assert has_bar == stream.isatty()


def test_other_runs_stop_if_configured(sweep, trainer):
    assert "seed=0 failed" in raised(RunError, training.train, sweep, continue_on_failure=False)
    assert not (trainer.folder / "out" / "sweep.json").exists()


def test_key_of_the_points_cannot_also_be_overridden(trainer):
    with pytest.raises(ConfigError, match="--config.seed and the sweep"):
        definition.define(TEXT, ({"seed": 0},), {"seed": "1"}, str(trainer.folder))


FOUND = {(8, 0): 10.0, (8, 1): 13.0, (8, 2): 11.0, (16, 0): 9.0}


def test_status(trainer):
    """A run that is done, one part way, two that failed; half a line ends the metrics."""
    out = trainer.folder / "out"
    lines = [{"step": 100, "eval": {"perplexity": 90.0}}, {"step": 200, "loss": 4.0}]
    for run in (FIRST + "0", FIRST + "1"):
        (out / run).mkdir(parents=True)
        (out / run / "metrics.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3'
        )
    (out / (FIRST + "0") / "result.json").write_text(
        '{"step": 500, "eval": {"perplexity": 45.678}}'
    )
    command = f"python -m gmlp_flax.train --workdir={out}/x\n"
    (out / f"{FIRST}1.log").write_text(f"{command}error: no text\n{command}step 100/500\n")
    (out / f"{SECOND}0.log").write_text(f"{command}error: no text\n")
    (out / f"{SECOND}1.log").write_text(f"{command}{TRACEBACK}")
    code, printed, messages = trainer.sweep("--sweep=@points.py:2", "--status")
    assert code == 0, messages
    assert printed == [
        f"{FIRST}0: done, perplexity 45.678",
        f"{FIRST}1: step 200 of 500",
        f"{SECOND}0: failed: no text",
        f"{SECOND}1: failed: KeyError: 'bad'",
        "1 of 4 runs are done",
    ]
    (out / (FIRST + "0") / "result.json").write_text('{"eval": {"perplexity": Infinity}}')
    _, printed, _ = trainer.sweep("--sweep=@points.py:2", "--status", "--json")
    status = json.loads("\n".join(printed))
    assert status["done"] == 1
    assert status["total"] == 4
    assert status["metric"] == "perplexity"
    assert status["runs"][0] == {
        "name": f"{FIRST}0",
        "state": "done",
        "step": 200,
        "steps": 500,
        "eval": {"perplexity": None},
        "error": "",
    }
    assert [run["state"] for run in status["runs"]] == ["done", "unfinished", "failed", "failed"]
    assert status["runs"][2]["error"] == "no text"
    code, _, messages = trainer.sweep("--sweep=@points.py:2", "--json")
    assert code == 2
    assert "--status" in messages[-1]
    assert not trainer.calls()


def test_status_of_a_sweep_with_selection(trainer):
    """Only runs that have begun are shown."""
    (trainer.folder / "out" / "batch_size=8,seed=1").mkdir(parents=True)
    code, printed, _ = trainer.sweep(
        f"--config={TEXT}", "--grid=batch_size=8,16", "--seeds=0,1", "--status"
    )
    assert code == 0
    assert printed[0].startswith("batch_size=8,seed=1: step 0 of ")
    assert len(printed) == 2


def made():
    """Two points with three seeds each; of the second, one has ended."""
    trials = []
    for batch in (8, 16):
        for seed in range(3):
            config = config_lib.default()
            config.batch_size = batch
            config.seed = seed
            trials.append(Trial({"batch_size": batch, "seed": seed}, [], config))
    ended = {
        trial.name: {"perplexity": FOUND[key], "note": "text"}
        for trial in trials
        if (key := (trial.config.batch_size, trial.config.seed)) in FOUND
    }
    sweep = Sweep("x.py", {}, tuple(trials), False, "perplexity", "min", "out")
    return sweep, training.rows(sweep, ended)


def test_statistics_cover_the_finished_seeds():
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
    assert second["point"] == {"batch_size": 16}
    assert set(second["summary"]["perplexity"].values()) == {9.0}


ROOT = Path(__file__).parents[2]
# A script of its own that trains two runs.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # Shells start background jobs, perhaps these tests, without.
sys.executable = {executable!r}
from gmlp_flax.commands import cli
from gmlp_flax.sweeps.training import training_pool
from tests.sweeps.test_training import trial

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
        training.training_pool(str(trainer.folder / "out"), jobs) as submit,
    ):
        patched.setattr(sys, "executable", str(trainer.executable))
        runs = [submit([trial(name)]) for name in names]
        for run in concurrent.futures.as_completed(runs):
            for name, outcome in run.result().items():
                if isinstance(outcome, RunError):
                    raise outcome
                outcomes[name] = outcome
    return outcomes


def test_trials_differing_only_in_seed_and_rate_are_trained_together():
    trials = []
    for name, steps in (("a", 7), ("b", 7), ("c", 8), ("d", 7)):
        options = config_lib.default()
        options.steps = steps
        options.seed = len(trials)
        options.optimizer.learning_rate = 1e-3 * (1 + len(trials))
        trials.append(Trial({"config": name}, [], options))
    a, b, c, d = trials
    assert training.groups(trials, 1) == [[a], [b], [c], [d]]
    assert training.groups(trials, 2) == [[a, b], [d], [c]]
    assert training.groups(trials, 8) == [[a, b, d], [c]]
    assert a.config.seed == 0


def test_group_is_one_process(monkeypatch, trainer):
    """The keys of the members are not set besides, and one that has ended is no member."""
    out = trainer.folder / "out"
    (out / "b").mkdir(parents=True)
    (out / "b" / "result.json").write_text('{"eval": {"perplexity": 9.0}}')
    trainer.plan({"a": 20.0, "c": 30.0})
    members = [trial("a", 0, 1e-3), trial("b", 1, 1e-3), trial("c", 1, 2e-3)]
    monkeypatch.setattr(sys, "executable", str(trainer.executable))
    with training.training_pool(str(out), 1) as submit:
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


def test_failed_member_does_not_fail_the_others(monkeypatch, trainer):
    trainer.plan({"b": "fails"})
    monkeypatch.setattr(sys, "executable", str(trainer.executable))
    out = trainer.folder / "out"
    with training.training_pool(str(out), 1) as submit:
        outcomes = submit([trial("a"), trial("b", 1)]).result()
    assert outcomes["a"] == {"perplexity": 10.0}
    assert str(outcomes["b"]) == (
        f"the run {out}/b failed (the reason of b): its output is in {out}/a.log"
    )


def start(trainer: Trainer, jobs: int = 1) -> subprocess.Popen:
    """A script whose first run hangs, once it does."""
    trainer.plan({"first": "hangs"})
    program = PROGRAM.format(
        executable=str(trainer.executable), out=str(trainer.folder / "out"), jobs=jobs
    )
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
    train = ["-m", "gmlp_flax.train"]
    out = trainer.folder / "out"
    expected = [[*train, f"--workdir={out}/{name}", *trial(name).flags] for name in "ab"]
    assert trainer.calls() == expected
    # What is there is read, not trained again.
    assert results(monkeypatch, trainer, "abc")["b"] == {"accuracy": 0.25}
    assert trainer.names() == ["a", "b", "c"]


def test_failed_run_ends_the_others_of_its_group(monkeypatch, tmp_path):
    """Though it is the second, and the first would go on for long."""
    trainer = Trainer(tmp_path, waits=True)
    trainer.plan({"a": "hangs", "b": "fails"})
    with pytest.raises(
        RunError,
        match=r"^the run .*/out/b failed \(the reason of b\): its output is in .*/out/b.log$",
    ):
        results(monkeypatch, trainer, "abc", jobs=2)
    assert "b says fails" in trainer.log("b").read_text()
    wait_until(lambda: not alive(int((tmp_path / "hanging").read_text())))


def test_failed_run_has_the_reason_of_its_last_start(monkeypatch, trainer):
    """Also if the log holds an older one, and none if it tells none."""
    trainer.log("a").parent.mkdir()
    trainer.log("a").write_bytes(b"error: an older one\n\xff\n")
    trainer.plan({"a": "fails"})
    assert "failed (the reason of a): its output" in raised(
        RunError, results, monkeypatch, trainer, "a"
    )
    trainer.executable.write_text("#!/bin/sh\nexit 1\n")
    assert "/out/a failed: its output" in raised(RunError, results, monkeypatch, trainer, "a")


def test_unwritable_log_is_one_line(monkeypatch, trainer):
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


def test_run_stopped_by_something_else(monkeypatch, trainer):
    """A trainer that is told to stop saves and ends well, without a result."""
    trainer.plan({"a": "stops"})
    with pytest.raises(
        RunError,
        match="^the run .*/out/a was stopped before its end: give the same command again to resume it$",
    ):
        results(monkeypatch, trainer, "a")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_ends_all_runs(trainer, name):
    process = start(trainer)
    process.send_signal(getattr(signal, name))
    printed, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert printed == ""
    assert errors == "interrupted\n"
    assert trainer.names() == ["first"]
    assert not alive(int((trainer.folder / "hanging").read_text()))
