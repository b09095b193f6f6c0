"""Standard streams that are closed, full or no longer read: the program says so in a line, or goes on without them."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO


class OutputLost(OSError):
    """Standard output cannot be written to."""


@contextmanager
def guarded() -> Iterator[None]:
    """Makes the streams safe, and ends the program if its standard output is lost: in silence if nobody reads it any
    more, as when `head` has read enough, else with one line."""
    _install()
    try:
        try:
            yield
        finally:
            print(end="", flush=True)  # fails here, not at exit
    except OutputLost as error:
        if error.errno == errno.EPIPE:
            raise SystemExit(128 + signal.SIGPIPE) from None
        reason = f"standard output cannot be written to ({error.strerror})"
        print(f"error: {reason}: free space, or send it elsewhere", file=sys.stderr)
        raise SystemExit(2) from None


def end_at_once(code: int) -> NoReturn:
    """Ends the program without waiting for its threads: those that compute would crash if the interpreter went first."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _install() -> None:
    """Opens the streams that were closed when the program began, and makes writing to the others safe.

    Without the former, the next file that is opened takes the stream's number, and messages go into that file. What
    standard error cannot take is dropped: a run should not end for a lost message.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - open as long as the program
    # Others have their own reasons to replace them.
    if sys.stdout is sys.__stdout__:
        sys.stdout = _writer(1, sys.stdout, OutputLost)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _writer(2, sys.stderr, None)


def _writer(number: int, before: TextIO | None, lost: type[OSError] | None) -> TextIO:
    raw = _Raw(number, lost)
    encoding = before.encoding if before else "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=lost is None or raw.isatty()
    )


class _Raw(io.FileIO):
    """A stream by its number. After the first error, which is raised as `lost` if that is given, it drops everything."""

    def __init__(self, number: int, lost: type[OSError] | None):
        super().__init__(number, "wb", closefd=False)
        self._lost, self._broken = lost, False

    def write(self, data: Any) -> int:
        try:
            return len(data) if self._broken else super().write(data)
        except OSError as error:
            self._broken = True
            if self._lost:
                raise self._lost(error.errno, error.strerror) from None
            return len(data)
