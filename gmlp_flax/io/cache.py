"""Files that are built once: written atomically, checked when they are read, rebuilt if they are damaged."""

import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from gmlp_flax.errors import DataError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def default_folder() -> str:
    """The folder that keeps tokenizers and token ids between runs, unless another folder is given."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gmlp_flax")


def cache_key(*parts: object) -> str:
    """A short name for a result that depends on nothing but the parts: 16 hexadecimal digits."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def write_atomically(path: str | os.PathLike, write: Callable[[BinaryIO], object]) -> None:
    """Calls `write(file)` on a new file beside `path`, then renames that file: readers see the whole file or none. If it
    fails, no empty folder is left.

    Raises:
        DataError: the folder cannot be made or written to, or a device or a pipe has that name, which would be replaced.
    """
    path = Path(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise unwritable(path, OSError(0, "a folder, a device or a pipe"))
    # Only the owner may read the files of `tempfile`, but caches are shared.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    absent = [folder for folder in path.parents if not os.path.exists(folder)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                write(file)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except BaseException as error:
        for folder in absent:
            with contextlib.suppress(OSError):  # it is not empty, or was not made
                folder.rmdir()
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        raise


def unwritable(path: str | os.PathLike, error: Exception) -> DataError:
    """What to tell a user if writing a file or a folder has failed."""
    # The errors of libraries quote source code after a semicolon.
    reason = getattr(error, "strerror", None) or str(error).partition(";")[0]
    full = getattr(error, "errno", None) in _FULL or "No space left" in reason
    advice = "free space and run again" if full else "give a folder that can be written to"
    return DataError(f"cannot write {str(path)!r} ({reason}); {advice}")


def cached_file(path: str | os.PathLike, write: Callable[[BinaryIO], object]) -> Path:
    """Builds `path` with `write(file)` unless the file is there and intact, and returns it.

    A file is intact if its SHA-256 is the one in `<path>.sha256`. Formats such as .npy do not notice a changed byte.

    Raises:
        DataError: the folder cannot be made or written to.
    """
    path = Path(path)
    record = path.with_name(path.name + ".sha256")
    if _checksum(path) != _recorded(record):
        write_atomically(path, write)
        checksum = _checksum(path)
        write_atomically(record, lambda file: file.write(checksum.encode()))
    return path


def _checksum(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "absent"


def _recorded(record: Path) -> str:
    try:
        return record.read_bytes().decode(errors="replace")
    except OSError:
        return "no record"
