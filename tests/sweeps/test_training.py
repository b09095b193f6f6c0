"""A sweep is trained in this process: what it reports of runs that fail, and its progress. What it
chooses is tested in tests/commands."""

import concurrent.futures
import io
import json
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.sweeps import definition, states, training
from gmlp_flax.sweeps.progress import Progress, Work
from tests.commands.test_sweep import TEXT
from tests.failures import raised
from tests.sweeps.test_pool import wait_until
from tests.sweeps.test_states import write_steps


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


def test_a_failure_ends_the_sweep_if_others_may_not_continue(sweep, trainer):
    assert "seed=0 failed" in raised(RunError, training.train, sweep, continue_on_failure=False)
    assert not (trainer.folder / "out" / "sweep.json").exists()


def test_unreadable_data_that_all_runs_share_end_the_sweep(trainer, monkeypatch):
    trainer.plan({"seed=0": "cannot read"})
    monkeypatch.setattr(sys, "executable", str(trainer.executable))
    points = tuple({"seed": seed} for seed in range(3))
    out = str(trainer.folder / "out")
    shared = definition.define(TEXT, points, {"data.train": "corpus.txt"}, out)
    assert "(corpus.txt: not UTF-8)" in raised(RunError, training.train, shared)
    trainer.plan({"data.train=corpus.txt": "cannot read"})
    points = ({"data.train": "corpus.txt"}, {"data.train": "other.txt"})
    different = definition.define(TEXT, points, {}, out)
    assert training.train(different) is False
    assert trainer.names().count("data.train=other.txt") == 1


def test_progress_counts_the_runs_of_the_whole_command(trainer, monkeypatch, capfd):
    """Two sweeps, of one and of two runs, count three."""
    monkeypatch.setattr(sys, "executable", str(trainer.executable))
    progress = Progress({"": [Work.of(1, 7), Work.of(2, 7)]})
    one_run = ({"seed": 0},)
    two_runs = ({"seed": 1}, {"seed": 2})
    for number, points in enumerate((one_run, two_runs)):
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
def test_shows_what_a_run_does_before_its_first_step(sweep, monkeypatch, stream):
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

    progress = Progress({"": [states.work_of(sweep)]})
    progress.begin_sweep(states.work_of(sweep))
    group_of = {first: sweep.trials[:1], second: sweep.trials[1:]}
    with concurrent.futures.ThreadPoolExecutor() as threads:
        happening = threads.submit(run)
        assert set(training.ended(group_of, sweep.out, progress)) == {first, second}
        happening.result()
    assert len(shown) == 3
    has_bar = "%|" in stream.getvalue()
    assert has_bar == stream.isatty()


def test_refuses_a_flag_for_a_key_of_the_points(trainer):
    with pytest.raises(ConfigError, match="--config.seed and the sweep"):
        definition.define(TEXT, ({"seed": 0},), {"seed": "1"}, str(trainer.folder))
