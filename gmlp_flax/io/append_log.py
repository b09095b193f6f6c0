"""Files that grow by lines, on a disk or in a bucket.

Objects of a bucket cannot be added to, so what is added is written as objects of their own: PATH holds the first part, and
PATH.parts/KEY/N the others in order, where KEY is of the first part's content. So a file that is begun anew has left its old
parts behind in the moment in which PATH is written.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from typing import Protocol

from gmlp_flax.io import buckets, run_files

HOLD = 5.0  # seconds for which lines are gathered before they are written
MOST = 256  # parts; that many are joined to the first one


class Log(Protocol):
    """A file that grows line by line."""

    def write(self, content: bytes) -> None:
        """Adds whole lines; on a bucket they may be held back until `flush`."""

    def flush(self) -> None:
        """Returns when all that was added is in storage."""

    def close(self) -> None:
        """Flushes, and ends the file."""


def begin(path: str, content: bytes) -> Log:
    """A file to be added to, which has this content now instead of what it had."""
    if run_files.is_remote(path):
        return Segments(path, content)
    run_files.write(path, content)
    return _LocalLog(path)


def read(path: str) -> bytes | None:
    """What is in a file of `begin`, as far as it was flushed; None if there is none."""
    first = run_files.read(path)
    return (
        first if first is None or not run_files.is_remote(path) else first + buckets.read_joined(_folder(path, first))
    )


def age(path: str) -> float | None:
    """Seconds since a file of `begin` was added to; None if there is none."""
    if not run_files.is_remote(path) or (first := run_files.read(path)) is None:
        return run_files.age(path)
    folder = _folder(path, first)
    newest = [f"{folder}/{name}" for name in buckets.names(folder)[-1:]]
    return run_files.age((newest or [path])[0])


class _LocalLog:
    """A file on a disk; each write is in it at once, and after `flush` outlasts the machine."""

    def __init__(self, path: str):
        self._file = run_files.patiently(lambda: open(path, "ab", buffering=0), f"writing {path}")

    def write(self, content: bytes) -> None:
        def attempt() -> None:
            if self._file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        run_files.patiently(attempt, f"writing {self._file.name}")

    def flush(self) -> None:
        """Also into a mounted bucket, which is sure to have a file only once it is closed."""
        path = self._file.name
        try:
            os.fsync(self._file.fileno())
        except OSError as error:  # a second call would return as if all were well
            raise run_files.failure(f"writing {path}", error) from error
        self._file.close()
        self._file = run_files.patiently(lambda: open(path, "ab", buffering=0), f"writing {path}")

    def close(self) -> None:
        self._file.close()


class Segments:
    """A file of a bucket that is begun anew with some content, and grows.

    A line is written at once if the last part is older than `HOLD` seconds, else with the lines that follow it or by
    `flush`. `close` leaves a single object.
    """

    def __init__(self, path: str, content: bytes):
        self._path = path
        self._begin(content)

    def _begin(self, content: bytes) -> None:
        if run_files.read(self._path) == content:
            buckets.remove_all(_parts(self._path))  # their key would be that of the new ones
        else:
            buckets.write(self._path, content)
            buckets.remove_all(_parts(self._path))
        self._whole, self._folder = content, _folder(self._path, content)
        self._waiting, self._number, self._written = b"", 0, time.monotonic()

    def write(self, content: bytes) -> None:
        """Adds whole lines."""
        self._waiting += content
        if time.monotonic() - self._written > HOLD:
            self.flush()

    def flush(self) -> None:
        """Returns when all lines are in the bucket."""
        if not self._waiting:
            return
        if self._number == MOST:
            self._begin(self._whole + self._waiting)
            return
        buckets.write(f"{self._folder}/{self._number:06}", self._waiting)
        self._whole, self._waiting = self._whole + self._waiting, b""
        self._number, self._written = self._number + 1, time.monotonic()

    def close(self) -> None:
        """Joins the parts."""
        if self._number or self._waiting:
            self._begin(self._whole + self._waiting)


def _parts(path: str) -> str:
    return f"{path}.parts"


def _folder(path: str, first: bytes) -> str:
    return f"{_parts(path)}/{hashlib.sha256(first).hexdigest()[:16]}"
