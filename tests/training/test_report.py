import builtins
import json

import jax
import pytest

from gmlp_flax.training import report
from gmlp_flax.training.errors import RunError


@pytest.fixture
def path(tmp_path):
    """Lines of steps 2 to 8, with evaluations at 4 and 8."""
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": 2, "loss": 3.0}, {"step": 4, "loss": 2.0}, {"step": 4, "eval": {"loss": 2.5}}]
    lines += [{"step": 6, "loss": 1.5}, {"step": 8, "loss": 1.2}, {"step": 8, "eval": {"loss": 2.1}}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.smoke
@pytest.mark.parametrize(("step", "kept"), [(0, []), (3, [2]), (4, [2, 4, 4]), (5, [2, 4, 4]), (8, [2, 4, 4, 6, 8, 8])])
def test_lines_after_the_checkpoint_are_dropped(path, step, kept):
    file = report.MetricsFile(str(path), step)
    assert [line["step"] for line in report.MetricsFile.read(str(path))] == kept
    assert sorted(file.evaluations) == [each for each in (4, 8) if each <= step]
    file.write({"step": 9, "loss": 1.0})
    assert [line["step"] for line in report.MetricsFile.read(str(path))] == [*kept, 9]
    file.close()


def test_half_a_line_is_dropped(path):
    with path.open("a") as file:
        file.write('{"step": 8, "lo')
    report.MetricsFile(str(path), 100).close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [2, 4, 4, 6, 8, 8]
    assert path.read_text().endswith("\n")


def test_half_a_line_that_looks_whole(path):
    """A number cut short is a number: only the line's end tells."""
    path.write_text('{"step": 2, "loss": 3.0}\n{"step": 4, "loss": 2.125}')
    assert [line["step"] for line in report.MetricsFile.read(str(path))] == [2]


@pytest.mark.parametrize("line", ['{"step": 4, "lo', "\0\0\0\0", "\xff", "[4]", '{"loss": 1.0}', '{"step": "4"}'])
def test_damaged_line_is_named_and_nothing_is_lost(path, line):
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:2], line.encode("latin-1") + b"\n", *lines[2:]])
    path.write_bytes(damaged)
    message = rf"^{path}, line 3 is damaged: b'.*' is no JSON object with a step; remove that line and run again$"
    with pytest.raises(RunError, match=message):
        report.MetricsFile(str(path), 100)
    assert path.read_bytes() == damaged


def test_no_file_yet(tmp_path):
    assert report.MetricsFile.read(str(tmp_path / "none")) == []
    file = report.MetricsFile(str(tmp_path / "new"), 0)
    file.write({"step": 1, "eval": {"loss": 1.0}})
    assert file.evaluations == {1: {"loss": 1.0}}
    assert (tmp_path / "new").read_text() == '{"step": 1, "eval": {"loss": 1.0}}\n'  # At once, not when closed.
    file.close()


def test_numbers_survive_to_the_last_bit(tmp_path):
    value = 0.1 + 2**-50
    file = report.MetricsFile(str(tmp_path / "new"), 0)
    file.write({"step": 1, "loss": value})
    file.close()
    assert report.MetricsFile.read(str(tmp_path / "new"))[0]["loss"] == value


@pytest.mark.parametrize(("extra", "package", "value"), [("tensorboard", "tensorboardX", True), ("wandb", "wandb", "project")])
def test_missing_extra_is_one_line(config, tmp_path, monkeypatch, extra, package, value):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name == package:
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    config.log[extra] = value
    with pytest.raises(RunError, match=rf"^config.log.{extra} is set, but it is not installed: pip install -e .\[{extra}\]$"):
        report.trackers(config, str(tmp_path))


def test_no_trackers_unless_asked_for(config, tmp_path):
    assert report.trackers(config, str(tmp_path)) == []


@pytest.fixture
def clock(monkeypatch):
    """The time that `Progress` reads; set it."""
    now = {"seconds": 100.0}
    monkeypatch.setattr(report.time, "perf_counter", lambda: now["seconds"])
    return now


def test_rate_leaves_the_first_step_out(clock):
    progress = report.Progress(first=10, steps=100, per_step=32, unit="tokens")
    assert progress.rate(10) == 0
    clock["seconds"] = 200.0  # The first step compiles.
    progress.advance(11)
    assert progress.rate(11) == 0
    clock["seconds"] = 202.0
    progress.advance(12)
    assert progress.rate(12) == 16
    clock["seconds"] = 204.0
    progress.advance(15)
    assert progress.rate(15) == 32


def test_plain_lines_where_there_is_no_terminal(clock, capsys):
    progress = report.Progress(first=0, steps=5000, per_step=10, unit="images")
    progress.advance(1)
    clock["seconds"] = 110.0
    progress.show(11, 1.23456)
    progress.say("step 11  held out: top1 0.5")
    progress.close()
    assert capsys.readouterr().err.splitlines() == [
        "step 11/5000  loss 1.2346  10 images/s  ETA 1:23:09", "step 11  held out: top1 0.5",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3599, "59:59"), (7325, "2:02:05")])
def test_clock(seconds, text):
    assert report._clock(seconds) == text


def test_files_are_written_whole(tmp_path):
    path = tmp_path / "result.json"
    report.write_json(str(path), {"step": 3})
    assert json.loads(path.read_text()) == {"step": 3} and [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
    with pytest.raises(TypeError):
        report.write_json(str(path), {"step": object()})
    assert json.loads(path.read_text()) == {"step": 3}


def test_environment():
    found = report.environment()
    assert set(found["packages"]) == set(report.PACKAGES) and found["packages"]["jax"] == jax.__version__
    assert found["devices"]["count"] == jax.device_count()
