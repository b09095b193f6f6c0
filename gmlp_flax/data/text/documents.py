"""Documents of one file: a reader for each format of a corpus.

A reader takes (path, start, stop) and yields a document (str) for each record, in order, or a
BadRecord if the record does not parse. The unit of [start, stop) and the cost of a range in the
middle depend on the format:

    text           no unit: the file is one document
    json_lines     bytes: the lines that begin among them; random access unless the file is
                   compressed
    parquet        row groups; random access
    arrow          no unit: all rows
    tfds_parquet   row groups; random access
    tfrecord       records; earlier records are skipped by their lengths
    array_record   records; random access
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gmlp_flax.data import rows
from gmlp_flax.errors import DataError, listed
from gmlp_flax.io import files, records, tfds_folders
from gmlp_flax.io.records import BadRecord, NotUTF8

TEXT = "text"  # the field, column or feature that holds the document

Documents = Iterator[str | BadRecord]
Reader = Callable[[str, int, int | None], Documents]


def _read_text(path: str, start: int, stop: int | None) -> Documents:
    data = files.read_small(path, rows.LONGEST, decompress=True)
    try:
        beginning = data[:1024]
        records.refuse_utf16(beginning)
        yield records.decode_utf8(data)
    except NotUTF8 as error:
        lines_before = data.count(b"\n", 0, error.offset)
        line = 1 + lines_before
        raise DataError(f"{path}, line {line}: {error}") from error


def _read_json_lines(path: str, start: int, stop: int | None) -> Documents:
    for number, line in rows.numbered_lines(path, start, stop):
        if line.isspace():
            continue
        try:
            record = rows.json_object(line)
            yield _field(record)
        except BadRecord as error:
            name = rows.line_name(number, start)
            yield BadRecord(f"{name}: {error}")


def _field(record: rows.Row) -> str:
    if TEXT not in record:
        quoted = map(repr, record)
        fields = listed(quoted) or "none"
        raise BadRecord(f"found fields {fields}; expected an object with a string field {TEXT!r}")
    text = record[TEXT]
    if text is None:
        raise BadRecord(f"the field {TEXT!r} is null; expected a string")
    if not isinstance(text, str):
        kind = type(text).__name__
        raise BadRecord(f"the field {TEXT!r} holds {kind} {text!r:.40}; expected a string")
    return text


def _read_parquet(path: str, start: int, stop: int | None) -> Documents:
    for number, value in records.parquet_records(path, TEXT, start, stop):
        try:
            if value is None:
                raise BadRecord("null; expected a string")
            yield records.decode_utf8(value)
        except BadRecord as error:
            yield BadRecord(f"row {number}: {error}")


def _read_tfds_parquet(path: str, start: int, stop: int | None) -> Documents:
    examples = records.parquet_records(path, tfds_folders.DATA_COLUMN, start, stop)
    return _from_examples(examples)


def _read_tfrecord(path: str, start: int, stop: int | None) -> Documents:
    file = records.TFRecordFile(path)
    examples = file.records(start, stop)
    return _from_examples(examples)


def _read_array_record(path: str, start: int, stop: int | None) -> Documents:
    examples = records.array_records(path, start, stop)
    return _from_examples(examples)


def _from_examples(examples: Iterable[tuple[int, Any]]) -> Documents:
    """The documents in numbered, serialized examples. The message of a BadRecord among them already
    has its number."""
    for number, example in examples:
        if isinstance(example, BadRecord):
            yield example
            continue
        content = example or b""
        try:
            yield _feature(content)
        except BadRecord as error:
            yield BadRecord(f"record {number}: {error}")


def _feature(example: bytes) -> str:
    """The feature `text` of a serialized example; TFDS would decode all features, which takes much
    longer."""
    features = records.example_features(example)
    values: Sequence[bytes] = ()
    if TEXT in features:
        feature = features[TEXT]
        values = feature.bytes_list.value
    if len(values) != 1:
        quoted = map(repr, features)
        names = listed(quoted) or "none"
        raise BadRecord(f"found features {names}; expected one string {TEXT!r}")
    [value] = values
    return records.decode_utf8(value)


READERS: dict[str, Reader] = {
    "text": _read_text,
    "json_lines": _read_json_lines,
    "parquet": _read_parquet,
    "arrow": _read_parquet,
    "tfds_parquet": _read_tfds_parquet,
    "tfrecord": _read_tfrecord,
    "array_record": _read_array_record,
}
