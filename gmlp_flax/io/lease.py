"""One run at a time in a folder: who writes to it, on this machine or on others that share its storage.

On one machine a lock on the folder decides, which the system releases when its process ends, however it ends. Where there
are no locks, as in a bucket, and between machines the file lease.json decides: its owner writes it anew every `BEAT`
seconds. An owner that has not done so for `STALE` seconds, by the clock of whoever watches, is dead, and its lease is
taken over.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import secrets
import socket
import sys
import threading
import time
from typing import Any

from gmlp_flax.errors import RunError, StorageError
from gmlp_flax.io import run_files

LEASE_FILE = "lease.json"
BEAT, STALE = 10.0, 40.0  # seconds
ENDING = 3.0  # seconds that a process on this machine, which was just killed, may need to end


class Lease:
    """The right to write to a run folder.

    Args:
        folder: of the run; it exists.
    """

    def __init__(self, folder: str):
        self.folder, self._path = folder, os.path.join(folder, LEASE_FILE)
        self._own = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "since": _now(),
            "machine": _machine(),
            "token": secrets.token_hex(8),
            "beats": 0,
        }
        self._lost, self._renewed, self._written = "", _clock(), b""
        self._mutex, self._closed = threading.Lock(), threading.Event()
        self._lock: int | None = None
        self._unwritten = False
        self._thread: threading.Thread | None = None

    def take(self) -> None:
        """Takes the lease, and keeps it until `close`.

        Raises:
            RunError: another process has it; it is named by host, number and beginning.
        """
        supported = self._lock_folder()
        found = run_files.read(self._path)
        if found is not None:
            held = _parsed(found)
            same = held.get("machine") == self._own["machine"]
            if not same or (
                not supported and _alive(held.get("process"))
            ):  # that number may be another process's by now
                found = self._watch(found)
        self._written = self._content()
        if found is None:
            self._unwritten = True
            taken = run_files.create(self._path, self._written)
            self._unwritten = False
        else:
            taken = run_files.replace(self._path, found, self._written)
        if not taken:
            raise self._refusal(self._read())
        self._renewed = _clock()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises RunError if the lease is lost: whoever writes to the folder asks first. This reads no file, unless the
        last beat is late."""
        if _clock() - self._renewed > STALE / 2:
            self._renew()
        if self._lost:
            raise RunError(f"{self.folder} is not this run's any more: {self._lost}; this run ends and writes no more")
        if (silent := _clock() - self._renewed) > STALE:
            raise StorageError(f"{self._path} could not be written for {silent:.0f} s: another run may take the folder")

    @property
    def is_own(self) -> bool:
        """Whether the lease was taken, or could have been but for an error of storage, and not lost."""
        return (self._thread is not None or self._unwritten) and not self._lost

    def close(self) -> None:
        """Gives the lease back."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
            with contextlib.suppress(RunError):  # whoever comes next sees that the owner is gone
                held = self._read()
                if held is not None and held.get("token") == self._own["token"]:
                    run_files.remove(self._path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _lock_folder(self) -> bool:
        """Locks the folder for this process; False if its file system has no such locks.

        Raises:
            RunError: another process of this machine has it.
        """
        if run_files.is_remote(self.folder):
            return False
        try:
            self._lock = os.open(self.folder, os.O_RDONLY)
        except OSError as error:  # another process that was refused here has removed what it had made
            raise run_files.failure(f"opening {self.folder}", error) from error
        deadline = _clock() + ENDING
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                held = self._read()
                if held is not None and held.get("machine") != self._own["machine"]:
                    return False  # a lock that other machines see, of one of them: its beats decide
                if _clock() > deadline:
                    self.close()
                    raise self._refusal(held) from None
                time.sleep(0.1)
            except OSError:
                return False

    def _watch(self, found: bytes) -> bytes | None:
        """The lease, perhaps gone by now, if its owner on another machine is dead.

        Raises:
            RunError: it is alive.
        """
        owner = _named(_parsed(found))
        print(
            f"{self.folder} has the lease of {owner}: waiting up to {STALE:.0f} s for a sign of life from it",
            file=sys.stderr,
            flush=True,
        )
        deadline = _clock() + STALE
        while _clock() < deadline:
            time.sleep(BEAT / 10)
            now = run_files.read(self._path)
            if now is None:
                return None
            if now != found:
                raise self._refusal(_parsed(now))
        return found

    def _beat(self) -> None:
        while not self._closed.wait(BEAT):
            self._renew()

    def _renew(self) -> None:
        with self._mutex, contextlib.suppress(RunError):  # `check` tells if it goes on
            if self._lost:
                return
            self._own["beats"] += 1
            content = self._content()
            found = content if run_files.replace(self._path, self._written, content) else run_files.read(self._path)
            held = _parsed(found or b"")
            if found and held.get("token") == self._own["token"]:
                self._written, self._renewed = found, _clock()  # perhaps by a beat that seemed to fail
            else:
                self._lost = f"{_named(held)} has taken it" if held else f"{LEASE_FILE} was deleted"

    def _read(self) -> dict[str, Any] | None:
        """The lease in the folder; an empty one if it makes no sense."""
        content = run_files.read(self._path)
        return None if content is None else _parsed(content)

    def _content(self) -> bytes:
        return json.dumps(self._own).encode() + b"\n"

    def _refusal(self, held: dict[str, Any] | None) -> RunError:
        return RunError(
            f"{self.folder} is in use by {_named(held or {})}: wait for it, stop it, or give another --workdir"
        )


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _named(lease: dict[str, Any]) -> str:
    if not lease:
        return "another process"
    return f"process {lease.get('process')} on {lease.get('host')}, since {lease.get('since')}"


def _clock() -> float:
    """Seconds that also pass while the machine is suspended, in which another one may take the folder."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(" ", "seconds")


def _machine() -> str:
    """Tells apart where numbers of processes mean the same: a machine since it was started, or a container in it."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        parts.append(file.read().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _alive(process: Any) -> bool:
    if not isinstance(process, int) or process <= 0:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
