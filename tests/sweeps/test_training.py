"""A sweep is trained in this process: what it notes of runs that fail; what it chooses is in tests/commands."""

import itertools
import json
import sys
import types
from concurrent.futures import Future

import pytest

from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.sweeps import definition, training
from tests.commands.test_sweep import TEXT


@pytest.fixture
def sweep(trainer, monkeypatch):
    trainer.plan({"seed=0": "fails", "seed=1": 20.0})
    monkeypatch.setattr(sys, "executable", str(trainer.executable))
    points = ({"seed": 0}, {"seed": 1})
    return definition.define(TEXT, points, {"steps": "7"}, str(trainer.folder / "out"))


def test_the_others_go_on_if_one_fails(sweep, trainer, capfd):
    assert training.train(sweep) is False
    report = json.loads((trainer.folder / "out" / "sweep.json").read_text())
    assert report["failed"] == ["seed=0"] and report["overrides"] == {"steps": 7}
    [point] = report["points"]
    assert [run["workdir"] for run in point["runs"]] == ["seed=1"]
    assert "the reason of seed=0" in capfd.readouterr().err
    trainer.plan({"seed=0": 10.0})
    assert training.train(sweep) is True and trainer.names() == ["seed=0", "seed=1", "seed=0"]


def test_says_how_long_the_others_take(sweep, monkeypatch):
    """After ten seconds half of the 14 steps are taken."""
    clock, steps = itertools.chain([0.0], itertools.repeat(10.0)), itertools.chain([0], itertools.repeat(7))
    monkeypatch.setattr(training, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(training.tables, "steps_taken", lambda _: next(steps))
    first, second = Future(), Future()
    first.set_result({})
    ended = training.ended([first, second], sweep)
    assert next(ended) == (first, "ETA 00:10")
    second.set_result({})
    assert [*ended] == [(second, "")]


def test_or_do_not(sweep, trainer):
    with pytest.raises(RunError, match="seed=0 failed"):
        training.train(sweep, go_on=False)
    assert not (trainer.folder / "out" / "sweep.json").exists()


def test_a_key_of_the_points_is_not_changed_besides(trainer):
    with pytest.raises(ConfigError, match="--config.seed and the sweep"):
        definition.define(TEXT, ({"seed": 0},), {"seed": "1"}, str(trainer.folder))
