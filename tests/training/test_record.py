"""The record of a run is put aside, and back, whatever happens in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from gmlp_flax.io import run_files
from gmlp_flax.training import record

FILES = {
    "run.json": "{}",
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
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("moves", [1, 2, 3])
def test_a_restart_that_is_cut_short_changes_nothing(run, monkeypatch, moves):
    """By Ctrl-C between two moves, of four."""
    move, done = run_files.move, []

    def interrupted(path, target):
        if len(done) == moves:
            done.append("Ctrl-C")
            raise KeyboardInterrupt
        done.append(path)
        return move(path, target)

    monkeypatch.setattr(run_files, "move", interrupted)
    with pytest.raises(KeyboardInterrupt), record.held(str(run), restart=True):
        pass
    assert files(run) == FILES and not (run / "before-1").exists()


def test_half_of_the_checkpoints_are_moved_back_to_the_other_half(run):
    """As after an error within the copies of a bucket."""
    aside = run / "before-1"
    (aside / "checkpoints").mkdir(parents=True)
    (run / "run.json").rename(aside / "run.json")
    (run / "checkpoints" / "2").rename(aside / "checkpoints" / "2")
    (run / "checkpoints" / "3").mkdir()

    class Lease:
        is_own = True

    record._put_back(str(run), str(aside), Lease())
    assert files(run) == FILES
