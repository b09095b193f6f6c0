"""Deletion that is killed between any two of its strokes."""

import os
import shutil
import uuid

import jax.numpy as jnp
import pytest

from gmlp_flax.checkpoints import places
from gmlp_flax.checkpoints.checkpoint import Checkpoints
from gmlp_flax.checkpoints.deletion import DELETED, Deleter
from gmlp_flax.errors import StorageError
from gmlp_flax.io import buckets, run_files


class Killed(BaseException):
    pass


def saved(folder, *steps, **options) -> Checkpoints:
    checkpoints = Checkpoints(str(folder), **options)
    for step in steps:
        checkpoints.save(step, {"x": jnp.full(3, step)}, None)
        checkpoints.wait()
    return checkpoints


def test_old_checkpoints_go(tmp_path):
    checkpoints = saved(tmp_path / "checkpoints", 1, 2, 3)
    assert checkpoints.steps() == [3]
    checkpoints.close()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["3"]


def test_killed_while_the_files_of_a_step_are_deleted(tmp_path, monkeypatch):
    """No step is half there, and the next start deletes the rest."""
    folder = tmp_path / "checkpoints"
    saved(folder, 1, 2, keep=2).close()
    files = sorted(path.relative_to(folder / "1") for path in (folder / "1").rglob("*"))

    def killed(path, ignore_errors):
        os.unlink(next(each for each in (folder / DELETED).rglob("*") if each.is_file()))
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(shutil, "rmtree", killed)
        Deleter(str(folder)).delete(1)
    assert sorted(path.name for path in folder.iterdir()) == ["2", DELETED]
    assert len([*(folder / DELETED / "1").rglob("*")]) == len(files) - 1
    reading = Checkpoints(str(folder), read_only=True)
    assert reading.steps() == [2] and (folder / DELETED).exists()
    reading.close()
    again = Checkpoints(str(folder))
    assert again.steps() == [2]
    again.close()
    assert [path.name for path in folder.iterdir()] == ["2"]


def test_step_that_cannot_be_moved_is_whole(tmp_path, monkeypatch):
    folder = tmp_path / "checkpoints"
    saved(folder, 1).close()
    files = sorted(folder.rglob("*"))

    def stuck(path, target):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(run_files, "PAUSES", ())
    monkeypatch.setattr(os, "rename", stuck)
    with pytest.raises(StorageError, match=r"^moving \S+/checkpoints/1 to \S+/deleted/1 failed \(Input/output error\)"):
        Deleter(str(folder)).delete_steps([1])
    assert [path for path in sorted(folder.rglob("*")) if path.name != DELETED] == files


def test_mark_goes_first_in_a_bucket(tmp_path, monkeypatch):
    folder = f"memory://{uuid.uuid4()}/checkpoints"
    names = ["_METADATA", "a/b", buckets.FINISHED, "manifest.ocdbt"]
    for name in names:
        buckets.write(f"{folder}/7/{name}", b"x")
    system, _ = buckets.file_system(folder)
    order = []
    monkeypatch.setattr(type(system), "rm_file", lambda self, path: order.append(path.partition("/7/")[2]))
    Deleter(folder).delete(7)
    assert order == [buckets.FINISHED, "_METADATA", "manifest.ocdbt", "a/b"]


def test_mark_goes_first_in_a_mounted_bucket(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "is_bucket", lambda folder: True)
    path = tmp_path / "7"
    (path / "d").mkdir(parents=True)
    for name in (buckets.FINISHED, "a", "d/b"):
        (path / name).write_text("x")
    left = []
    real = shutil.rmtree
    monkeypatch.setattr(
        shutil, "rmtree", lambda folder, **how: (left.append(sorted(os.listdir(folder))), real(folder, **how))
    )
    Deleter(str(tmp_path)).delete(7)
    assert left == [["a", "d"]] and not path.exists()
    Deleter(str(tmp_path)).delete(8)  # nothing is there
