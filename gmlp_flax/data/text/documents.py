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
from gmlp_flax.errors import DataError, decode_errors
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


def json_object(line: Any) -> dict[str, Any]:
    """The object in a line of JSON, or a value that is one; raises BadRecord if there is none."""
    value = line
    if isinstance(line, bytes):
        records.refuse_utf16(line)
        try:
            value = json_files.loads(records.decode_utf8(line))
        except ValueError as error:
            raise BadRecord(f"not JSON ({getattr(error, 'msg', error)}); expected one object per line") from error
    if not isinstance(value, dict):
        raise BadRecord(f"found {type(value).__name__}; expected an object")
    return value


def json_rows(path: str) -> list[Any] | None:
    """The rows of a file that is one JSON value, as pandas and the package datasets write a table; None if it holds
    JSON lines or another value.

    It is a list of rows or texts, also under one key of an object, or under names of splits, the rows' `split`;
    {"columns": names, "data": lists}; {column: {row: value}}; or {column: values}. DataError: a list is cut off.
    """
    value: Any = _whole_json(path)
    if isinstance(value, list):
        return [{TEXT: row} if isinstance(row, str) else row for row in value]
    if not isinstance(value, dict) or isinstance(value.get(TEXT), str):
        return None
    lists = {name: rows for name, rows in value.items() if isinstance(rows, list) and isinstance([*rows, 0][0], dict)}
    if len(lists) == 1:
        return next(iter(lists.values()))
    if lists and all(map(splits.split_words, lists)):
        tagged = [({"split": splits.split_of(name)}, row) for name, rows in lists.items() for row in rows]
        return [tag | row if isinstance(row, dict) else row for tag, row in tagged]
    if {"columns", "data"} <= value.keys():
        with decode_errors(f"{path}: its columns and data do not fit", "write JSON lines"):
            value = dict(zip(map(str, value["columns"]), map(list, zip(*value["data"], strict=True)), strict=True))
    if {*map(type, value.values())} == {dict} and len({*map(tuple, value.values())}) == 1:
        value = {name: [*column.values()] for name, column in value.items()}
    if {*map(type, value.values())} == {list} and len({*map(len, value.values())}) == 1:
        return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
    return None


def _whole_json(path: str) -> Any:
    """The value of a file that is one list or object of JSON; None if it is JSON lines, or nothing of these."""
    first = [*itertools.islice((line for _, line in numbered_lines(path) if line.strip()), 2)]
    begin = first[0].removeprefix(b"\xef\xbb\xbf").lstrip()[:1] if first else b""
    with contextlib.suppress(ValueError):
        if begin not in (b"[", b"{") or (json_files.loads(first[0].decode("utf-8-sig")) and len(first) > 1):
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
        record = json_object(line)
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
