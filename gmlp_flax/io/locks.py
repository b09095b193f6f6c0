"""One process at a time: file locks, which the system releases when their process ends, and the
lease of a run folder.

On one machine the lock decides. In a bucket, which has no locks, and between machines that share
storage, the file lease.json decides: its owner rewrites it every `BEAT` seconds. An owner that has
not done so for `STALE` seconds, by the clock of the process that waits, counts as dead, and the
process that waits takes over the lease.
"""

import contextlib
import datetime
import fcntl
import json
import os
import secrets
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gmlp_flax.errors import RunError, StorageError
from gmlp_flax.io import files, json_files, storage
from gmlp_flax.io.logs import heartbeat
from gmlp_flax.io.storage import file_errors

LOCK_FILE = ".lock"
LEASE_FILE = "lease.json"
BEAT = 10.0  # seconds
STALE = 40.0  # seconds
ENDING = 3.0  # seconds that a process which was just killed may need to end


@contextmanager
def file_lock(
    path: str | os.PathLike, flags: int = os.O_RDONLY, mode: int = fcntl.LOCK_EX
) -> Iterator[int]:
    """Locks a file or a folder until the end of the block; yields its descriptor.

    Args:
        path: of the file. If another process deletes or renames it meanwhile, the file that then
            has the name is locked.
        flags: of os.open; with O_CREAT, a missing file is made.
        mode: of fcntl.flock; LOCK_SH is for readers. With LOCK_NB, a lock that another process
            holds raises BlockingIOError.
    """
    with contextlib.ExitStack() as closing:
        while True:
            descriptor = os.open(path, flags, 0o666)
            closing.callback(os.close, descriptor)
            fcntl.flock(descriptor, mode)
            with contextlib.suppress(FileNotFoundError):
                locked = os.fstat(descriptor)
                current = os.stat(path)
                if os.path.samestat(locked, current):
                    break
            closing.close()
        yield descriptor


@contextmanager
def folder_lock(folder: str | os.PathLike) -> Iterator[None]:
    """Makes the folder if it is missing, waits until no other process holds it, and holds it until
    the block ends. Raises FileError if the folder cannot be made or written to."""
    path = os.path.join(folder, LOCK_FILE)
    flags = os.O_RDWR | os.O_CREAT
    with contextlib.ExitStack() as closing:
        with file_errors(f"locking {folder}"):  # some network file systems have no locks
            os.makedirs(folder, exist_ok=True)
            try:
                free_lock = file_lock(path, flags, fcntl.LOCK_EX | fcntl.LOCK_NB)
                closing.enter_context(free_lock)
            except BlockingIOError:
                with heartbeat(f"waiting for another process that prepares {str(folder)!r}"):
                    lock = file_lock(path, flags)
                    closing.enter_context(lock)
        yield


class Lease:
    """The right to write to the folder of a run.

    Attributes:
        folder: it exists.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self._path = files.join(folder, LEASE_FILE)
        now = datetime.datetime.now(datetime.UTC)
        self._lease: dict[str, Any] = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "since": now.isoformat(" ", "seconds"),
            "token": secrets.token_hex(8),
            "beats": 0,
        }
        self._lost = ""  # why the lease is lost
        self._renewed = _clock()
        self._written = b""
        self._mutex = threading.Lock()
        self._closed = threading.Event()
        self._lock = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def take(self) -> None:
        """Takes the lease, and keeps it until `close`; raises RunError, with its owner, if another
        process has it."""
        is_locked = self._lock_folder()
        current = files.read(self._path)
        if current is not None and not self._is_owner_gone(current, is_locked):
            current = self._watch(current)
        self._written = self._content()
        if not compare_and_swap(self._path, current, self._written):
            winner = files.read(self._path)
            raise self._refusal(winner)
        self._renewed = _clock()
        self._thread.start()

    def _is_owner_gone(self, content: bytes, is_locked: bool) -> bool:
        """Whether the process that wrote a lease is known to have ended. It has if it ran on this
        machine and no longer holds the lock or, without locks, if no process has its number."""
        owner = json_files.parse_object(content)
        this_host = self._lease["host"]
        host = owner.get("host", this_host)  # a full disk may have left an empty file
        if host != this_host:
            return False
        process = owner.get("process")
        return is_locked or not _is_alive(process)

    def check(self) -> None:
        """Raises RunError if the lease is lost; call it before each write to the folder. It reads
        no file, unless the last beat is late."""
        since_renewed = _clock() - self._renewed
        if since_renewed > STALE / 2:
            self._renew()
        if self._lost:
            raise RunError(
                f"{self.folder} no longer belongs to this run: {self._lost}; this run ends and "
                "writes nothing more"
            )
        silent = _clock() - self._renewed
        if silent > STALE:
            raise StorageError(
                f"{self._path} could not be written for {silent:.0f} s: another run may take the "
                "folder"
            )

    def close(self) -> None:
        """Gives the lease back."""
        self._closed.set()
        if self._thread.ident is not None:  # it was started
            self._thread.join()
            with contextlib.suppress(RunError):  # the next process finds that the owner has ended
                current = files.read(self._path)
                if self._has_written(current):
                    files.remove(self._path)
        self._lock.close()

    def _has_written(self, content: bytes | None) -> bool:
        """Whether this process has written a lease of this content."""
        lease = json_files.parse_object(content)
        return lease.get("token") == self._lease["token"]

    def _lock_folder(self) -> bool:
        """Locks a folder on a disk for this process; False if there are no such locks, as in
        buckets. Raises RunError if another process of this machine has it."""
        deadline = _clock() + ENDING
        while not files.is_remote(self.folder):
            try:
                lock = file_lock(self.folder, mode=fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock.enter_context(lock)
                return True
            except BlockingIOError:
                if _clock() > deadline:
                    owner = files.read(self._path)
                    raise self._refusal(owner) from None
                time.sleep(0.1)
            except OSError:  # some network file systems have none
                break
        return False

    def _watch(self, content: bytes) -> bytes | None:
        """Waits for a sign of life from the owner of a lease, whose content is given.

        Returns:
            The content, or None if the lease was given back meanwhile.

        Raises:
            RunError: the owner is alive.
        """
        deadline = _clock() + STALE
        owner = _name(content)
        what = f"{self.folder} has the lease of {owner}"
        with heartbeat(f"{what}: waiting {STALE:.0f} s for a sign of life"):
            while _clock() < deadline:
                time.sleep(BEAT / 10)
                now = files.read(self._path)
                if now is None:
                    return None
                if now != content:
                    raise self._refusal(now)
        return content

    def _beat(self) -> None:
        while not self._closed.wait(BEAT):
            self._renew()

    def _renew(self) -> None:
        with self._mutex, contextlib.suppress(RunError):  # `check` raises if that lasts
            if self._lost:
                return
            self._lease["beats"] += 1
            current: bytes | None = self._content()
            if not compare_and_swap(self._path, self._written, current):
                current = files.read(self._path)
            if not current:
                self._lost = f"{LEASE_FILE} was deleted"
            elif self._has_written(current):
                # perhaps by a beat that seemed to fail
                self._written = current
                self._renewed = _clock()
            else:
                self._lost = f"{_name(current)} has taken it"

    def _content(self) -> bytes:
        text = json.dumps(self._lease)
        return text.encode() + b"\n"

    def _refusal(self, content: bytes | None) -> RunError:
        owner = _name(content)
        return RunError(
            f"{self.folder} is in use by {owner}: wait for it, stop it, or give another --workdir"
        )


def compare_and_swap(path: str, old: bytes | None, new: bytes) -> bool:
    """Writes a file if its content is `old`, or if there is none and `old` is None. Returns whether
    it did.

    On gs:// the store refuses if another process writes in between. On a disk another process may
    do so: there the lock decides.
    """
    if files.is_remote(path):
        return _compare_and_swap_remote(path, old, new)
    if files.read(path) != old:
        return False
    files.write(path, new)
    return True


def _compare_and_swap_remote(path: str, old: bytes | None, new: bytes) -> bool:
    def swap(system: Any, name: str) -> bool:
        """Writes the new content if the file has not changed since it was read."""
        try:
            # Before the content, so that a change after it is noticed; 0 stands for no file.
            generation = 0 if old is None else system.info(name)["generation"]
            if old is not None and system.cat_file(name) != old:
                return False
            bucket, key, _ = system.split_path(name)
            quoted = urllib.parse.quote(bucket, safe="")
            system.call(
                "POST",
                f"{system._location}/upload/storage/v1/b/{quoted}/o",
                uploadType="media",
                name=key,
                ifGenerationMatch=generation,
                data=new,
                headers={"Content-Type": "application/octet-stream"},
            )
            return True
        except FileNotFoundError:
            if old is None:
                raise
            return False
        except FileExistsError:
            # If the answer to a first attempt was lost, the second finds what the first wrote.
            return system.cat_file(name) == new

    return storage.call(path, swap, "writing")


def _name(content: bytes | None) -> str:
    lease = json_files.parse_object(content)
    if not lease:
        return "another process"
    process = lease.get("process")
    host = lease.get("host")
    since = lease.get("since")
    return f"process {process} on {host}, since {since}"


def _clock() -> float:
    """Seconds that also pass while the machine is suspended, in which another one may take the
    folder."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _is_alive(process: Any) -> bool:
    """Whether there is a process of this number on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, TypeError, OverflowError):
        pass
    return True
