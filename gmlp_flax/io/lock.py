"""One process at a time in a folder: a lock that the system releases when its process ends, however it ends."""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gmlp_flax.errors import DataError
from gmlp_flax.io.cache import unwritable

LOCK = ".lock"


@contextmanager
def locked(folder: str | os.PathLike) -> Iterator[None]:
    """Makes the folder if it is missing, waits until no other process holds it, and holds it until the block ends. If the
    block raises an error and leaves nothing in folders that were made, they are deleted.

    Raises:
        DataError: the folder cannot be made or written to.
    """
    made, told = missing(folder), False
    while True:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            file = open(Path(folder) / LOCK, "ab")
        except OSError as error:
            raise unwritable(folder, error) from error
        with file:
            try:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if not told:
                        print(f"waiting for another process that prepares {str(folder)!r}", file=sys.stderr, flush=True)
                        told = True
                    fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:  # some network file systems have no locks
                raise unwritable(folder, error) from error
            if not _is_there(file, Path(folder) / LOCK):
                continue  # whoever had the lock has deleted the folder
            try:
                yield
                return
            except BaseException:
                remove_unused(made)
                raise


def _is_there(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is the one that a path names."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return False


def missing(folder: str | os.PathLike) -> list[Path]:
    """A folder and those above it that do not exist, the deepest first.

    Raises:
        DataError: a folder above cannot be looked into, or none can have this name.
    """
    path = Path(folder)
    try:
        str(path).encode()  # array_record, sentencepiece and TensorStore take no other names
        return [each for each in (path, *path.parents) if not each.exists()]
    except UnicodeEncodeError:
        raise DataError(f"cannot write {str(path)!r} (its name is not UTF-8); give another folder") from None
    except OSError as error:
        raise unwritable(folder, error) from error


def remove_unused(folders: list[Path]) -> None:
    """Deletes folders in which there is nothing but a lock, the first one first."""
    for folder in folders:
        with contextlib.suppress(OSError):
            if [path.name for path in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()
            folder.rmdir()
