"""Documents of one file: a reader for each format of a corpus.

A reader takes (path, start, stop) and yields a document (str) for each record, in order, or a
BadRecord if the record does not parse. The unit of [start, stop) depends on the format, and so does
the cost of a range in the middle:

    text           no unit: the file is one document
    json_lines     bytes: the lines that begin among them; random access unless the file is packed
    (.gz) parquet        row groups; random access
    arrow          no unit: all rows
    tfds_parquet   row groups; random access
    tfrecord       records; earlier records are skipped by their lengths
    array_record   records; random access
"""

import json
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
_MARKS = {
    b"PK\3\4": "zip",
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_MARKS |= {
    b"PAR1": "parquet",
    b"ARROW1": "Arrow",
    b"\xff\xff\xff\xff": "Arrow",
    b"%PDF": "PDF",
    b"7z\xbc\xaf": "7z",
}

# of an object or several
_JSON = re.compile(rb'(\xef\xbb\xbf)?\s*(\[\s*)?\{\s*"[^"\n]*"\s*:|\{\\rtf')

Reader = Callable[[str, int, int | None], Iterator[str | BadRecord]]


def numbered_lines(
    path: str, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """The lines that begin in the bytes [start, stop) of a file, with their line feeds, the first
    of them number 1.

    Raises:
        DataError: a line has more than LONGEST bytes.
    """
    with files.open_file(path) as stream:
        position = stream.seek(start - 1) + len(stream.readline()) if start else 0
        for number, line in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), start=1):
            if len(line) > LONGEST:
                raise DataError(
                    f"{path}, {_line_name(number, start)} has more than {LONGEST >> 20:,} MiB"
                )
            if stop is not None and position >= stop:
                return
            position += len(line)
            yield number, line


def json_lines(path: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
    """`numbered_lines`; of a file that is one list, as pandas and the package datasets write it,
    its rows as lines, all in the first range. Raises DataError also if a list is cut off."""
    with files.open_file(path) as stream:
        is_list = stream.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    if not is_list:
        yield from numbered_lines(path, start, stop)
    elif start == 0:
        rows = json_files.parse(files.read_small(path, LONGEST, decompress=True), path, list)
        yield from enumerate((json.dumps(row).encode() for row in rows), start=1)


def json_object(line: bytes) -> dict[str, Any]:
    """The object in a line of JSON; raises BadRecord if there is none."""
    records.refuse_utf16(line)
    try:
        value = json_files.loads(records.decode_utf8(line))
    except ValueError as error:
        raise BadRecord(
            f"not JSON ({getattr(error, 'msg', error)}); expected one object per line"
        ) from error
    if not isinstance(value, dict):
        raise BadRecord(f"found {type(value).__name__}; expected an object")
    return value


def _line_name(number: int, start: int) -> str:
    return f"line {number}" + (f" after byte {start:,}" if start else "")


def _read_text(path: str, start: int, stop: int | None) -> Iterator[str]:
    data = files.read_small(path, LONGEST, decompress=True)
    if _JSON.match(data):
        raise DataError(
            f"{path}: no text but JSON or RTF: write JSON lines to a .jsonl file, or plain text"
        )
    try:
        records.refuse_utf16(data[:1024])
        yield records.decode_utf8(data)
    except NotUTF8 as error:
        kind = next((kind for mark, kind in _MARKS.items() if data.startswith(mark)), "")
        if kind := "tar" if data.startswith(b"ustar", 257) else kind:
            raise DataError(
                f"{path}: no text but {kind}: unpack it, give it its suffix, or write JSON lines"
            ) from None
        line = 1 + data.count(b"\n", 0, error.offset)
        raise DataError(f"{path}, line {line}: {error}") from error


def _read_json_lines(path: str, start: int, stop: int | None) -> Iterator[str | BadRecord]:
    lines = ((number, line) for number, line in json_lines(path, start, stop) if not line.isspace())
    columns: dict[str, set[str]] = {}

    def text(line: bytes) -> str:
        record = json_object(line)
        splits.add_values(
            columns, {name: record[name] for name in record if splits.may_name_splits(name)}
        )
        if not isinstance(record.get(TEXT), str):
            fields = ", ".join(map(repr, record))
            raise BadRecord(
                f"found fields {fields}; expected an object with a string field {TEXT!r}"
            )
        return record[TEXT]

    yield from _parse(lines, lambda number: _line_name(number, start), text)
    splits.check_columns(columns, path)


def _parse(
    values: Iterator[tuple[int, Any]], name: Callable[[int], str], parse: Callable[[Any], str]
) -> Iterator[str | BadRecord]:
    """The documents in numbered values; the message of a BadRecord among these has its number
    already."""
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
    """The feature `text` of a serialised example; TFDS would decode all features, which takes much
    longer."""
    features = records.example_features(record or b"")
    values = features[TEXT].bytes_list.value if TEXT in features else ()
    if len(values) != 1:
        raise BadRecord(
            f"found features {', '.join(map(repr, features))}; expected one string {TEXT!r}"
        )
    return records.decode_utf8(values[0])


def _read_examples(
    values: Iterator[tuple[int, bytes | BadRecord | None]],
) -> Iterator[str | BadRecord]:
    return _parse(values, "record {}".format, _example_text)


READERS: dict[str, Reader] = {
    "text": _read_text,
    "json_lines": _read_json_lines,
    "parquet": _read_parquet,
    "arrow": _read_parquet,
    "tfds_parquet": lambda path, *ends: _read_examples(
        records.parquet_records(path, tfds_folders.DATA_COLUMN, *ends)
    ),
    "tfrecord": lambda path, *ends: _read_examples(records.TFRecordFile(path).records(*ends)),
    "array_record": lambda path, *ends: _read_examples(records.array_records(path, *ends)),
}
