"""Which checkpoints stay, and a deletion that is killed between any two of its strokes."""

import os
import shutil
import uuid
from unittest import mock

import jax.numpy as jnp
import pytest

from gmlp_flax.checkpoints import retention
from gmlp_flax.checkpoints.checkpoint import Checkpoints
from gmlp_flax.checkpoints.retention import DELETED, Retention
from gmlp_flax.errors import StorageError
from gmlp_flax.io import files as io_files
from gmlp_flax.io import storage
from tests.failures import raised


def kept(verified: dict, steps=None, **rules) -> list[int]:
    rules = {"keep": 1, "keep_best": 1, "metric": "loss", **rules}
    return sorted(Retention(**rules).kept(list(steps or verified), verified))


def test_newest_and_best_stay():
    verified = {
        1: {"loss": 0.5},
        2: {"loss": 0.1},
        3: None,
        4: {"loss": float("nan")},
        5: {"loss": 0.3},
        6: None,
    }
    assert kept(verified) == [2, 6]
    assert kept(verified, keep=2, keep_best=2) == [2, 5, 6]
    assert kept(verified, keep_best=0) == [6]
    assert kept(verified, mode="max") == [1, 6]


@pytest.mark.parametrize("keep, best", [(1, 0), (1, 3), (2, 5), (3, 2)])
def test_the_best_stay_while_a_run_improves(keep, best):
    """One checkpoint after another, each better than those before: also while there are fewer than
    `best`."""
    steps = []
    for newest in range(1, 11):
        verified = {step: {"loss": 1 / step} for step in [*steps, newest]}
        steps = kept(verified, keep=keep, keep_best=best)
        expected = list(range(max(1, newest + 1 - max(keep, best)), newest + 1))
        assert steps == expected


def test_without_an_evaluation_only_the_newest_stay():
    """However many of the best may stay."""
    assert kept(dict.fromkeys(range(1, 6)), keep=2, keep_best=4) == [4, 5]


def test_of_equally_good_ones_the_newest_stays():
    got = kept({step: {"loss": 1.0} for step in range(1, 4)} | {4: None})
    assert got == [3, 4]


def test_what_is_not_known_stays():
    assert kept({2: {"loss": 0.1}, 4: {"loss": 0.2}}, [1, 2, 3, 4]) == [1, 2, 3, 4]
    verified = {1: {"top1": 0.1}, 2: {"loss": 0.1}, 3: {"loss": 0.2}, 4: {"loss": 0.3}}
    assert kept(verified) == [1, 2, 4]


class Killed(BaseException):
    pass


def saved(folder, *steps, keep=1) -> Checkpoints:
    checkpoints = Checkpoints(str(folder), retention=Retention(keep))
    for step in steps:
        checkpoints.save(step, {"x": jnp.full(3, step)}, None)
        checkpoints.wait()
    return checkpoints


def test_killed_while_the_files_of_a_step_are_deleted(tmp_path, monkeypatch):
    """No step is half there, and the next start deletes the rest."""
    folder = tmp_path / "checkpoints"
    saved(folder, 1, 2, keep=2).close()
    files = list((folder / "1").rglob("*"))

    def killed(path, ignore_errors):
        os.unlink(next(file for file in (folder / DELETED).rglob("*") if file.is_file()))
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(shutil, "rmtree", killed)
        retention.delete(str(folder), 1)
    got = sorted(path.name for path in folder.iterdir())
    assert got == ["2", DELETED]
    got = len([*(folder / DELETED / "1").rglob("*")])
    assert got == len(files) - 1
    reading = Checkpoints(str(folder), read_only=True)
    assert reading.steps() == [2]
    assert (folder / DELETED).exists()
    reading.close()
    again = Checkpoints(str(folder))
    assert again.steps() == [2]
    again.close()
    assert [path.name for path in folder.iterdir()] == ["2"]


def test_step_that_cannot_be_moved_is_whole(tmp_path, monkeypatch):
    """And the next save says so."""
    checkpoints = saved(tmp_path, 1)
    files = sorted((tmp_path / "1").rglob("*"))
    checkpoints.save(2, {"x": jnp.zeros(3)}, None)
    monkeypatch.setattr(io_files, "move", mock.Mock(side_effect=OSError(5, "Input/output error")))
    assert "Input/output error" in raised(StorageError, checkpoints.wait)
    checkpoints.close()
    assert sorted((tmp_path / "1").rglob("*")) == files


def test_mark_goes_first_in_a_bucket(monkeypatch):
    folder = f"memory://{uuid.uuid4()}/checkpoints"
    for name in ("_METADATA", "a/b", io_files.COMMIT_MARK, "manifest.ocdbt"):
        io_files.write(f"{folder}/7/{name}", b"x")
    system, _ = storage.file_system(folder)
    order = []
    monkeypatch.setattr(
        type(system), "rm_file", lambda self, path: order.append(path.partition("/7/")[2])
    )
    retention.delete(folder, 7)
    assert order[0] == io_files.COMMIT_MARK
    assert len(order) == 4
