"""The folder of a run is moved away, and nothing of it is lost, whatever happens in between."""

import json
from pathlib import Path

import pytest

from gmlp_flax.checkpoints import run_folder
from gmlp_flax.errors import RunError
from gmlp_flax.io import files as io_files
from tests.failures import raised

FILES = {
    "run.json": '{"id": "abc", "saved": true}',
    "config.json": "{}",
    "metrics.jsonl": "",
    "checkpoints/4/state": "four",
    "checkpoints/2/state": "two",
}


@pytest.fixture
def run(tmp_path):
    for name, content in FILES.items():
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "run"


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("moves", [1, 2, 3])
def test_a_restart_that_is_cut_short_loses_nothing(run, monkeypatch, moves):
    """By Ctrl-C between two moves, of four; and no run goes on from half of one."""
    move = io_files.move
    done = []

    def interrupted(path, target):
        if len(done) == moves:
            done.append("Ctrl-C")
            raise KeyboardInterrupt
        done.append(path)
        return move(path, target)

    monkeypatch.setattr(io_files, "move", interrupted)
    with pytest.raises(KeyboardInterrupt), run_folder.hold(str(run), restart=True):
        pass
    got = {name.removeprefix("before-1/"): text for name, text in files(run).items()}
    assert got == FILES
    monkeypatch.setattr(io_files, "move", move)
    with pytest.raises(RunError, match="no checkpoint to resume from"), run_folder.hold(str(run)):
        pass


def test_a_restart_that_takes_a_step_keeps_both(run):
    with run_folder.hold(str(run), restart=True) as folder:
        folder.begin_steps({"labels.json": b"[]"})
        folder.note_checkpoint()
    assert files(run / "before-1") == FILES
    identity = json.loads((run / "run.json").read_text())
    assert identity["id"] == folder.id != "abc"
    assert identity["saved"]
    assert (run / "labels.json").exists()


@pytest.mark.parametrize("content", ["", "[]", '{"id": 3}', '{"id": "../x"}', "[" * 100_000])
def test_identity_that_makes_no_sense(run, content):
    (run / "run.json").write_text(content)
    assert f"{run}/run.json is damaged" in raised(RunError, run_folder.read_identity, str(run))


def test_stores_that_orbax_does_not_write_to():
    with pytest.raises(RunError, match="not to s3://"), run_folder.hold("s3://b/x"):
        pass


@pytest.mark.parametrize("name", ["", "checkpoints/", "figures/"])
def test_only_folders_in_which_nothing_was_written_are_deleted(tmp_path, name):
    path = tmp_path / "a" / "b"
    with run_folder.hold(str(path)):
        (path / "checkpoints").mkdir()
    assert not (tmp_path / "a").exists()
    with run_folder.hold(str(path)):
        io_files.write(path / f"{name}file", b"x")
    assert files(path) == {f"{name}file": "x"}
