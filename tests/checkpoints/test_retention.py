"""Which checkpoints are kept, and deletions that are interrupted."""

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
    retention = Retention(**rules)
    steps = list(steps or verified)
    return sorted(retention.kept(steps, verified))


def test_the_newest_and_best_stay():
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
    """Each checkpoint is better than the one before, so that the newest are the best."""
    most = max(keep, best)
    steps = []
    for newest in range(1, 11):
        verified = {step: {"loss": 1 / step} for step in [*steps, newest]}
        steps = kept(verified, keep=keep, keep_best=best)
        oldest = max(1, newest + 1 - most)
        expected = range(oldest, newest + 1)
        assert steps == list(expected)


def test_without_an_evaluation_only_the_newest_stay():
    """The number of best ones does not matter."""
    without_metrics = dict.fromkeys(range(1, 6))
    assert kept(without_metrics, keep=2, keep_best=4) == [4, 5]


def test_the_newest_of_equally_good_ones_stays():
    equal = {"loss": 1.0}
    assert kept({1: equal, 2: equal, 3: equal, 4: None}) == [3, 4]


def test_unverified_checkpoints_stay():
    verified = {2: {"loss": 0.1}, 4: {"loss": 0.2}}
    assert kept(verified, [1, 2, 3, 4]) == [1, 2, 3, 4]


def test_checkpoints_without_the_metric_stay():
    verified = {1: {"top1": 0.1}, 2: {"loss": 0.1}, 3: {"loss": 0.2}, 4: {"loss": 0.3}}
    assert kept(verified) == [1, 2, 4]


class Killed(BaseException):
    pass


def saved(folder, *steps, keep=1) -> Checkpoints:
    checkpoints = Checkpoints(str(folder), retention=Retention(keep))
    for step in steps:
        state = {"x": jnp.full(3, step)}
        checkpoints.save(step, state, None)
        checkpoints.wait()
    return checkpoints


def files_in(folder) -> list:
    return list(folder.rglob("*"))


def test_interrupted_deletions_are_finished_by_the_next_start(tmp_path, monkeypatch):
    """No checkpoint is incomplete in between."""
    folder = tmp_path / "checkpoints"
    deleted = folder / DELETED
    saved(folder, 1, 2, keep=2).close()
    files = files_in(folder / "1")

    def killed(path, ignore_errors):
        first = next(file for file in files_in(deleted) if file.is_file())
        os.unlink(first)
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(shutil, "rmtree", killed)
        retention.delete(str(folder), 1)
    assert sorted(os.listdir(folder)) == ["2", DELETED]
    assert len(files_in(deleted / "1")) == len(files) - 1
    read_only = Checkpoints(str(folder), read_only=True)
    assert read_only.steps() == [2]
    assert deleted.exists()
    read_only.close()
    next_start = Checkpoints(str(folder))
    assert next_start.steps() == [2]
    next_start.close()
    assert os.listdir(folder) == ["2"]


def test_steps_that_cannot_be_moved_stay_complete(tmp_path, monkeypatch):
    """The next save reports the error."""
    checkpoints = saved(tmp_path, 1)
    files = files_in(tmp_path / "1")
    checkpoints.save(2, {"x": jnp.zeros(3)}, None)
    move = mock.Mock(side_effect=OSError(5, "Input/output error"))
    monkeypatch.setattr(io_files, "move", move)
    assert "Input/output error" in raised(StorageError, checkpoints.wait)
    checkpoints.close()
    assert sorted(files_in(tmp_path / "1")) == sorted(files)


def test_the_commit_mark_in_a_bucket_is_deleted_first(monkeypatch):
    folder = f"memory://{uuid.uuid4()}/checkpoints"
    for name in ("_METADATA", "a/b", io_files.COMMIT_MARK, "manifest.ocdbt"):
        io_files.write(f"{folder}/7/{name}", b"x")
    system, _ = storage.file_system(folder)
    order = []

    def remove(self, path):
        _, _, name = path.partition("/7/")
        order.append(name)

    monkeypatch.setattr(type(system), "rm_file", remove)
    retention.delete(folder, 7)
    assert order[0] == io_files.COMMIT_MARK
    assert len(order) == 4
