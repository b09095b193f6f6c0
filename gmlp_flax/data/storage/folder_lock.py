"""One process at a time in a folder: a lock that the system releases when its process ends, however it ends."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gmlp_flax.data.storage.cache import unwritable

LOCK = ".lock"


@contextmanager
def locked(folder: str | os.PathLike) -> Iterator[None]:
    """Makes the folder if it is missing, waits until no other process holds it, and holds it until the block ends.

    Raises:
        DataError: the folder cannot be made or written to.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = open(Path(folder) / LOCK, "ab")
    except OSError as error:
        raise unwritable(folder, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that prepares {str(folder)!r}", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
