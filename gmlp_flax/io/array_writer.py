"""Writing ArrayRecord files: a file gets its name when it is whole."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from array_record.python.array_record_module import ArrayRecordWriter

from gmlp_flax.io.cache import unwritable


@contextmanager
def new_array_record(path: Path, options: str = "group_size:1") -> Iterator[Callable[[bytes], None]]:
    """Yields a function that writes a record; the file appears at the end of the block, unless an error ends it.

    Args:
        path: of the new file, on this disk.
        options: of ArrayRecordWriter; with one record per group, each can be read alone.

    Raises:
        DataError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    checked = functools.partial(_write_checked, path)
    writer = checked(ArrayRecordWriter, str(temporary), options)
    try:
        yield functools.partial(checked, writer.write)
        checked(writer.close)
        checked(os.replace, temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _write_checked(path: Path, call: Callable, *arguments: object) -> Any:
    """Makes a call that writes to `path`; raises DataError if it fails."""
    try:
        return call(*arguments)
    except (OSError, RuntimeError) as error:
        raise unwritable(path, error) from error
