"""A sweep is trained in this process: what it notes of runs that fail; what it chooses is in tests/commands."""

import json
import sys

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


def test_or_do_not(sweep, trainer):
    with pytest.raises(RunError, match="seed=0 failed"):
        training.train(sweep, go_on=False)
    assert not (trainer.folder / "out" / "sweep.json").exists()


def test_a_key_of_the_points_is_not_changed_besides(trainer):
    with pytest.raises(ConfigError, match="--config.seed and the sweep"):
        definition.define(TEXT, ({"seed": 0},), {"seed": "1"}, str(trainer.folder))
