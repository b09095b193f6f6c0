import importlib.machinery
import sys
import types

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.training import trackers


@pytest.mark.parametrize(
    ("extra", "package", "value"), [("tensorboard", "tensorboardX", True), ("wandb", "wandb", "project")]
)
def test_missing_extra_is_one_line(config, monkeypatch, extra, package, value):
    find = trackers.importlib.util.find_spec
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None if name == package else find(name))
    config.log[extra] = value
    with pytest.raises(RunError, match=rf"^config.log.{extra} .*pip install 'gmlp_flax\[{extra}\]'$"):
        trackers.Trackers(config.log)


def begin(config, folder, step):
    tracker = trackers.Trackers(config.log)
    tracker.begin(config, str(folder), "abc123", step)
    return tracker


def test_no_trackers_unless_asked_for(config, tmp_path):
    tracker = begin(config, tmp_path, 0)
    tracker.log(1, "train", {"loss": 1.0})
    tracker.close()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in with what we use of wandb 0.31; `calls` are those of init."""
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


def test_wandb_has_the_id_of_the_run(config, tmp_path, wandb):
    config.log.wandb = "project"
    tracker = begin(config, tmp_path / "seed=0", 7)
    asked = {"id": "abc123", "name": "seed=0", "resume": "allow"}
    assert wandb.calls[-1].items() >= asked.items()
    tracker.log(8, "train", {"loss": 1.0})
    tracker.close()
    assert wandb.logged == [(8, {"train/loss": 1.0}), "finished"]


@pytest.mark.parametrize("problem", ["init", "log"])
def test_what_wandb_refuses_is_told_once(config, tmp_path, wandb, capsys, problem):
    config.log.wandb, wandb.problem = "project", problem
    tracker = begin(config, tmp_path, 0)
    for step in range(3):
        tracker.log(step, "train", {"loss": 1.0})
    tracker.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("wandb: ") and line.endswith("; the run goes on without it") and wandb.logged == []


def test_tensorboard_has_one_file_with_the_config(config, tmp_path):
    events = pytest.importorskip("tensorboardX.proto.event_pb2")
    config.log.tensorboard = True
    tracker = begin(config, tmp_path, 4)
    tracker.log(5, "train", {"loss": 1.5})
    tracker.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    data, found, place = path.read_bytes(), [], 0
    while place < len(data):
        size = int.from_bytes(data[place : place + 8], "little")
        found.append(events.Event.FromString(data[place + 12 : place + 12 + size]))
        place += size + 16
    tags = {value.tag: value for event in found for value in event.summary.value}
    assert tags["train/loss"].simple_value == 1.5
    assert b'"learning_rate": ' in tags["config/text_summary"].tensor.string_val[0]
