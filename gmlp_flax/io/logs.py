"""Files that grow by lines, on a disk or in a bucket, and lines on standard error that say what a user waits for.

Objects of a bucket cannot be added to, so what is added is written as objects of their own: PATH holds the first part,
and PATH.parts/KEY/N the others in order. KEY is a hash of the first part's content, so the old parts of a file that is
begun anew do not count from the moment in which PATH is written.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from gmlp_flax.io import files, storage

HOLD = 5.0  # seconds for which lines are gathered before they are written
MOST = 256  # parts; that many are joined to the first one
BEAT = 30.0  # seconds from one line of `heartbeat` to the next


def to_stderr(text: str) -> None:
    """Prints a line on standard error at once."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def heartbeat(what: str, say: Callable[[str], None] = to_stderr) -> Iterator[None]:
    """Says what is being done and, while it goes on, how long it has taken.

    Args:
        what: such as "compiling".
        say: shows a line.
    """
    begin, done = time.monotonic(), threading.Event()

    def remind() -> None:
        while not done.wait(BEAT):
            say(f"{what}: {time.monotonic() - begin:.0f} s so far")

    say(what)
    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def begin(path: str, content: bytes) -> Log:
    """A file to be added to, which has this content now instead of what it had."""
    return BucketLog(path, content) if files.is_remote(path) else Log(path, content)


def read(path: str) -> bytes | None:
    """What is in a file of `begin`, as far as it was flushed; None if there is none."""
    first = files.read(path)
    if first is None or not files.is_remote(path):
        return first
    with storage.remote(_folder(path, first)) as (system, name):
        parts = system.find(name)
        contents = system.cat(parts) if parts else {}  # many at a time
        return first + b"".join(contents[part] for part in sorted(contents))


def age(path: str) -> float | None:
    """Seconds since a file of `begin` was added to; None if there is none."""
    if not files.is_remote(path) or (first := files.read(path)) is None:
        return files.age(path)
    folder = _folder(path, first)
    return files.age(next((f"{folder}/{name}" for name in reversed(files.listdir(folder))), path))


class Log:
    """A file on a disk that grows line by line; each write is in it at once."""

    def __init__(self, path: str, content: bytes):
        files.write(path, content)
        self._path = path
        self._file = storage.retry(lambda: open(path, "ab", buffering=0), f"writing {path}")  # noqa: SIM115

    def write(self, content: bytes) -> None:
        """Adds whole lines; in a bucket they may be held back until `flush`."""

        def attempt() -> None:
            if self._file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        storage.retry(attempt, f"writing {self._path}")

    def flush(self) -> None:
        """Returns when all that was added is in storage, and outlasts the machine."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:  # a second call would return as if all were well
            raise storage.storage_error(f"writing {self._path}", error) from error

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


class BucketLog(Log):
    """A file of a bucket that is begun anew with some content, and grows.

    A line is written at once if the last part is older than `HOLD` seconds, else with the lines that follow it or by
    `flush`. `close` leaves a single object.
    """

    def __init__(self, path: str, content: bytes):
        self._path = path
        self._begin(content)

    def _begin(self, content: bytes) -> None:
        if files.read(self._path) != content:
            files.write(self._path, content)
        files.remove_all(_parts(self._path))
        self._whole, self._folder = content, _folder(self._path, content)
        self._waiting, self._number, self._written = b"", 0, time.monotonic()

    def write(self, content: bytes) -> None:
        self._waiting += content
        if time.monotonic() - self._written > HOLD:
            self.flush()

    def flush(self) -> None:
        if self._waiting and self._number == MOST:
            self.close()
        elif self._waiting:
            files.write(f"{self._folder}/{self._number:06}", self._waiting)
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
