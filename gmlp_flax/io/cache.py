"""Cached results: files that are built once, copies of remote files on this disk, and values in
memory.

The copies of all processes are in one folder of the cache, `remote/`. If they would exceed
`limit()` bytes, the least recently used ones are deleted, but none that a process holds. A file that
changes in the bucket gets a new copy.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from gmlp_flax.io.files import File
from gmlp_flax.io.locks import file_lock
from gmlp_flax.io.storage import file_errors

GIGABYTES = "GMLP_CACHE_GB"  # the environment variable with the limit
USUAL = 50.0


def default_folder() -> str:
    """The folder that keeps tokenizers and token ids between runs, unless another folder is
    given."""
    usual_parent = os.path.expanduser("~/.cache")
    parent = os.environ.get("XDG_CACHE_HOME") or usual_parent
    return os.path.join(parent, "gmlp_flax")


def cache_key(*parts: object) -> str:
    """A short name for a result that depends on nothing but the parts: 16 hexadecimal digits."""
    description = repr(parts)
    digest = hashlib.sha256(description.encode())
    return digest.hexdigest()[:16]


def cached_file(path: str | os.PathLike, make: Callable[[], bytes]) -> Path:
    """Writes the content that `make()` returns to `path` unless the file is there and intact, and
    returns the path.

    A file is intact if its SHA-256 is the one in `<path>.sha256`. Formats such as .npy do not
    notice a changed byte. Raises FileError if the folder cannot be written to, before `make` is
    called.
    """
    path = Path(path)
    record = Path(f"{path}.sha256")
    content = files.read(str(path))
    if content is not None and _is_intact(content, record):
        return path
    files.write(record, b"")
    content = make()
    files.write(path, content)
    files.write(record, _digest(content))
    return path


def _is_intact(content: bytes, record: Path) -> bool:
    """Whether content has the digest that a file records."""
    recorded = files.read(str(record))
    return _digest(content) == recorded


def _digest(content: bytes) -> bytes:
    digest = hashlib.sha256(content)
    hexadecimal = digest.hexdigest()
    return hexadecimal.encode()


class ResultCache:
    """Calls `make(key)` once for each key and keeps the `size` results last asked for; thread-safe.

    Threads that ask for a result in the making wait for it; other threads do not. If `make` raises,
    the next call, or thread that waits, tries again.
    """

    def __init__(self, make: Callable[[Any], Any], size: int):
        self._make = make
        self._lock = threading.Lock()
        remember = functools.lru_cache(size)
        self._entry_of = remember(lambda key: _Entry())

    def __call__(self, key: Hashable) -> Any:
        with self._lock:  # else two threads might each get their own entry
            entry = self._entry_of(key)
        with entry.lock:
            if not entry.is_made:
                entry.result = self._make(key)
                entry.is_made = True
        return entry.result


class _Entry:
    """A result that is made or not, and the lock of the thread that makes it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_made = False
        self.result: Any = None


def limit() -> int:
    """How many bytes all copies may have together; raises DataError if the environment variable is
    no positive number."""
    gigabytes = os.environ.get(GIGABYTES, USUAL)
    with contextlib.suppress(OverflowError, ValueError):
        most = int(float(gigabytes) * 1e9)
        if most > 0:
            return most
    raise DataError(f"{GIGABYTES} is {gigabytes!r}: expected a number of gigabytes above 0")


class LocalCopy(contextlib.ExitStack):
    """A file on this disk, at `path`: a local file itself or the copy of a remote one, which stays
    until `close`.

    Raises DataError if the file cannot be read or copied, or alone has more than `limit()` bytes.
    """

    def __init__(self, file: File | str):
        super().__init__()
        if isinstance(file, str):
            file = _file_at(file)
        self._file = file
        self.path = file.path
        if not files.is_remote(file.path):
            return
        key = cache_key(file.path, file.size, file.version)
        base = os.path.basename(file.path)
        name = f"{key}-{base}"
        path = Path(default_folder(), "remote", name)
        self.path = str(path)
        with file_errors(f"copying {file.path} to {path}"):
            held = self._hold(path)
        # another user's copy, or a cache that is mounted for reading
        with contextlib.suppress(OSError):
            os.utime(held)

    def _hold(self, path: Path) -> int:
        """Keeps the copy at a path until `close`, and copies the file if it is missing; returns the
        descriptor."""
        while True:
            try:
                lock = file_lock(path, mode=fcntl.LOCK_SH)
                return self.enter_context(lock)
            except FileNotFoundError:  # also if it is deleted between copying and opening
                _fetch(self._file, path)

    def __reduce__(self):
        return LocalCopy, (self._file,)

    def __del__(self) -> None:
        self.close()


def _file_at(path: str) -> File:
    """The file at a path; without size and version for a local one, which is not copied."""
    if files.is_remote(path):
        first, *_ = files.find_files(path)
        return first
    name = os.path.basename(path)
    return File(path, name, size=0, version="")


def _fetch(file: File, path: Path) -> None:
    """Copies a remote file, unless another process does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with (
        file_lock(part, os.O_RDWR | os.O_CREAT) as descriptor,
        open(descriptor, "r+b", closefd=False) as target,
    ):
        if path.exists():
            part.unlink()
            return
        _make_room(path.parent, file, target)
        with files.open_file(file.path, decompress=False) as source:
            shutil.copyfileobj(source, target, 1 << 20)
        copied = target.tell()
        if copied != file.size:
            raise DataError(
                f"{file.path}: {copied} bytes came where {file.size} were expected; run again"
            )
        target.flush()
        os.replace(part, path)


def _make_room(folder: Path, file: File, target: BinaryIO) -> None:
    """Extends `target`, the copy of the file, to its size, and deletes the least recently used
    copies until all are within the limit, or all that are left are in use."""
    most = limit()
    if file.size > most:
        raise DataError(
            f"{file.path} has {file.size:,} bytes and copies may have {most:,} in all: raise "
            f"{GIGABYTES}"
        )
    with file_lock(folder / ".lock", os.O_RDWR | os.O_CREAT):
        target.truncate(file.size)
        # Listing the folder takes long: among many small copies, only about one in each hundredth
        # of the limit does it.
        position = int(cache_key(file.path), 16) % most
        if position < 100 * file.size:
            _delete_least_recently_used(folder, most)


class _Copy(NamedTuple):
    """A copy in the cache.

    Attributes:
        path: the file.
        size: its bytes.
        used: when it was last used, in seconds.
    """

    path: Path
    size: int
    used: float


def _delete_least_recently_used(folder: Path, most: int) -> None:
    """Deletes copies that no process holds until the folder has `most` bytes."""
    copies = []
    total = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # a part that is renamed just now
            status = path.stat()
            copy = _Copy(path, status.st_size, status.st_mtime)
            copies.append(copy)
            total += copy.size
    copies.sort(key=lambda copy: copy.used)
    for copy in copies:
        if total <= most:
            return
        lock = file_lock(copy.path, mode=fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(OSError), lock:
            copy.path.unlink()
            total -= copy.size
