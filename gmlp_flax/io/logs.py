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
# Seconds without a line after which `heartbeat` prints one, at a terminal and in a pipe alike, so that
# a user sees a line every five seconds, also on a busy machine.
BEAT = 4.0


class _Waiting:
    """What this process prints on standard error while it works.

    Attributes:
        last_line: when it printed the last line, as `time.monotonic` counts.
        begun: the events that end the heartbeats that have begun, the innermost last.
    """

    def __init__(self):
        self.last_line = time.monotonic()
        self.begun: list[threading.Event] = []

    def begin(self, done: threading.Event) -> None:
        """Begins the heartbeat that an event ends. Time in which nothing had to be said, as before a
        forked process or between two calls in a notebook, does not count."""
        now = time.monotonic()
        silence = now - self.last_line
        if not self.begun and silence >= BEAT:
            self.last_line = now
        self.begun.append(done)

    def pause(self) -> float:
        """Seconds until a line is due, or until it is worth asking again."""
        silence = time.monotonic() - self.last_line
        return max(BEAT - silence, BEAT / 8)

    def is_due(self, done: threading.Event) -> bool:
        """Whether the heartbeat that an event ends has to print a line."""
        silence = time.monotonic() - self.last_line
        is_innermost = self.begun[-1:] == [done]
        return is_innermost and silence >= BEAT


# Standard error belongs to the process, and so does the time of its last line.
_WAITING = _Waiting()


def to_stderr(text: str) -> None:
    """Prints a line on standard error at once."""
    _WAITING.last_line = time.monotonic()
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def heartbeat(
    what: str, say: Callable[[str], None] = to_stderr, at_once: bool = True
) -> Iterator[None]:
    """Says what is being done, such as "compiling", at once or only if nothing was printed for BEAT
    seconds, and how long it has taken so far. Of nested ones, only the innermost speaks."""
    began = time.monotonic()
    done = threading.Event()

    def say_line(text: str) -> None:
        _WAITING.last_line = time.monotonic()
        say(text)

    def remind() -> None:
        while not done.wait(_WAITING.pause()):
            if _WAITING.is_due(done):
                seconds = time.monotonic() - began
                say_line(f"{what}: {seconds:.0f} s so far")

    if at_once:
        say_line(what)
    _WAITING.begin(done)
    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        _WAITING.begun.remove(done)
        thread.join()


def begin(path: str, content: bytes) -> Log:
    """A file that lines are added to; it has this content now, whatever it had before."""
    if files.is_remote(path):
        return BucketLog(path, content)
    return Log(path, content)


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
                words = os.strerror(errno.ENOSPC)
                raise OSError(errno.ENOSPC, words)

        storage.retry(attempt, f"writing {self._path}")

    def flush(self) -> None:
        """Returns when all that was added is in storage, and outlasts the machine."""
        # a second call would return as if all were well
        with storage.file_errors(f"writing {self._path}"):
            descriptor = self._file.fileno()
            os.fsync(descriptor)

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
        held = time.monotonic() - self._written
        if held > HOLD:
            self.flush()

    def flush(self) -> None:
        if self._changed:
            files.write(self._path, self._content)
            self._changed = False
            self._written = time.monotonic()

    def close(self) -> None:
        self.flush()
