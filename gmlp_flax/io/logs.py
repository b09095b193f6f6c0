"""Files that grow line by line, on a disk or in a bucket, and lines on standard error that say what
a user is waiting for."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import FileIO

from gmlp_flax.io import files, storage

HOLD = 5.0  # seconds for which lines are gathered before they are written to a bucket
# Seconds from one line of `heartbeat` to the next.
BEAT = 30.0  # in a log
SHORT_BEAT = 5.0  # at a terminal


def to_stderr(text: str) -> None:
    """Prints a line on standard error at once."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def heartbeat(
    what: str, say: Callable[[str], None] = to_stderr, at_once: bool = True
) -> Iterator[None]:
    """Says what is being done, such as "compiling", at once or only if it lasts, and how long it
    has taken so far."""
    began = time.monotonic()
    done = threading.Event()
    pause = min(BEAT, SHORT_BEAT) if sys.stderr.isatty() else BEAT

    def remind() -> None:
        while not done.wait(pause):
            seconds = time.monotonic() - began
            say(f"{what}: {seconds:.0f} s so far")

    if at_once:
        say(what)
    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def begin(path: str, content: bytes) -> Log:
    """A file that lines are added to; it has this content now, whatever it had before."""
    return BucketLog(path, content) if files.is_remote(path) else Log(path, content)


class Log:
    """A file on a disk that grows line by line; each write is in it at once."""

    def __init__(self, path: str, content: bytes):
        files.write(path, content)
        self._path = path

        def open_unbuffered() -> FileIO:
            return open(path, "ab", buffering=0)

        self._file = storage.retry(open_unbuffered, f"writing {path}")

    def write(self, content: bytes) -> None:
        """Adds whole lines; in a bucket they may be held back until `flush`."""

        def attempt() -> None:
            written = self._file.write(content)
            if written != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        storage.retry(attempt, f"writing {self._path}")

    def flush(self) -> None:
        """Returns when all that was added is in storage, and outlasts the machine."""
        # a second call would return as if all were well
        with storage.file_errors(f"writing {self._path}"):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


class BucketLog(Log):
    """A file of a bucket, whose objects cannot be added to: it is written as a whole, `HOLD`
    seconds after the last time at the earliest, or by `flush`."""

    def __init__(self, path: str, content: bytes):
        self._path = path
        self._content = content
        self._changed = True
        self.flush()

    def write(self, content: bytes) -> None:
        self._content += content
        self._changed = True
        if time.monotonic() - self._written > HOLD:
            self.flush()

    def flush(self) -> None:
        if self._changed:
            files.write(self._path, self._content)
            self._changed = False
            self._written = time.monotonic()

    def close(self) -> None:
        self.flush()
