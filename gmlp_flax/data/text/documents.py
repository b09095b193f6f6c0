"""Documents of one file: a reader for each format of a corpus.

A reader takes (path, start, stop) and yields a document (str) for each record, in order, or a BadRecord if the record
does not parse. The unit of [start, stop) depends on the format, and so does the cost of a range in the middle:

    text           no unit: the file is one document
    json_lines     bytes: the lines that begin among them; random access unless the file is packed (.gz)
    parquet        row groups; random access
    tfds_parquet   row groups; random access
    tfrecord       records; earlier records are skipped by their lengths
    array_record   records; random access
"""

import functools
from collections.abc import Callable, Iterator

from gmlp_flax.errors import DataError
from gmlp_flax.io import files, json_files, records, tfds_folders
from gmlp_flax.io.records import BadRecord, NotUTF8

TEXT = "text"  # the field, column or feature that holds the document

LONGEST = files.MOST  # bytes of a document

Reader = Callable[[str, int, int | None], Iterator[str | BadRecord]]


def read_text(path: str, start: int, stop: int | None) -> Iterator[str]:
    """The file as one document; raises DataError, naming the line, if it is not UTF-8."""
    with files.open_file(path) as stream:
        data = stream.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise DataError(f"{path} is one document of more than {LONGEST >> 20:,} MiB: cut it into several files")
    try:
        records.refuse_utf16(data[:1024])
        yield records.decode_utf8(data)
    except NotUTF8 as error:
        line = 1 + data.count(b"\n", 0, error.offset)
        raise DataError(f"{path}, line {line}: {error}") from error


def read_json_lines(path: str, start: int, stop: int | None) -> Iterator[str | BadRecord]:
    """The string field `text` of each line that begins in the bytes [start, stop); blank lines are skipped."""
    with files.open_file(path) as stream:
        if start:
            stream.seek(start - 1)
            start += len(stream.readline()) - 1
        position, before = start, functools.cache(lambda: _lines_before(path, start))  # read if a line is bad, and once
        for number, line in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), start=1):
            if len(line) > LONGEST:
                raise DataError(f"{path}, line {before() + number} has more than {LONGEST >> 20:,} MiB")
            if stop is not None and position >= stop:
                return
            position += len(line)
            if line.isspace():
                continue
            try:
                yield _json_text(line)
            except BadRecord as error:
                yield BadRecord(f"line {before() + number}: {error}")


def read_parquet(path: str, start: int, stop: int | None) -> Iterator[str | BadRecord]:
    """The column `text` of the row groups [start, stop)."""
    for row, value in records.parquet_records(path, TEXT, start, stop):
        try:
            if value is None:
                raise BadRecord("null; expected a string")
            yield records.decode_utf8(value)
        except BadRecord as error:
            yield BadRecord(f"row {row}: {error}")


def _read_examples(numbered: Iterator[tuple[int, bytes | BadRecord | None]]) -> Iterator[str | BadRecord]:
    """The feature `text` of serialised examples; TFDS would decode all features, which takes much longer."""
    for number, record in numbered:
        if isinstance(record, BadRecord):
            yield record
            continue
        try:
            features = records.example_features(record or b"")
            values = features[TEXT].bytes_list.value if TEXT in features else ()
            if len(values) != 1:
                raise BadRecord(f"found features {', '.join(map(repr, features))}; expected one string {TEXT!r}")
            yield records.decode_utf8(values[0])
        except BadRecord as error:
            yield BadRecord(f"record {number}: {error}")


READERS: dict[str, Reader] = {
    "text": read_text,
    "json_lines": read_json_lines,
    "parquet": read_parquet,
    "tfds_parquet": lambda path, *ends: _read_examples(records.parquet_records(path, tfds_folders.DATA_COLUMN, *ends)),
    "tfrecord": lambda path, *ends: _read_examples(records.TFRecordFile(path).records(*ends)),
    "array_record": lambda path, *ends: _read_examples(records.array_records(path, *ends)),
}


def _json_text(line: bytes) -> str:
    records.refuse_utf16(line)
    try:
        record = json_files.loads(records.decode_utf8(line))
    except ValueError as error:
        raise BadRecord(f"not JSON ({getattr(error, 'msg', error)}); expected one object per line") from error
    if not isinstance(record, dict) or not isinstance(record.get(TEXT), str):
        kind = f"fields {', '.join(map(repr, record))}" if isinstance(record, dict) else type(record).__name__
        raise BadRecord(f"found {kind}; expected an object with a string field {TEXT!r}")
    return record[TEXT]


def _lines_before(path: str, start: int) -> int:
    """How many lines of an unpacked file end before byte `start`; needed only to name a line in a message."""
    if not start:
        return 0
    with files.open_file(path) as stream:
        return sum(stream.read(min(1 << 20, start - at)).count(b"\n") for at in range(0, start, 1 << 20))
