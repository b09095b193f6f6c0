"""Only one process at a time uses a folder. Leases of other machines are files written here."""

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


def test_locks_are_waited_for_and_released_by_killed_processes(tmp_path, monkeypatch):
    context = multiprocessing.get_context("spawn")
    begin = context.Event()
    held = context.Event()
    release = context.Event()
    folder = tmp_path / "a"
    process = context.Process(target=hold, args=(folder, begin, held, release))
    messages = []
    process.start()

    def waiting(message):
        messages.append(message)
        release.set()
        return contextlib.nullcontext()

    monkeypatch.setattr(locks, "heartbeat", waiting)
    begin.set()
    assert held.wait(100)
    with folder_lock(folder):
        assert messages == [f"waiting for another process that prepares {str(folder)!r}"]
    held.clear()
    release.clear()
    begin.set()
    assert held.wait(100)
    process.kill()
    process.join()
    with folder_lock(folder):
        assert len(messages) == 1


@pytest.fixture
def without_locks(monkeypatch):
    """Some network file systems have no locks."""
    unsupported = OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    monkeypatch.setattr(fcntl, "flock", mock.Mock(side_effect=unsupported))


def test_folders_that_cannot_be_locked_are_named(tmp_path, without_locks):
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


def write_lease(folder, **values) -> None:
    """Writes the lease of a process on another machine."""
    content = {
        "host": "elsewhere",
        "process": 7,
        "since": "2026-11-25",
        "token": "x",
        "beats": 1,
    }
    (folder / "lease.json").write_text(json.dumps(content | values))


@pytest.fixture
def lease(tmp_path):
    lease = Lease(str(tmp_path))
    yield lease
    lease.close()


@pytest.fixture
def holder(tmp_path):
    """Another process on this machine that has the folder."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"taken\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_process_is_refused_with_the_first_ones_number(tmp_path, holder, quick):
    """The first one keeps its lock even while it is stopped."""
    for _ in range(2):
        lease = Lease(str(tmp_path))
        since = re.escape(written(tmp_path)["since"])
        message = raised(RunError, lease.take)
        pattern = rf"{tmp_path} is in use by process {holder.pid} on \S+, since {since}: "
        assert re.match(pattern, message)
        lease.close()
        assert written(tmp_path)["process"] == holder.pid
        holder.send_signal(signal.SIGSTOP)


def test_folders_of_killed_processes_are_taken_over_at_once(tmp_path, holder):
    holder.kill()
    holder.wait()
    assert written(tmp_path)["process"] == holder.pid
    lease = Lease(str(tmp_path))
    lease.take()
    assert written(tmp_path)["process"] == os.getpid()
    lease.close()
    assert os.listdir(tmp_path) == []


def test_without_locks_running_processes_keep_the_folder(tmp_path, holder, quick, without_locks):
    lease = Lease(str(tmp_path))
    message = raised(RunError, lease.take)
    assert f"is in use by process {holder.pid} on" in message
    holder.kill()
    holder.wait()
    lease = Lease(str(tmp_path))
    lease.take()
    assert written(tmp_path)["process"] == os.getpid()
    lease.close()


@pytest.mark.slow
def test_without_locks_process_numbers_of_silent_leases_are_ignored(tmp_path, quick, without_locks):
    """After a reboot, another process may have the number."""
    write_lease(tmp_path, host=socket.gethostname(), process=os.getpid())
    lease = Lease(str(tmp_path))
    lease.take()
    assert written(tmp_path)["token"] != "x"
    lease.close()


@pytest.mark.parametrize("content", [b"", b"[]", b"[" * 100_000])
def test_invalid_leases_are_taken_over(tmp_path, content, lease):
    """A full disk may write_lease an empty file."""
    (tmp_path / "lease.json").write_bytes(content)
    lease.take()
    assert written(tmp_path)["process"] == os.getpid()


@pytest.mark.slow
def test_leases_of_silent_machines_are_taken_over(tmp_path, quick, capsys, lease):
    write_lease(tmp_path)
    begin = time.monotonic()
    lease.take()
    assert time.monotonic() - begin >= 1.0
    assert written(tmp_path)["process"] == os.getpid()
    assert f"{tmp_path} has the lease of process 7" in capsys.readouterr().err


def test_leases_of_active_machines_are_respected(tmp_path, quick, monkeypatch, lease):
    monkeypatch.setattr(locks, "STALE", 100.0)
    write_lease(tmp_path)
    beat = threading.Timer(0.5, write_lease, (tmp_path,), {"beats": 2})
    beat.start()
    message = raised(RunError, lease.take)
    assert "is in use by process 7 on elsewhere, since 2026-11-25: wait" in message
    beat.join()
    assert written(tmp_path)["beats"] == 2


def test_leases_are_renewed_until_they_are_lost(tmp_path, quick, lease):
    lease.take()
    while written(tmp_path)["beats"] < 2:
        time.sleep(0.02)
    lease.check()
    write_lease(tmp_path)

    def check_until_lost():
        while True:
            lease.check()
            time.sleep(0.02)

    message = raised(RunError, check_until_lost)
    lost = f"{tmp_path} no longer belongs to this run: process 7 on elsewhere, since "
    assert message.startswith(lost)
    lease.close()
    assert written(tmp_path)["host"] == "elsewhere", "the other lease is not deleted"


def test_late_beats_are_made_before_writing(tmp_path, quick, monkeypatch, lease):
    """A process that was suspended notices a lost lease before it writes, not at the next beat."""
    monkeypatch.setattr(locks, "BEAT", 100.0)
    monkeypatch.setattr(locks, "STALE", 100.0)
    lease.take()
    write_lease(tmp_path)
    lease.check()  # soon after a beat, no file is read
    monkeypatch.setattr(locks, "STALE", 0.0)
    assert "no longer belongs to this run" in raised(RunError, lease.check)


def test_leases_that_cannot_be_renewed_are_lost(quick, monkeypatch, lease):
    monkeypatch.setattr(locks, "STALE", 100.0)
    lease.take()
    monkeypatch.setattr(files, "write", mock.Mock(side_effect=RunError("broken")))
    lease.check()
    monkeypatch.setattr(locks, "STALE", 0.0)
    with pytest.raises(RunError, match=r"lease.json could not be written for \d+ s"):
        lease.check()


def test_compare_and_swap_needs_the_current_content(store):
    path = "gs://test/swap"
    assert not compare_and_swap(path, b"", b"x")
    assert not files.exists(path)
    assert compare_and_swap(path, None, b"mine")
    assert not compare_and_swap(path, None, b"yours")
    assert files.read(path) == b"mine"
    assert not compare_and_swap(path, b"yours", b"theirs")
    assert compare_and_swap(path, b"mine", b"ours")
    assert files.read(path) == b"ours"


def test_writes_between_compare_and_swap_are_noticed(store, monkeypatch):
    """Another process writes after the content is compared and before it is replaced."""
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
def test_transient_errors_of_swaps_are_retried(store, monkeypatch, kind):
    """If the answer to the first attempt is lost, the second one finds what the first one wrote."""
    path = f"gs://test/again-{kind}"
    monkeypatch.setattr("gcsfs.retry.random.random", lambda: -1.0)  # gcsfs does not wait
    for old, new in ((None, b"1"), (b"1", b"2")):
        store.faults({"kind": kind, "method": "POST"})
        assert compare_and_swap(path, old, new)
        assert store.met() == {kind: 1}
    assert files.read(path) == b"2"
