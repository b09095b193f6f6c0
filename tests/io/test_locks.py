"""One process at a time in a folder. Leases: real processes on this machine; others by what their
leases look like."""

import contextlib
import errno
import fcntl
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from unittest import mock

import pytest

from gmlp_flax.errors import FileError, RunError
from gmlp_flax.io import files, locks, storage
from gmlp_flax.io.locks import Lease, compare_and_swap, folder_lock
from tests.failures import raised

HOLD = """
import sys, time
from gmlp_flax.io import locks
locks.BEAT = 0.2
locks.Lease(sys.argv[1]).take()
print("taken", flush=True)
time.sleep(600)
"""


def hold(folder, begin, held, release):
    while begin.wait():
        begin.clear()
        with folder_lock(folder):
            held.set()
            release.wait()


def test_the_second_waits_and_a_killed_one_holds_nothing(tmp_path, monkeypatch):
    context = multiprocessing.get_context("spawn")
    begin, held, release = events = [context.Event() for _ in range(3)]
    process = context.Process(target=hold, args=(tmp_path / "a", *events))
    said = []
    process.start()

    def waiting(what):
        said.append(what)
        release.set()
        return contextlib.nullcontext()

    monkeypatch.setattr(locks, "heartbeat", waiting)
    begin.set()
    assert held.wait(100)
    with folder_lock(tmp_path / "a"):
        assert said == [f"waiting for another process that prepares {str(tmp_path / 'a')!r}"]
    for event in (held, release):
        event.clear()
    begin.set()
    assert held.wait(100)
    process.kill()
    process.join()
    with folder_lock(tmp_path / "a"):
        assert len(said) == 1


@pytest.fixture
def without_locks(monkeypatch):
    """As in some network file systems."""
    unsupported = OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    monkeypatch.setattr(fcntl, "flock", mock.Mock(side_effect=unsupported))


def test_folder_that_cannot_be_locked(tmp_path, without_locks):
    (tmp_path / "file").touch()
    for name, words in (("file/a", "Not a directory"), ("a", "Function not implemented")):
        with pytest.raises(FileError, match=f"locking .*{words}"), folder_lock(tmp_path / name):
            pass


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(locks, "BEAT", 0.2)
    monkeypatch.setattr(locks, "STALE", 1.0)
    monkeypatch.setattr(locks, "ENDING", 0.3)


def written(folder) -> dict:
    return json.loads((folder / "lease.json").read_text())


def leave(folder, **values) -> None:
    """A lease of a process on another machine."""
    other = {"host": "elsewhere", "process": 7, "since": "2026-11-25", "token": "x", "beats": 1}
    (folder / "lease.json").write_text(json.dumps(other | values))


@pytest.fixture
def lease(tmp_path):
    lease = Lease(str(tmp_path))
    yield lease
    lease.close()


@pytest.fixture
def holder(tmp_path):
    """Another process on this machine that has the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"taken\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_second_process_is_refused_by_name(tmp_path, holder, quick):
    """Its lock speaks for it, also if it is stopped."""
    for _ in range(2):
        lease = Lease(str(tmp_path))
        since = re.escape(written(tmp_path)["since"])
        with pytest.raises(
            RunError,
            match=rf"^{tmp_path} is in use by process {holder.pid} on \S+, since {since}: ",
        ):
            lease.take()
        lease.close()
        assert written(tmp_path)["process"] == holder.pid
        holder.send_signal(signal.SIGSTOP)


def test_folder_of_a_killed_process_is_taken_over_at_once(tmp_path, holder):
    holder.kill()
    holder.wait()
    assert written(tmp_path)["process"] == holder.pid
    lease = Lease(str(tmp_path))
    lease.take()
    assert written(tmp_path)["process"] == os.getpid()
    lease.close()
    assert os.listdir(tmp_path) == []


def test_without_locks_the_process_number_and_signs_of_life_decide(
    tmp_path, holder, quick, without_locks
):
    assert f"is in use by process {holder.pid} on" in raised(RunError, Lease(str(tmp_path)).take)
    holder.kill()
    holder.wait()
    lease = Lease(str(tmp_path))
    lease.take()
    assert written(tmp_path)["process"] == os.getpid()
    lease.close()
    # A machine that is started again may have given the number of the process to another one.
    leave(tmp_path, host=socket.gethostname(), process=os.getpid())
    lease = Lease(str(tmp_path))
    lease.take()
    assert written(tmp_path)["token"] != "x"
    lease.close()


@pytest.mark.parametrize("content", [b"", b"[]", b"[" * 100_000])
def test_lease_that_makes_no_sense_is_taken_over(tmp_path, content, lease):
    """A full disk leaves an empty one."""
    (tmp_path / "lease.json").write_bytes(content)
    lease.take()
    assert written(tmp_path)["process"] == os.getpid()


def test_silent_owner_on_another_machine_is_taken_over(tmp_path, quick, capsys, lease):
    leave(tmp_path)
    begin = time.monotonic()
    lease.take()
    assert time.monotonic() - begin >= 1.0
    assert written(tmp_path)["process"] == os.getpid()
    assert f"{tmp_path} has the lease of process 7" in capsys.readouterr().err


def test_owner_on_another_machine_that_beats_is_refused(tmp_path, quick, monkeypatch, lease):
    monkeypatch.setattr(locks, "STALE", 100.0)
    leave(tmp_path)
    beat = threading.Timer(0.5, leave, (tmp_path,), {"beats": 2})
    beat.start()
    assert "is in use by process 7 on elsewhere, since 2026-11-25: wait" in raised(
        RunError, lease.take
    )
    beat.join()
    assert written(tmp_path)["beats"] == 2


def test_beats_and_a_lost_lease(tmp_path, quick, lease):
    lease.take()
    while written(tmp_path)["beats"] < 2:
        time.sleep(0.02)
    lease.check()
    leave(tmp_path)
    with pytest.raises(
        RunError,
        match=rf"^{tmp_path} no longer belongs to this run: process 7 on elsewhere, since ",
    ):
        while True:
            lease.check()
            time.sleep(0.02)
    lease.close()
    assert written(tmp_path)["host"] == "elsewhere"  # it is not ours to delete


def test_late_beat_is_made_up_for_before_writing(tmp_path, quick, monkeypatch, lease):
    """A process that slept finds out at its first write, not at its next beat."""
    monkeypatch.setattr(locks, "BEAT", 100.0)
    monkeypatch.setattr(locks, "STALE", 100.0)
    lease.take()
    leave(tmp_path)
    lease.check()  # the last sign of life is young: no file is read
    monkeypatch.setattr(locks, "STALE", 0.0)
    assert "no longer belongs to this run" in raised(RunError, lease.check)


def test_lease_that_cannot_be_renewed(quick, monkeypatch, lease):
    monkeypatch.setattr(locks, "STALE", 100.0)
    lease.take()
    monkeypatch.setattr(files, "write", mock.Mock(side_effect=RunError("broken")))
    lease.check()
    monkeypatch.setattr(locks, "STALE", 0.0)
    with pytest.raises(RunError, match=r"lease.json could not be written for \d+ s"):
        lease.check()


def test_only_one_makes_a_file_and_only_its_content_is_replaced(store):
    path = "gs://test/swap"
    assert not compare_and_swap(path, b"", b"x")
    assert not files.exists(path)
    assert compare_and_swap(path, None, b"mine")
    assert not compare_and_swap(path, None, b"yours")
    assert files.read(path) == b"mine"
    assert not compare_and_swap(path, b"yours", b"theirs")
    assert compare_and_swap(path, b"mine", b"ours")
    assert files.read(path) == b"ours"


def test_write_in_between_is_noticed(store, monkeypatch):
    """Somebody writes after the content was compared, and before it is replaced."""
    path = "gs://test/between"
    files.write(path, b"old")
    system, _ = storage.file_system(path)
    read = system.cat_file

    def late(name):
        content = read(name)
        if content == b"old":
            files.write(path, b"another's")
        return content

    monkeypatch.setattr(system, "cat_file", late)
    assert not compare_and_swap(path, b"old", b"new")
    assert files.read(path) == b"another's"


@pytest.mark.parametrize("kind", ["503", "drop", "lost"])
def test_what_passes_is_tried_again(store, monkeypatch, kind):
    """If the answer to a first attempt is lost, the second one meets what the first has written."""
    path = f"gs://test/again-{kind}"
    monkeypatch.setattr("gcsfs.retry.random.random", lambda: -1.0)  # of the second that gcsfs waits
    for old, new in ((None, b"1"), (b"1", b"2")):
        store.faults({"kind": kind, "method": "POST"})
        assert compare_and_swap(path, old, new)
        assert store.met() == {kind: 1}
    assert files.read(path) == b"2"
