"""Whole runs: their files, resuming, compilation."""

import contextlib
import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from ml_collections import ConfigDict

from gmlp_flax import config
from gmlp_flax.training import loop, pretrained
from tests import preloaded
from tests.failures import raised
from tests.runs.command import metrics
from tests.training import interrupted, tiny


def steps_of(lines: list[dict], kind: str) -> list[int]:
    """The steps of the metrics lines that have a training loss or an evaluation."""
    return [line["step"] for line in lines if kind in line]


def checkpoint_steps(run) -> list[int]:
    steps = [int(path.name) for path in (run / "checkpoints").iterdir()]
    return sorted(steps)


def test_result_and_metrics_agree(text_run):
    result = json.loads((text_run / "result.json").read_text())
    content = (text_run / "metrics.jsonl").read_text()
    lines = []
    for line in content.splitlines():
        lines.append(json.loads(line))
    assert steps_of(lines, "loss") == [4, 8, 12]
    assert steps_of(lines, "eval") == [6, 12]
    assert result["step"] == 12
    last_line = lines[-1]
    assert result["eval"] == last_line["eval"]


def test_fewer_steps_than_taken_are_refused(text_run, tmp_path):
    run = shutil.copytree(text_run, tmp_path / "run")
    options = config.load(str(run / "config.json"))
    options.steps = 8
    with pytest.raises(loop.RunError, match="step 12, .*config.steps=8"):
        loop.train(options, str(run))


def test_restart_only_moves_the_files_of_a_run(text_run, tmp_path):
    """In particular not the folder of all runs, passed by mistake."""
    runs = tmp_path / "runs"
    shutil.copytree(text_run, runs / "one")
    options = config.load(str(text_run / "config.json"))
    restarting = loop.TrainOptions(restart=True)
    with pytest.raises(loop.RunError, match="--restart: .*runs .*'one'"):
        loop.train(options, str(runs), restarting)
    names = [path.name for path in runs.iterdir()]
    assert names == ["one"]


@pytest.mark.slow
def test_evaluation_with_unreadable_data_leaves_a_checkpoint(tmp_path):
    run = tmp_path / "run"
    options = interrupted.config(tmp_path)
    options.steps = 3
    options.data.unreadable = 1
    message = raised(loop.DataError, loop.train, options, str(run))
    assert "cannot be read" in message
    assert checkpoint_steps(run) == [3]
    options.data.unreadable = 0
    result = loop.train(options, str(run))
    assert result["eval"]["examples"] > 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    run = folder / "run"
    loop.train(interrupted.config(folder), str(run))
    return run


@pytest.fixture(scope="module")
def batches(whole) -> int:
    """The number of batches of an evaluation."""
    examples = metrics(whole)[-1]["eval"]["examples"]
    count = math.ceil(examples / 8)
    assert count > 2
    return count


class Stop(NamedTuple):
    """The state of a run when it stops."""

    newest: int  # the step of the newest checkpoint
    evaluated: list[int]
    times_compiled: int


@dataclasses.dataclass
class Interruptible:
    """A run folder and the config of its run."""

    folder: Path
    config: ConfigDict

    def train(self) -> tuple[dict | None, int]:
        """Trains. Returns the result, and how often the training step was compiled."""
        before = interrupted.Interrupted.times_traced
        folder = str(self.folder)
        result = loop.train(self.config, folder)
        after = interrupted.Interrupted.times_traced
        return result, after - before

    def stop(self, batch: int) -> Stop:
        """Trains until a signal arrives at a held-out batch, counted over all that this process
        reads. The evaluation must end there."""
        self.config.data.stop_at = batch
        result, times_compiled = self.train()
        assert result is None
        assert interrupted.InterruptedData.batches_read[-1] == batch
        assert not (self.folder / "result.json").exists()
        newest = checkpoint_steps(self.folder)[-1]
        evaluated = steps_of(metrics(self.folder), "eval")
        return Stop(newest, evaluated, times_compiled)


def interruptible(folder: Path) -> Interruptible:
    """A run that has not started."""
    return Interruptible(folder / "run", interrupted.config(folder))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, batches):
    """A run that was stopped in the first evaluation, and twice in the second; and its state each
    time."""
    run = interruptible(tmp_path_factory.mktemp("stopped"))
    in_first = run.stop(2)
    in_second = run.stop(batches + 2)
    again_in_second = run.stop(1)
    return run, [in_first, in_second, again_in_second]


@pytest.fixture(scope="module")
def finished(stopped) -> Path:
    """The folder of that run after its last evaluation, for which it compiles no training step."""
    run, _ = stopped
    run.config.data.stop_at = 0
    result, times_compiled = run.train()
    assert result["step"] == 6
    assert times_compiled == 0
    return run.folder


@pytest.mark.slow
def test_signal_ends_an_evaluation(stopped):
    _, [first, _, _] = stopped
    assert first.newest == 3
    assert first.evaluated == []


@pytest.mark.slow
def test_resumed_run_repeats_the_interrupted_evaluation(stopped):
    _, [_, second, third] = stopped
    for stop in (second, third):
        assert stop.newest == 6
        assert stop.evaluated == [3]


def test_step_is_compiled_once_and_only_if_needed(stopped):
    """For a state that comes from initialization or from a checkpoint."""
    _, stops = stopped
    times_compiled = [stop.times_compiled for stop in stops]
    assert times_compiled == [1, 1, 0]


def test_resumed_run_logs_the_lines_of_an_uninterrupted_one(finished, whole):
    """Except for those about the config, which says where the run stops."""
    lines = [line for line in metrics(finished) if "changed" not in line]
    assert lines == metrics(whole)


def test_resumed_run_keeps_the_best_checkpoint_of_an_uninterrupted_one(finished, whole):
    losses = {}
    for line in metrics(whole):
        if "eval" in line:
            losses[line["step"]] = line["eval"]["loss"]
    best = min(losses, key=losses.__getitem__)
    assert pretrained.load(str(finished), "best").step == best


RESUME = """
import sys

from gmlp_flax import config
from gmlp_flax.training import loop
from tests.training import interrupted

options = config.load(sys.argv[1])
options.log.hang_seconds = 5.0
options.data.stop_at = 0
options.data.compile_seconds = 7.0
loop.train(options, sys.argv[2])
"""


@pytest.mark.slow
def test_watchdog_allows_for_compilation_after_a_missing_evaluation(tmp_path):
    """The evaluation is not compiled yet, which may take longer than the watchdog's limit."""
    run = interruptible(tmp_path)
    run.stop(2)
    path = run.folder / "config.json"
    done = preloaded.run("-c", RESUME, str(path), str(run.folder))
    assert done.returncode == 0, done.stderr
    evaluated = steps_of(metrics(run.folder), "eval")
    assert evaluated == [3, 6]


@contextlib.contextmanager
def killed_while_writing(monkeypatch, name: str):
    """In this block, a process that writes a file of this name is killed before it does."""
    write = loop.files.write

    def write_unless_killed(path, content):
        if str(path).endswith(name):
            raise KeyboardInterrupt
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(loop.files, "write", write_unless_killed)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.fixture
def short(tmp_path):
    """A config of three steps, with a checkpoint after the last."""
    options = tiny.text_config(tmp_path)
    options.steps = 3
    options.checkpoint.every = 3
    return options


@pytest.mark.slow
def test_run_killed_before_its_result_is_not_finished(short, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with killed_while_writing(monkeypatch, "result.json"):
        loop.train(short, str(run))
    assert not (run / "result.json").exists()
    assert checkpoint_steps(run) == [3]
    result = loop.train(short, str(run))
    assert result["step"] == 3
    assert (run / "result.json").exists()


@pytest.mark.slow
def test_finished_run_removes_leftovers_of_a_killed_one(short, tmp_path, monkeypatch):
    """Of one that was killed while it drew its figure."""
    run = tmp_path / "run"
    with killed_while_writing(monkeypatch, "result.json"):
        loop.train(short, str(run))
    (run / "figures").mkdir()
    (run / "figures" / ".loss.png.01234567.tmp").touch()
    loop.train(short, str(run))
    assert not list(run.rglob("*tmp*"))
    assert not (run / "lease.json").exists()


@pytest.mark.slow
def test_finished_run_with_more_steps_is_not_finished(short, tmp_path, monkeypatch):
    """If it is killed after config.json has more steps, a sweep must not take the old result for the
    new one."""
    run = tmp_path / "run"
    first = loop.train(short, str(run))
    short.steps = 6
    with killed_while_writing(monkeypatch, "config.json"):
        loop.train(short, str(run))
    assert not (run / "result.json").exists()
    short.steps = 3
    result = loop.train(short, str(run))
    assert result["eval"] == first["eval"]


@pytest.mark.parametrize(
    ("started", "typed"),
    [
        (
            ["python", "-m", "gmlp_flax", "train", "--restart", "--workdir=a b"],
            "python -m gmlp_flax train '--workdir=a b'",
        ),
        (["venv/bin/python", "mine.py", "--other-data"], "venv/bin/python mine.py"),
        (["/venv/bin/python", "/venv/bin/gmlp", "train", "--other_data=true"], "gmlp train"),
        (["/venv/bin/python", ".venv/bin/gmlp", "train"], ".venv/bin/gmlp train"),
    ],
)
def test_command_line_is_recorded_as_typed(monkeypatch, started, typed):
    """`gmlp` is a script, which the system starts as PYTHON PATH."""
    monkeypatch.setattr("sys.orig_argv", started)
    monkeypatch.setattr("shutil.which", {"gmlp": "/venv/bin/gmlp"}.get)
    assert loop.command_as_typed() == typed


@pytest.fixture
def stops_early(tmp_path):
    """A config of six steps whose perplexity reaches the target at the evaluation of step 2."""
    options = tiny.text_config(tmp_path)
    options.eval.every = 2
    options.eval.stop_at = 1e6
    return options


@pytest.mark.slow
def test_run_stops_when_its_metric_reaches_the_target(stops_early, tmp_path, capfd):
    run = tmp_path / "run"
    result = loop.train(stops_early, str(run))
    assert result["step"] == 2
    assert result["baselines"]
    assert checkpoint_steps(run) == [2]
    assert "step 2 is the last: the run reached eval.stop_at" in capfd.readouterr().err
    again = loop.train(stops_early, str(run))
    assert again == result
    assert steps_of(metrics(run), "eval") == [2]


@pytest.mark.slow
def test_run_stopped_early_resumes_for_a_better_target(stops_early, tmp_path):
    run = tmp_path / "run"
    loop.train(stops_early, str(run))
    stops_early.eval.stop_at = 1.0
    result = loop.train(stops_early, str(run))
    assert result["step"] == 6
    evaluated = steps_of(metrics(run), "eval")
    assert evaluated == [2, 4, 6]


@pytest.mark.slow
def test_accuracy_above_the_target_stops_the_run(tmp_path):
    options = tiny.image_config()
    options.eval.every = 2
    goals = ((1e-9, 2), (1.1, 6))
    for goal, last in goals:
        options.eval.stop_at = goal
        folder = str(tmp_path / f"run-{last}")
        result = loop.train(options, folder)
        assert result["step"] == last


@pytest.mark.slow
def test_log_window_of_skipped_steps_is_written(tmp_path, capfd):
    """Its lines have no mean loss, which must not be reported as a loss that is not finite."""
    options = tiny.text_config(tmp_path)
    options.steps = 30
    options.log.every = 1
    options.optimizer.update(skip_spikes=1.000001, learning_rate=1e-9)
    run = tmp_path / "run"
    loop.train(options, str(run))
    skipped = []
    for line in metrics(run):
        if line.get("skipped") == 1:
            skipped.append(line["step"])
    assert skipped
    for line in metrics(run):
        if line["step"] in skipped and "eval" not in line:
            assert line.keys() == {"step", "skipped"}
    err = capfd.readouterr().err
    assert f"skipped all 1 steps before {skipped[0]}" in err
