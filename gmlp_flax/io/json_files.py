"""JSON from other programs, read strictly and with limits: a malformed file is a one-line error."""

import json
import os
from typing import Any

from gmlp_flax.errors import DataError
from gmlp_flax.io import files

DIGITS = 300  # of a whole number, which then has a float


def read(path: str | os.PathLike, kind: type = object) -> Any:
    """The value in a JSON file; raises DataError if it cannot be read, or as `parse` does."""
    content = files.read_small(path)
    name = os.fspath(path)
    return parse(content, name, kind)


def write(path: str | os.PathLike, value: Any) -> None:
    """Writes a JSON file completely or not at all; raises FileError if it cannot be written."""
    text = json.dumps(value, indent=2)
    line = f"{text}\n"
    files.write(path, line.encode())


def parse(data: bytes, where: str, kind: type = object) -> Any:
    """The value of a JSON text in UTF-8, with or without a byte-order mark.

    Raises DataError, which begins with `where`, if the bytes are not that, or if the value is of
    another kind (dict, list), is nested too deep for Python's reader, or has a whole number of more
    than DIGITS digits.
    """
    try:
        text = data.decode("utf-8-sig")
        value = loads(text)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error}); copy or make it again") from None
    if not isinstance(value, kind):
        raise DataError(f"{where} holds a {type(value).__name__}: expected a {kind.__name__}")
    return value


def parse_object(data: bytes | None) -> dict[str, Any]:
    """The object in a JSON text; an empty one if it holds something else, or if there is no data."""
    content = data or b""
    try:
        return parse(content, "", dict)
    except DataError:
        return {}


def loads(text: str) -> Any:
    """`json.loads` within the limits; every error is a ValueError."""
    try:
        return json.loads(text, parse_int=_whole)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _whole(text: str) -> int:
    digits = text.removeprefix("-")
    if len(digits) > DIGITS:
        raise ValueError(f"a number of {len(text):,} digits")
    return int(text)
