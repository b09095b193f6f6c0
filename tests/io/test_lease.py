"""One run per folder: real processes on this machine; other machines by what their leases look like."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.io import lease as lease_lib
from gmlp_flax.io import run_files
from gmlp_flax.io.lease import Lease

HOLD = """
import sys, time
from gmlp_flax.io import lease
lease.BEAT = 0.2
lease.Lease(sys.argv[1]).take()
print("taken", flush=True)
time.sleep(600)
"""


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(lease_lib, "BEAT", 0.2)
    monkeypatch.setattr(lease_lib, "STALE", 1.0)
    monkeypatch.setattr(lease_lib, "ENDING", 0.3)


def written(folder) -> dict:
    return json.loads((folder / "lease.json").read_text())


def leave(folder, **values) -> None:
    """A lease of a process on another machine."""
    other = {"host": "elsewhere", "process": 7, "since": "2026-11-25", "machine": "another", "token": "x", "beats": 1}
    (folder / "lease.json").write_text(json.dumps(other | values))


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
    lease = Lease(str(tmp_path))
    since = re.escape(written(tmp_path)["since"])
    with pytest.raises(
        RunError, match=rf"^{tmp_path} is in use by process {holder.pid} on \S+, since {since}: wait for it"
    ):
        lease.take()
    lease.close()
    assert written(tmp_path)["process"] == holder.pid


def test_lease_of_a_killed_process_is_taken_over_at_once(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert written(tmp_path)["process"] == holder.pid
    begin, lease = time.monotonic(), Lease(str(tmp_path))
    lease.take()
    assert written(tmp_path)["process"] == os.getpid() and time.monotonic() - begin < lease_lib.BEAT
    lease.close()
    assert os.listdir(tmp_path) == []


def test_stopped_process_keeps_its_folder(tmp_path, holder, quick):
    """Its lock speaks for it, though it gives no sign of life."""
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(RunError, match="is in use by process"):
        Lease(str(tmp_path)).take()


@pytest.fixture
def without_locks(monkeypatch):
    """As in a bucket."""

    def unsupported(*_):
        raise OSError("no locks here")

    monkeypatch.setattr(lease_lib.fcntl, "flock", unsupported)


def test_without_locks_a_number_that_is_another_process_by_now_locks_nobody_out(tmp_path, quick, without_locks):
    """A container that is started again gets the number of the process that was killed, which gives no sign of life."""
    leave(tmp_path, machine=lease_lib._machine(), process=os.getpid())
    lease = Lease(str(tmp_path))
    lease.take()
    assert written(tmp_path)["token"] != "x"
    lease.close()


def test_without_locks_a_process_that_is_gone_is_not_waited_for(tmp_path, holder, quick, without_locks):
    with pytest.raises(RunError, match=f"is in use by process {holder.pid} on"):
        Lease(str(tmp_path)).take()
    holder.kill()
    holder.wait()
    lease = Lease(str(tmp_path))
    lease.take()
    lease.close()


def test_silent_owner_on_another_machine_is_taken_over(tmp_path, quick, capsys):
    leave(tmp_path)
    begin, lease = time.monotonic(), Lease(str(tmp_path))
    lease.take()
    assert 1.0 <= time.monotonic() - begin < 5 and written(tmp_path)["process"] == os.getpid()
    assert (
        f"{tmp_path} has the lease of process 7 on elsewhere, since 2026-11-25: waiting up to 1 s"
        in capsys.readouterr().err
    )
    lease.close()


def test_owner_on_another_machine_that_beats_is_refused(tmp_path, quick):
    leave(tmp_path)
    beat = threading.Timer(0.5, leave, (tmp_path,), {"beats": 2})
    beat.start()
    with pytest.raises(RunError, match="is in use by process 7 on elsewhere, since 2026-11-25: wait"):
        Lease(str(tmp_path)).take()
    beat.join()
    assert written(tmp_path)["beats"] == 2


def test_lease_that_cannot_be_written_leaves_nothing(tmp_path):
    """No file of no bytes, whose owner the next start would wait for; and the folder may be deleted if it was made."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    lease = Lease(str(tmp_path))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # as if the disk were full
    try:
        with pytest.raises(RunError, match=r"lease.json failed \(File too large\): free space"):
            lease.take()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    lease.close()
    assert lease.is_own and os.listdir(tmp_path) == []


def test_beats_and_a_lost_lease(tmp_path, quick):
    lease = Lease(str(tmp_path))
    lease.take()
    time.sleep(0.7)
    lease.check()
    assert written(tmp_path)["beats"] >= 2
    leave(tmp_path)
    time.sleep(0.7)
    with pytest.raises(
        RunError, match=rf"^{tmp_path} is not this run's any more: process 7 on elsewhere, since .* has taken it"
    ):
        lease.check()
    lease.close()
    assert written(tmp_path)["host"] == "elsewhere"  # it is not ours to delete


def test_late_beat_is_made_up_for_before_writing(tmp_path, quick, monkeypatch):
    """A process that slept finds out at its first write, not at its next beat."""
    monkeypatch.setattr(lease_lib, "BEAT", 100.0)
    lease = Lease(str(tmp_path))
    lease.take()
    leave(tmp_path)
    lease.check()  # the last sign of life is young: no file is read
    time.sleep(0.6)
    with pytest.raises(RunError, match="is not this run's any more"):
        lease.check()
    lease.close()


def test_lease_that_cannot_be_renewed(tmp_path, quick, monkeypatch):
    lease = Lease(str(tmp_path))
    lease.take()

    def broken(*_):
        raise RunError("broken")

    monkeypatch.setattr(run_files, "write", broken)
    lease.check()
    time.sleep(1.2)
    with pytest.raises(RunError, match="lease.json could not be written for 1 s"):
        lease.check()
    lease.close()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\0", b"[" * 100_000])
def test_lease_that_makes_no_sense(tmp_path, quick, content):
    (tmp_path / "lease.json").write_bytes(content)
    lease = Lease(str(tmp_path))
    lease.take()
    assert written(tmp_path)["process"] == os.getpid()
    lease.close()
