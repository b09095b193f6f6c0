"""Documents of one file: a reader for each format a corpus comes in.

A reader takes (path, start, stop) and yields, in order, a document (str) or a BadRecord for each record that does not
parse. What [start, stop) counts, and whether a range can be read without reading what is before it:

    text           nothing: the file is one document
    json_lines     bytes, the lines that begin among them: random access, unless packed as .gz or .xz
    parquet        row groups: random access
    tfds_parquet   row groups: random access
    tfrecord       records: earlier ones are skipped by their lengths
    array_record   records: random access
"""

import json
from collections.abc import Callable, Iterator

from gmlp_flax.data import files, records
from gmlp_flax.data.errors import DataError
from gmlp_flax.data.records import BadRecord

TEXT = "text"  # the field, column or feature that holds the document

Reader = Callable[[str, int, int | None], Iterator[str | BadRecord]]


def read_text(path: str, start: int, stop: int | None) -> Iterator[str]:
    """The file as one document; raises DataError, naming the line, where it is not UTF-8."""
    with files.opened(path) as stream:
        data = stream.read()
    try:
        _refuse_utf16(data[:1024])
        yield _decoded(data)
    except _NotUTF8 as error:
        line = 1 + data.count(b"\n", 0, error.offset)
        raise DataError(f"{path}, line {line}: {error}") from error


def read_json_lines(path: str, start: int, stop: int | None) -> Iterator[str | BadRecord]:
    """The string field `text` of each line that begins in the bytes [start, stop); blank lines are passed over."""
    with files.opened(path) as stream:
        if start:
            stream.seek(start - 1)
            start += len(stream.readline()) - 1
        position = start
        for number, line in enumerate(stream, start=1):
            if stop is not None and position >= stop:
                return
            position += len(line)
            if line.isspace():
                continue
            try:
                yield _json_text(line)
            except BadRecord as error:
                yield BadRecord(f"line {_lines_before(path, start) + number}: {error}")


def read_parquet(path: str, start: int, stop: int | None) -> Iterator[str | BadRecord]:
    """The column `text` of the row groups [start, stop)."""
    for row, value in records.parquet_records(path, TEXT, start, stop):
        try:
            yield _decoded(value)
        except BadRecord as error:
            yield BadRecord(f"row {row}: {error}")


def read_tfds_parquet(path: str, start: int, stop: int | None) -> Iterator[str | BadRecord]:
    """The feature `text` of the examples in the row groups [start, stop): TFDS keeps examples in a column `data`."""
    return _examples(records.parquet_records(path, "data", start, stop))


def read_tfrecord(path: str, start: int, stop: int | None) -> Iterator[str | BadRecord]:
    """The feature `text` of the examples [start, stop) of a TFRecord file."""
    return _examples(records.TFRecordFile(path).records(start, stop))


def read_array_record(path: str, start: int, stop: int | None) -> Iterator[str | BadRecord]:
    """The feature `text` of the examples [start, stop) of an ArrayRecord file."""
    return _examples(records.array_records(path, start, stop))


READERS: dict[str, Reader] = {
    "text": read_text,
    "json_lines": read_json_lines,
    "parquet": read_parquet,
    "tfds_parquet": read_tfds_parquet,
    "tfrecord": read_tfrecord,
    "array_record": read_array_record,
}


class _NotUTF8(BadRecord):
    """Bytes that are no UTF-8 text; `offset` is that of the first wrong one."""

    def __init__(self, reason: str, offset: int):
        super().__init__(f"not UTF-8 ({reason}); convert it, e.g. with iconv -t UTF-8")
        self.offset = offset


def _decoded(data: bytes | None) -> str:
    if data is None:
        raise BadRecord("null; expected a string")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _NotUTF8(f"byte 0x{data[error.start]:02x}", error.start) from error
    return text.removeprefix("\ufeff")


def _refuse_utf16(data: bytes) -> None:
    """UTF-16 without a mark at its beginning is valid UTF-8 full of zero characters."""
    if b"\0" in data:
        raise _NotUTF8("a zero byte, as UTF-16 has", data.index(b"\0"))


def _json_text(line: bytes) -> str:
    _refuse_utf16(line)
    try:
        record = json.loads(_decoded(line))
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"not JSON ({getattr(error, 'msg', error)}); expected one object a line") from error
    if not isinstance(record, dict) or not isinstance(record.get(TEXT), str):
        found = f"fields {', '.join(map(repr, record))}" if isinstance(record, dict) else type(record).__name__
        raise BadRecord(f"found {found}; expected an object with a string field {TEXT!r}")
    return record[TEXT]


def _lines_before(path: str, start: int) -> int:
    """How many lines of an unpacked file end before byte `start`; read only to name a line in a message."""
    if not start:
        return 0
    with files.opened(path) as stream:
        return sum(stream.read(min(1 << 20, start - at)).count(b"\n") for at in range(0, start, 1 << 20))


def _examples(numbered: Iterator[tuple[int, bytes | BadRecord | None]]) -> Iterator[str | BadRecord]:
    """Decodes serialised `tf.train.Example`s.

    Only the feature `text` is decoded: what the folder's TFDS features give, at a fraction of their time.
    """
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    for number, record in numbered:
        if isinstance(record, BadRecord):
            yield record
            continue
        try:
            feature = tf_example_pb2.Example.FromString(record or b"").features.feature
            values = feature[TEXT].bytes_list.value if TEXT in feature else ()
            if len(values) != 1:
                raise BadRecord(f"found features {', '.join(map(repr, feature))}; expected one string {TEXT!r}")
            yield _decoded(values[0])
        except DecodeError:
            yield BadRecord(f"record {number}: not a tf.train.Example")
        except BadRecord as error:
            yield BadRecord(f"record {number}: {error}")
