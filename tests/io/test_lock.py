import errno
import multiprocessing
import os
import threading
import time

import pytest

from gmlp_flax.errors import DataError
from gmlp_flax.io import lock
from gmlp_flax.io.lock import LOCK, locked


def hold(folder, ready, seconds):
    with locked(folder):
        ready.set()
        time.sleep(seconds)


def test_the_second_waits_and_a_killed_one_holds_nothing(tmp_path, capfd):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=hold, args=(tmp_path / "a", ready, 0.5))
    process.start()
    assert ready.wait(20)
    with locked(tmp_path / "a"):
        assert process.exitcode == 0 or (process.join(10) is None and process.exitcode == 0)
    assert "waiting for another process that prepares" in capfd.readouterr().err

    ready = context.Event()
    process = context.Process(target=hold, args=(tmp_path / "a", ready, 100))
    process.start()
    assert ready.wait(20)
    process.kill()
    process.join()
    with locked(tmp_path / "a"):
        pass


def test_an_error_that_leaves_nothing_leaves_no_folder(tmp_path):
    for written in (False, True):
        with pytest.raises(KeyError), locked(tmp_path / "a" / "b"):
            (tmp_path / "a" / "file").write_text("") if written else None
            raise KeyError
        assert [path.name for path in tmp_path.rglob("*")] == (["a", "file"] if written else [])


def test_whoever_waits_for_a_folder_that_is_deleted_makes_it_anew(tmp_path):
    done = []

    def wait():
        with locked(tmp_path / "a" / "b"):
            done.append((tmp_path / "a" / "b" / LOCK).exists())

    thread = threading.Thread(target=wait)
    with pytest.raises(KeyError), locked(tmp_path / "a" / "b"):
        thread.start()
        time.sleep(0.3)
        raise KeyError
    thread.join(10)
    assert done == [True]


def test_unwritable(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot write '.*file/a' .*; give a folder that can be written to"):
        with locked(tmp_path / "file" / "a"):
            pass


def test_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with (
        pytest.raises(
            DataError, match="cannot write .*Function not implemented.*; give a folder that can be written to"
        ),
        locked(tmp_path / "a"),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (300 * "x", "(File name too long); give a folder that can be written to"),
        ("a\udcff", "(its name is not UTF-8); give another"),
    ],
)
def test_name_that_no_folder_can_have(tmp_path, name, words):
    with pytest.raises(DataError) as caught, locked(tmp_path / name):
        pass
    assert str(caught.value).startswith("cannot write '") and words in str(caught.value)
