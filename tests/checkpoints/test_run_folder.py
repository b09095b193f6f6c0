"""Restarts move a run away without losing any file, even if they are interrupted."""

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
    folder = tmp_path / "run"
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def files(folder: Path) -> dict[str, str]:
    """The text of each file below a folder."""
    contents = {}
    for path in folder.rglob("*"):
        if path.is_file():
            name = str(path.relative_to(folder))
            contents[name] = path.read_text()
    return contents


@pytest.mark.parametrize("moves", [1, 2, 3])
def test_interrupted_restarts_lose_nothing(run, monkeypatch, moves):
    """Ctrl-C comes between two of four moves. The incomplete run cannot be resumed."""
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
    contents = {}
    for name, text in files(run).items():
        contents[name.removeprefix("before-1/")] = text
    assert contents == FILES
    monkeypatch.setattr(io_files, "move", move)
    with pytest.raises(RunError, match="no checkpoint to resume from"), run_folder.hold(str(run)):
        pass


def test_restarts_keep_the_previous_run(run):
    with run_folder.hold(str(run), restart=True) as folder:
        folder.begin_steps({"labels.json": b"[]"})
        folder.note_checkpoint()
    assert files(run / "before-1") == FILES
    identity = json.loads((run / "run.json").read_text())
    assert identity["id"] == folder.id
    assert identity["id"] != "abc"
    assert identity["saved"]
    assert (run / "labels.json").exists()


@pytest.mark.parametrize("content", ["", "[]", '{"id": 3}', '{"id": "../x"}', "[" * 100_000])
def test_invalid_identities_are_refused(run, content):
    (run / "run.json").write_text(content)
    message = raised(RunError, run_folder.read_identity, str(run))
    assert f"{run}/run.json is damaged" in message


def test_stores_that_orbax_cannot_write_to_are_refused():
    with pytest.raises(RunError, match="not to s3://"), run_folder.hold("s3://b/x"):
        pass


@pytest.mark.parametrize("name", ["", "checkpoints/", "figures/"])
def test_only_empty_folders_are_deleted(tmp_path, name):
    path = tmp_path / "a" / "b"
    with run_folder.hold(str(path)):
        (path / "checkpoints").mkdir()
    assert not (tmp_path / "a").exists()
    with run_folder.hold(str(path)):
        io_files.write(path / f"{name}file", b"x")
    assert files(path) == {f"{name}file": "x"}
