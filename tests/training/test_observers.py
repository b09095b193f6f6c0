"""Progress, traces and trackers of a run."""

import importlib.machinery
import re
import sys
import types

import pytest

from gmlp_flax.errors import RunError, install
from gmlp_flax.training import loop, observers
from tests.conftest import small_text_config


@pytest.fixture
def clock(monkeypatch):
    """The time that `Progress` reads, which tests set."""
    now = {"seconds": 100.0}
    monkeypatch.setattr(observers.time, "perf_counter", lambda: now["seconds"])
    return now


def test_rate_leaves_out_the_first_step(clock):
    line = observers.Progress(first=10, steps=100, per_step=32, unit="tokens")
    assert line.rate(10) == 0
    clock["seconds"] = 200.0  # the first step compiles
    line.advance(11)
    assert line.rate(11) == 0
    clock["seconds"] = 202.0
    line.advance(12)
    assert line.rate(12) == 16
    clock["seconds"] = 204.0
    line.advance(15)
    assert line.rate(15) == 32


def test_plain_lines_without_a_terminal(clock, capsys):
    line = observers.Progress(first=0, steps=5000, per_step=10, unit="images")
    line.advance(1)
    clock["seconds"] = 110.0
    line.show_loss(11, 1.23456)
    line.show("step 11  held out: top1 0.5")
    line.close()
    assert capsys.readouterr().err.splitlines() == [
        "step 11/5000  loss 1.2346  10 images/s  ETA 1:23:09",
        "step 11  held out: top1 0.5",
    ]


def test_line_is_printed_after_some_seconds_of_silence(clock, capsys):
    line = observers.Progress(first=0, steps=5000, per_step=10, unit="images")
    line.advance(1)
    line.show_loss(1, 2.0)
    for step, seconds in ((2, 103.0), (3, 104.0), (4, 107.0), (5, 108.0)):
        clock["seconds"] = seconds
        line.advance(step)
        line.show_step(step)
    line.close()
    assert capsys.readouterr().err.splitlines() == [
        "step 1/5000  loss 2.0000  0 images/s  ETA 00:00",
        "step 3/5000  5 images/s  ETA 2:46:34",
        "step 5/5000  5 images/s  ETA 2:46:30",
    ]


def test_first_step_has_no_rate(clock, capsys):
    line = observers.Progress(first=10, steps=50, per_step=10, unit="images")
    clock["seconds"] = 200.0
    line.advance(11)
    line.show_step(11)
    line.close()
    assert capsys.readouterr().err == "step 11/50  the first of this process\n"


def test_only_losses_are_shown_for_runs_trained_together(clock, capsys):
    line = observers.Progress(first=0, steps=5000, per_step=10, unit="images", name="lr=1")
    clock["seconds"] = 200.0
    line.advance(1)
    line.show_step(1)
    line.close()
    assert capsys.readouterr().err == ""


def test_step_counts_as_slow_until_measured(clock):
    line = observers.Progress(first=0, steps=5000, per_step=10, unit="images")
    assert line.is_slow(0)
    line.advance(1)
    assert line.is_slow(1)
    clock["seconds"] = 100.5
    assert not line.is_slow(2)
    clock["seconds"] = 103.0
    assert line.is_slow(2)


def test_terminal_line(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    line = observers.Progress(first=0, steps=5000, per_step=10, unit="images")
    line.advance(1)
    clock["seconds"] = 110.0
    line.advance(11)
    line.show_loss(11, 1.23456)
    line.close()
    _, _, last = capsys.readouterr().err.rpartition("\r")
    last = last.rstrip()
    assert last.startswith("step 11/5000   0%|"), last
    assert last.endswith("| loss 1.2346  10 images/s  ETA 1:23:09"), last


@pytest.mark.slow
def test_run_writes_a_trace(tmp_path):
    options = small_text_config(tmp_path / "cache")
    options.steps = 6
    options.profile.steps = "2:3"
    loop.train(options, str(tmp_path / "run"))
    assert list((tmp_path / "run").glob("profile/plugins/profile/*/*.xplane.pb"))


@pytest.fixture
def options(config):
    config.steps = 20
    config.profile.steps = "3:5"
    return config


@pytest.fixture
def calls(monkeypatch):
    recorded = []
    profiler = observers.jax.profiler
    monkeypatch.setattr(profiler, "start_trace", lambda folder: recorded.append("start"))
    monkeypatch.setattr(profiler, "stop_trace", lambda: recorded.append("stop"))
    return recorded


@pytest.mark.parametrize(
    ("traced", "steps", "expected"),
    [
        ("3:5", range(1, 8), [1, 2, "start", 3, 4, 5, "stop", 6, 7]),
        ("", range(1, 3), [1, 2]),
        # A run that resumes within the traced steps, and one that ends there.
        ("3:5", range(5, 7), ["start", 5, "stop", 6]),
        ("3:5", range(1, 5), [1, 2, "start", 3, 4, "stop"]),
    ],
)
def test_only_the_configured_steps_are_traced(options, calls, tmp_path, traced, steps, expected):
    options.profile.steps = traced
    tracer = observers.Profile(options, str(tmp_path))

    def step(number: int) -> int:
        calls.append(number)
        return number

    for number in steps:
        assert tracer.step(number, step, number) == number
    tracer.close()
    assert calls == expected


@pytest.mark.parametrize(
    ("extra", "package", "value"),
    [
        ("tensorboard", "tensorboardX", True),
        ("wandb", "wandb", "project"),
    ],
)
def test_missing_extra_is_reported_in_one_line(config, monkeypatch, extra, package, value):
    find = observers.importlib.util.find_spec

    def find_others(name):
        return None if name == package else find(name)

    monkeypatch.setattr(observers.importlib.util, "find_spec", find_others)
    config.log[extra] = value
    advice = re.escape(install(extra))
    with pytest.raises(RunError, match=rf"^config.log.{extra} .*{advice}$"):
        observers.Trackers(config.log)


def begin(config, folder, step):
    tracker = observers.Trackers(config.log)
    tracker.begin(config, str(folder), "abc123", step)
    return tracker


def test_trackers_are_off_by_default(config, tmp_path):
    tracker = begin(config, tmp_path, 0)
    tracker.log(1, "train", {"loss": 1.0})
    tracker.close()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in with the parts of wandb 0.31 that we use; `calls` are those of init."""
    found = types.SimpleNamespace(calls=[], logged_in=False, problem=None, logged=[])

    class Run:
        def log(self, values, step):
            if found.problem == "log":
                raise OSError("the service is gone\nand more")
            found.logged.append((step, values))

        def finish(self):
            found.logged.append("finished")

    def init(**options):
        found.calls.append(options)
        if found.problem == "init":
            raise RuntimeError("run id is in use: it was deleted\nand more")
        return Run()

    module = types.ModuleType("wandb")
    module.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return found


def test_wandb_gets_the_id_of_the_run(config, tmp_path, wandb):
    config.log.wandb = "project"
    tracker = begin(config, tmp_path / "seed=0", 7)
    expected = {"id": "abc123", "name": "seed=0", "resume": "allow"}
    assert wandb.calls[-1].items() >= expected.items()
    tracker.log(8, "train", {"loss": 1.0})
    tracker.close()
    assert wandb.logged == [(8, {"train/loss": 1.0}), "finished"]


@pytest.mark.parametrize("problem", ["init", "log"])
def test_wandb_errors_are_reported_once(config, tmp_path, wandb, capsys, problem):
    config.log.wandb = "project"
    wandb.problem = problem
    tracker = begin(config, tmp_path, 0)
    for step in range(3):
        tracker.log(step, "train", {"loss": 1.0})
    tracker.close()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("wandb: ")
    assert line.endswith("; the run continues without it")
    assert wandb.logged == []


def test_tensorboard_has_one_file_with_the_config(config, tmp_path):
    events = pytest.importorskip("tensorboardX.proto.event_pb2")
    config.log.tensorboard = True
    tracker = begin(config, tmp_path, 4)
    tracker.log(5, "train", {"loss": 1.5})
    tracker.close()
    [path] = (tmp_path / "tensorboard").iterdir()
    values = {}
    for record in tensorboard_records(path.read_bytes()):
        event = events.Event.FromString(record)
        for value in event.summary.value:
            values[value.tag] = value
    assert values["train/loss"].simple_value == 1.5
    [text] = values["config/text_summary"].tensor.string_val
    assert b'"learning_rate": ' in text


def tensorboard_records(content: bytes) -> list[bytes]:
    """The records of a TensorBoard file: a size of 8 bytes and a checksum, the record, a
    checksum."""
    records = []
    start = 0
    while start < len(content):
        size = int.from_bytes(content[start : start + 8], "little")
        first = start + 12
        records.append(content[first : first + size])
        start += size + 16
    return records
