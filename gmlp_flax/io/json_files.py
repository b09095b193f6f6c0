"""JSON that others wrote: read strictly, with limits, so that a strange file is an error of one line."""

import json
import os
from typing import Any

from gmlp_flax.errors import DataError
from gmlp_flax.io import files

DEPTH = 32  # of lists and objects in each other
DIGITS = 300  # of a whole number, which then has a float

_DEEP = f"nested more than {DEPTH} deep"


def read(path: str | os.PathLike, kind: type | tuple[type, ...] = object) -> Any:
    """The value in a JSON file; raises DataError if it cannot be read, or as `parse` does."""
    return parse(files.read_small(path), os.fspath(path), kind)


def parse(data: bytes, where: str, kind: type | tuple[type, ...] = object) -> Any:
    """The value that JSON stands for, in UTF-8, also with a byte-order mark.

    Raises DataError, which begins with `where`, if the bytes are not that, or if the value is of another kind (dict,
    list), is nested more than DEPTH deep, or has a whole number of more than DIGITS digits.
    """
    try:
        value = loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON (line {error.lineno}: {error.msg}); copy or make it again") from None
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error}); copy or make it again") from None
    if not isinstance(value, kind):
        expected = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise DataError(f"{where} holds a {type(value).__name__}: expected a {expected}")
    return value


def parse_object(data: bytes) -> dict[str, Any] | None:
    """The object that JSON stands for; None if it is none."""
    try:
        return parse(data, "", dict)
    except DataError:
        return None


def loads(text: str) -> Any:
    """`json.loads` within the limits; every error is a ValueError."""
    try:
        value = json.loads(text, parse_int=_whole)
    except RecursionError:
        raise ValueError(_DEEP) from None
    if _is_deep(value):
        raise ValueError(_DEEP)
    return value


def _whole(text: str) -> int:
    if len(text.removeprefix("-")) > DIGITS:
        raise ValueError(f"a number of {len(text):,} digits")
    return int(text)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH + 1):
        nodes = [node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list)]
        level = [entry for entries in nodes for entry in entries]
    return bool(level)
