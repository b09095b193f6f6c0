"""A file of a bucket that grows: objects cannot be added to, so what is added is written as objects of their own.

PATH holds the first part, and PATH.parts/KEY/N the others in order, where KEY is of the first part's content. So a file
that is begun anew has left its old parts behind in the moment in which PATH is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import time

from gmlp_flax.data.storage import buckets

HOLD = 5.0  # seconds for which lines are gathered before they are written
MOST = 256  # parts; that many are joined to the first one


class Segments:
    """A file that is begun anew with some content, and grows.

    A line is written at once if the last part is older than `HOLD` seconds, else with the lines that follow it or by
    `flush`. `close` leaves a single object.
    """

    def __init__(self, path: str, content: bytes):
        self._path = path
        self._begin(content)

    def _begin(self, content: bytes) -> None:
        if _read(self._path) == content:
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


def read_segmented(path: str) -> bytes | None:
    """The content of such a file, as far as it was flushed; None if there is none."""
    first = _read(path)
    if first is None:
        return None
    return first + buckets.read_joined(_folder(path, first))


def segmented_age(path: str) -> float | None:
    """Seconds since such a file was last written to; None if there is none."""
    first = _read(path)
    if first is None:
        return None
    folder = _folder(path, first)
    newest = [f"{folder}/{name}" for name in buckets.names(folder)[-1:]]
    with contextlib.suppress(FileNotFoundError):
        return buckets.age((newest or [path])[0])
    return None


def _read(path: str) -> bytes | None:
    try:
        return buckets.read(path)
    except FileNotFoundError:
        return None


def _parts(path: str) -> str:
    return f"{path}.parts"


def _folder(path: str, first: bytes) -> str:
    return f"{_parts(path)}/{hashlib.sha256(first).hexdigest()[:16]}"
