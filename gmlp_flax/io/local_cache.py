"""Copies of remote files on this machine's disk: read once from a bucket, then from the disk.

The copies of all processes lie in one folder of the cache, `remote/`. If they would come to more than `limit()` bytes, those
that were used longest ago are deleted, but none that a process holds. A file that changes in the bucket is another copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gmlp_flax.errors import DataError
from gmlp_flax.io import cache, files
from gmlp_flax.io.files import File

GIGABYTES = "GMLP_CACHE_GB"  # the environment variable with the limit
USUAL = 50.0
_FOLDER, _PART = "remote", ".part"


def limit() -> int:
    """How many bytes the copies may have; raises DataError if the environment variable is no positive number."""
    given = os.environ.get(GIGABYTES, USUAL)
    try:
        found = int(float(given) * 1e9)
    except (OverflowError, ValueError):
        found = 0
    if found < 1:
        raise DataError(f"{GIGABYTES} is {given!r}: expected a number of gigabytes above 0")
    return found


class Copy:
    """A file on this disk: a local file itself or the copy of a remote one, which stays until `close`.

    Attributes:
        path: where it is.

    Raises:
        DataError: it cannot be read or copied, or it alone has more than `limit()` bytes.
    """

    def __init__(self, file: File):
        self._held, self._file = None, file
        if not files.is_remote(file.path):
            self.path = file.path
            return
        folder = Path(cache.default_folder()) / _FOLDER
        key = cache.cache_key(file.path, file.size, file.version)
        place = folder / f"{key}-{os.path.basename(file.path)}"
        self.path = str(place)
        try:
            while (held := _opened(place)) is None:  # it may be deleted between copying and opening
                _fetch(file, place)
        except OSError as error:
            raise cache.unwritable(place, error) from error
        self._held = held
        with contextlib.suppress(OSError):  # another user's copy, or a cache that is mounted for reading
            os.utime(held)

    def read(self) -> bytes:
        """The content of a copy."""
        assert self._held is not None, "a local file has no copy"
        return os.pread(self._held, self._file.size, 0)

    def close(self) -> None:
        """Lets the copy be deleted."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def __reduce__(self):
        return Copy, (self._file,)

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def of(path: str) -> Copy:
    """A file on this disk, by its path."""
    return Copy(files.find_files(path)[0] if files.is_remote(path) else File(path, os.path.basename(path), 0, ""))


def _opened(place: Path) -> int | None:
    """A descriptor that keeps the file from being deleted; None if there is no such file any more."""
    try:
        held = os.open(place, os.O_RDONLY)
    except FileNotFoundError:
        return None
    fcntl.flock(held, fcntl.LOCK_SH)
    with contextlib.suppress(FileNotFoundError):
        if os.stat(place).st_ino == os.fstat(held).st_ino:
            return held
    os.close(held)
    return None


def _fetch(file: File, place: Path) -> None:
    """Copies a remote file, unless another process does."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(place.name + _PART)
    with open(os.open(part, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as target:
        fcntl.flock(target, fcntl.LOCK_EX)
        if place.exists():
            with _listing(place.parent):
                part.unlink(missing_ok=True)
            return
        _make_room(place.parent, file, target)
        with files.opened(file.path, unpack=False) as source:
            shutil.copyfileobj(source, target, 1 << 20)
        found = target.tell()
        target.flush()
        if found != file.size:
            raise DataError(f"{file.path}: {found} bytes came where {file.size} were expected; run again")
        with _listing(place.parent), contextlib.suppress(FileNotFoundError):
            os.replace(part, place)  # unless whoever had its lock before has renamed it


@contextlib.contextmanager
def _listing(folder: Path) -> Iterator[BinaryIO]:
    """While it lasts, no other process renames, deletes or makes room for a copy. The file it gives holds the bytes of all
    copies, or more, once they were counted."""
    with open(folder / ".lock", "a+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def _make_room(folder: Path, file: File, target: BinaryIO) -> None:
    """Deletes the copies used longest ago, until the file has room, or all that is left is in use; takes that room."""
    most = limit()
    if file.size > most:
        raise DataError(
            f"{file.path} has {file.size:,} bytes and copies may have {most:,} in all: set {GIGABYTES} to more gigabytes, "
            "or make the file's shards smaller"
        )
    with _listing(folder) as counted:
        target.truncate(file.size)
        counted.seek(0)
        before = counted.read()
        total = int(before) + file.size if before.isdigit() else most + 1
        if total > most:
            total = _delete_oldest(folder, most)
        counted.truncate(0)
        counted.write(b"%d" % total)


def _delete_oldest(folder: Path, most: int) -> int:
    """Deletes until the files have `most` bytes at most, and then a tenth of them, so that it is not called for each copy of
    many; returns what is left."""
    found = [(path, path.stat()) for path in folder.iterdir() if not path.name.startswith(".")]
    total = sum(status.st_size for _, status in found)
    if total > most:
        for place, (path, status) in enumerate(sorted(found, key=lambda each: each[1].st_mtime)):
            if total <= most and place >= len(found) // 10:
                break
            with contextlib.suppress(OSError), open(path, "rb") as oldest:
                fcntl.flock(oldest, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                total -= status.st_size
    return total
