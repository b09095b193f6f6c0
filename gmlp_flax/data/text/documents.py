"""Documents of one file: a reader for each format of a corpus.

A reader takes (path, start, stop) and yields a document (str) for each record, in order, or a BadRecord if the record
does not parse. The unit of [start, stop) depends on the format, and so does the cost of a range in the middle:

    text           no unit: the file is one document
    json_lines     bytes: the lines that begin among them; random access unless the file is packed (.gz)
    parquet        row groups; random access
    arrow          no unit: all rows
    tfds_parquet   row groups; random access
    tfrecord       records; earlier records are skipped by their lengths
    array_record   records; random access
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

from gmlp_flax.data import splits
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, json_files, records, tfds_folders
from gmlp_flax.io.records import BadRecord, NotUTF8

TEXT = "text"  # the field, column or feature that holds the document

LONGEST = files.MOST  # bytes of a document, or of a line

# The first bytes of files that are no plain text, and what these are.
_MARKS = {b"PK\3\4": "zip", b"\x1f\x8b": "gzip", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd"}
_MARKS |= {b"PAR1": "parquet", b"ARROW1": "Arrow", b"\xff\xff\xff\xff": "Arrow", b"%PDF": "PDF", b"7z\xbc\xaf": "7z"}

_JSON = re.compile(rb'(\xef\xbb\xbf)?\s*(\[\s*)?\{\s*"[^"\n]*"\s*:|\{\\rtf')  # of an object or several

Reader = Callable[[str, int, int | None], Iterator[str | BadRecord]]


def numbered_lines(path: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The lines that begin in the bytes [start, stop) of a file, with their line feeds, the first of them number 1.

    Raises:
        DataError: a line has more than LONGEST bytes.
    """
    with files.open_file(path) as stream:
        position = stream.seek(start - 1) + len(stream.readline()) if start else 0
        for number, line in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), start=1):
            if len(line) > LONGEST:
                raise DataError(f"{path}, {_line_name(number, start)} has more than {LONGEST >> 20:,} MiB")
            if stop is not None and position >= stop:
                return
            position += len(line)
            yield number, line


def json_object(line: bytes) -> dict[str, Any]:
    """The object in a line of JSON; raises BadRecord if there is none."""
    records.refuse_utf16(line)
    try:
        value = json_files.loads(records.decode_utf8(line))
    except ValueError as error:
        raise BadRecord(f"not JSON ({getattr(error, 'msg', error)}); expected one object per line") from error
    return as_object(value)


def as_object(value: Any) -> dict[str, Any]:
    """The value, if it is an object of JSON; else raises BadRecord."""
    if not isinstance(value, dict):
        raise BadRecord(f"found {type(value).__name__}; expected an object")
    return value


def json_rows(path: str) -> list[Any] | None:
    """The rows of a file that is one JSON value, as pandas and the package datasets write a table; None if it holds
    JSON lines or another value.

    It is a row; a list of rows or texts, also under one key of an object, or under names of splits, the rows' `split`;
    {"columns": names, "data": lists}; {column: {number of a row: value}}; or {column: values}.

    Raises:
        DataError: the file begins as a list and is not JSON.
    """
    value = _whole_json(path)
    if isinstance(value, list):
        return [{TEXT: row} if isinstance(row, str) else row for row in value]
    if value is None or isinstance(value.get(TEXT), str):
        return value and [value]
    columns, data = value.get("columns"), value.get("data")
    if isinstance(columns, list) and isinstance(data, list) and all(isinstance(row, list) for row in data):
        same = len({*map(str, columns)})
        return [dict(zip(map(str, columns), row, strict=True)) if len(row) == same else row for row in data]
    lists = {
        name: rows for name, rows in value.items() if isinstance(rows, list) and rows and isinstance(rows[0], dict)
    }
    if len(lists) == 1:
        return next(iter(lists.values()))
    if lists:
        named = all(splits.split_words(name) for name in lists)
        return [{"split": splits.split_of(name), **row} for name in lists for row in lists[name]] if named else None
    kinds = {type(column) for column in value.values()}
    if kinds == {list} and len({*map(len, value.values())}) == 1:
        return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
    numbers = {number for column in value.values() for number in column} if kinds == {dict} else set()
    if numbers and all(map(str.isdecimal, numbers)):
        return [{name: value[name].get(row) for name in value} for row in sorted(numbers, key=int)]
    return None


def _whole_json(path: str) -> Any:
    """The value of a file that is one list or object of JSON; None if it is JSON lines, or nothing of these."""
    first = [*itertools.islice((line for _, line in numbered_lines(path) if line.strip()), 2)]
    begin = first[0].removeprefix(b"\xef\xbb\xbf").lstrip()[:1] if first else b""
    with contextlib.suppress(ValueError):
        if not begin or begin not in b"[{":
            return None
        line = json_files.loads(first[0].decode("utf-8-sig"))
        if len(first) > 1 or (isinstance(line, dict) and isinstance(line.get(TEXT), str)):
            return None
    with contextlib.nullcontext() if begin == b"[" else contextlib.suppress(DataError):
        return json_files.parse(files.read_small(path, LONGEST, decompress=True), path)


def _line_name(number: int, start: int) -> str:
    return f"line {number}" + (f" after byte {start:,}" if start else "")


def _read_text(path: str, start: int, stop: int | None) -> Iterator[str]:
    data = files.read_small(path, LONGEST, decompress=True)
    if _JSON.match(data):
        raise DataError(f"{path}: no text but JSON or RTF: write JSON lines to a .jsonl file, or plain text")
    try:
        records.refuse_utf16(data[:1024])
        yield records.decode_utf8(data)
    except NotUTF8 as error:
        kind = next((kind for mark, kind in _MARKS.items() if data.startswith(mark)), "")
        if kind := "tar" if data.startswith(b"ustar", 257) else kind:
            raise DataError(f"{path}: no text but {kind}: unpack it, give it its suffix, or write JSON lines") from None
        line = 1 + data.count(b"\n", 0, error.offset)
        raise DataError(f"{path}, line {line}: {error}") from error


def _read_json_lines(path: str, start: int, stop: int | None) -> Iterator[str | BadRecord]:
    lines = ((number, line) for number, line in numbered_lines(path, start, stop) if not line.isspace())
    rows = json_rows(path)  # which belong to the first range
    columns: dict[str, set[str]] = {}

    def text(line: Any) -> str:
        record = json_object(line) if rows is None else as_object(line)
        splits.add_values(columns, {name: record[name] for name in record if splits.may_name_splits(name)})
        if not isinstance(record.get(TEXT), str):
            fields = ", ".join(map(repr, record))
            raise BadRecord(f"found fields {fields}; expected an object with a string field {TEXT!r}")
        return record[TEXT]

    if rows is None:
        yield from _parse(lines, lambda number: _line_name(number, start), text)
    elif start == 0:
        yield from _parse(enumerate(rows), "row {}".format, text)
    splits.check_columns(columns, path)


def _parse(
    values: Iterator[tuple[int, Any]], name: Callable[[int], str], parse: Callable[[Any], str]
) -> Iterator[str | BadRecord]:
    """The documents in numbered values; the message of a BadRecord among these has its number already."""
    for number, value in values:
        try:
            yield value if isinstance(value, BadRecord) else parse(value)
        except BadRecord as error:
            yield BadRecord(f"{name(number)}: {error}")


def _read_parquet(path: str, start: int, stop: int | None) -> Iterator[str | BadRecord]:
    columns: dict[str, set[str]] = {}
    wanted = [*filter(splits.may_name_splits, records.parquet_columns(path))]
    for _, row in records.parquet_rows(path, wanted) if wanted and start == 0 else ():
        splits.add_values(columns, row)
    splits.check_columns(columns, path)
    return _parse(records.parquet_records(path, TEXT, start, stop), "row {}".format, _cell_text)


def _cell_text(value: bytes | None) -> str:
    if value is None:
        raise BadRecord("null; expected a string")
    return records.decode_utf8(value)


def _example_text(record: bytes | None) -> str:
    """The feature `text` of a serialised example; TFDS would decode all features, which takes much longer."""
    features = records.example_features(record or b"")
    values = features[TEXT].bytes_list.value if TEXT in features else ()
    if len(values) != 1:
        raise BadRecord(f"found features {', '.join(map(repr, features))}; expected one string {TEXT!r}")
    return records.decode_utf8(values[0])


def _read_examples(values: Iterator[tuple[int, bytes | BadRecord | None]]) -> Iterator[str | BadRecord]:
    return _parse(values, "record {}".format, _example_text)


READERS: dict[str, Reader] = {
    "text": _read_text,
    "json_lines": _read_json_lines,
    "parquet": _read_parquet,
    "arrow": _read_parquet,
    "tfds_parquet": lambda path, *ends: _read_examples(records.parquet_records(path, tfds_folders.DATA_COLUMN, *ends)),
    "tfrecord": lambda path, *ends: _read_examples(records.TFRecordFile(path).records(*ends)),
    "array_record": lambda path, *ends: _read_examples(records.array_records(path, *ends)),
}
