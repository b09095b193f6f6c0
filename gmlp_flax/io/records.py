"""Files of many records: TFRecord, ArrayRecord and parquet, read by ranges of records, each record
checked.

All three allow random access: TFRecord through an index of offsets (its data must be walked once),
ArrayRecord through its own index, parquet by row groups. A BadRecord takes the place of a record
that fails its check. Damage that hides where the next record begins is an error of the file.
"""

import math
import os
import struct
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import files, json_files
from gmlp_flax.io.cache import LocalCopy
from gmlp_flax.io.storage import file_errors

_HEADER = struct.Struct("<QI")  # length of the data, checksum of the length
_FOOTER = struct.Struct("<I")  # checksum of the data
_BATCH = 256  # records fetched at once
_LEAST_ZEROS = 1 / 8  # of the bytes of UTF-16, if the others are UTF-8


class BadRecord(Exception):
    """A record that cannot be used; the message says which and why, without the file's name."""


class NotUTF8(BadRecord):
    """Bytes that are not UTF-8 text; `offset` is the position of the first wrong byte."""

    def __init__(self, reason: str, offset: int, advice: str):
        super().__init__(f"not UTF-8 ({reason}); {advice}")
        self.offset = offset


class BadRecords:
    """The different bad records that this process meets, by their messages; picklable.

    Args:
        limit: how many may be skipped; the next one raises DataError.
    """

    def __init__(self, limit: int = 0):
        self.limit = limit
        self._met: dict[str, None] = {}

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._met)

    @property
    def first(self) -> list[str]:
        """The messages of the first five."""
        messages = list(self._met)
        return messages[:5]

    def skip(self, message: str) -> bool:
        """Counts a bad record, whose file and number the message names. Returns whether it was not
        met before."""
        is_new = message not in self._met
        # before the limit is checked: threads may exceed it at the same time
        self._met[message] = None
        met_before = self.count - 1
        skipped_before = min(met_before, self.limit)
        check_limit(message, skipped_before, 1, self.limit)
        return is_new


def check_limit(message: str, before: int, added: int, limit: int) -> None:
    """Raises DataError, with the last bad record's message, if `before + added` bad records exceed
    the limit."""
    total = before + added
    if total <= limit:
        return
    advice = (
        f"max_bad_records={limit}: fix the record, or raise the limit with "
        "--config.data.max_bad_records (of gmlp prepare: --max_bad_records)"
    )
    raise DataError(f"{message} ({before} bad records skipped before; {advice})")


def decode_utf8(data: bytes, keep_mark: bool = False) -> str:
    """UTF-8 text, by default without a byte-order mark; raises NotUTF8."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start : error.start + 1]
        character = byte.decode("cp1252", "replace")
        advice = f"{_convert('WINDOWS-1252')} if that byte is {character!r} (Latin-1)"
        raise NotUTF8(f"byte 0x{byte.hex()}", error.start, advice) from error
    return text if keep_mark else text.removeprefix("\ufeff")


def refuse_utf16(data: bytes) -> None:
    """Raises NotUTF8 at a zero byte, as UTF-16 without a byte-order mark is valid UTF-8 full of
    zero characters, or at the mark of UTF-16, which Chinese text may have without a zero byte."""
    offset = data.find(b"\0")
    if offset >= 0:
        _refuse_stray_zeros(data, offset)
        family = "UTF-16"
        encoding = "UTF-16LE" if offset % 2 else "UTF-16BE"
        if b"\0\0" in data[:8]:
            family = "UTF-32"
            encoding = "UTF-32"
        advice = f"{_convert(encoding)} if it is not a binary file"
        raise NotUTF8(f"a zero byte, as {family} has", offset, advice)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise NotUTF8("it begins as UTF-16 does", 0, _convert("UTF-16"))


def _refuse_stray_zeros(data: bytes, offset: int) -> None:
    """Raises NotUTF8 if the bytes are UTF-8 text but for a few zero bytes, the first at `offset`."""
    text = data.replace(b"\0", b"")
    zeros = len(data) - len(text)
    if zeros >= _LEAST_ZEROS * len(data):
        return
    with suppress(UnicodeDecodeError):
        text.decode("utf-8")
        reason = "a zero byte, which no text has"
        raise NotUTF8(reason, offset, "remove it, e.g. with tr -d '\\000'")


def _convert(encoding: str) -> str:
    """What to do about a file in another encoding."""
    return f"convert it, e.g. with iconv -f {encoding} -t UTF-8"


def example_features(record: bytes) -> Mapping[str, Any]:
    """The features, by name, of a serialized `tf.train.Example`; raises BadRecord if the record is
    not one."""
    from google.protobuf.message import DecodeError  # slow, and only TFDS folders need them
    from tensorflow_datasets.proto import tf_example_pb2

    try:
        # Protobuf makes the class at run time: type checkers do not see it.
        example = tf_example_pb2.Example.FromString(record)  # type: ignore[reportAttributeAccessIssue]
    except DecodeError as error:
        raise BadRecord("not a tf.train.Example") from error
    return example.features.feature


class TFRecordFile:
    """The records (bytes) of one TFRecord file, local or remote, by position; every length and
    record is checked.

    `len(file)` and `file[i]` use an index of 8 bytes per record: the `offsets` of an earlier object
    for this file, or built on first use by walking the file once, and pickled. Each item is one
    read or request. Thread-safe.

    Raises:
        DataError: the file cannot be read, is truncated or not TFRecord, or a record's length fails
            its checksum.
        BadRecord: from `file[i]`: the record fails its checksum.
    """

    def __init__(self, path: str, offsets: np.ndarray | None = None):
        self.path = str(path)
        if offsets is not None:
            self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        count = len(self)
        if not 0 <= index < count:
            raise IndexError(f"record {index} of {count} in {self.path}")
        header_start = int(self.offsets[index])
        start = header_start + _HEADER.size
        stop = int(self.offsets[index + 1])
        data = files.read_range(self.path, start, stop)
        return _checked(data, index)

    def records(
        self, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, bytes | BadRecord]]:
        """Yields (position, record) for records [start, stop), in order, without building the
        index."""
        count = 0
        with files.open_file(self.path, decompress=False) as stream:
            record_ends = self._walk(stream)
            for number, end in enumerate(record_ends):
                if number == stop:
                    return
                count += 1
                if number < start:
                    continue
                size = end - stream.tell()
                data = stream.read(size)
                try:
                    record = _checked(data, number)
                except BadRecord as error:
                    record = error
                yield number, record
        _check_count(self.path, count, stop)

    @cached_property
    def offsets(self) -> np.ndarray:
        """int64 [records + 1]: the position of each record's header, and the end."""
        # With a small buffer, little more than the headers of large records is read.
        with files.open_file(self.path, decompress=False, buffer=8192) as stream:
            record_ends = self._walk(stream)
            return np.array([0, *record_ends], np.int64)

    def _walk(self, stream: Any) -> Iterator[int]:
        """Yields the end of each record, with the stream at its data."""
        size = stream.seek(0, os.SEEK_END)
        offset = 0
        number = 0
        while offset < size:
            stream.seek(offset)
            header = stream.read(_HEADER.size)
            if len(header) < _HEADER.size:
                raise self._truncated(number)
            length, checksum = _HEADER.unpack(header)
            length_bytes = header[:8]
            if checksum != _masked_crc32c(length_bytes):
                raise DataError(
                    f"{self.path}, record {number}: not a TFRecord file, or damaged: copy it again"
                )
            offset += _HEADER.size + length + _FOOTER.size
            if offset > size:
                raise self._truncated(number)
            yield offset
            number += 1

    def _truncated(self, number: int) -> DataError:
        return DataError(
            f"{self.path}, record {number}: the file is truncated; copy or download it again"
        )


def array_records(
    path: str, start: int, stop: int | None
) -> Iterator[tuple[int, bytes | BadRecord]]:
    """Yields (position, record) for records [start, stop) of an ArrayRecord file. The library reads
    only local files: a remote one is copied to the cache.

    Raises DataError if the file cannot be read, or holds fewer records or none (the library's only
    sign of damage).
    """
    from array_record.python.array_record_module import ArrayRecordReader

    # The library reads an absent file as one without records.
    with LocalCopy(path) as copy, files.open_file(copy.path, decompress=False):
        reader = ArrayRecordReader(copy.path)
        count = reader.num_records()
        expected = stop or 1
        _check_count(path, count, expected)
        end = count if stop is None else stop
        for first in range(start, end, _BATCH):
            after_last = min(first + _BATCH, end)
            numbers = range(first, after_last)
            try:
                batch = reader.read(first, after_last)
            except RuntimeError:
                batch = [_array_record(reader, number) for number in numbers]
            yield from zip(numbers, batch, strict=True)
        with suppress(RuntimeError):  # an error that reading has met already
            reader.close()


@contextmanager
def array_record_writer(path: Path, options: str) -> Iterator[Callable[[bytes], None]]:
    """Yields a function that writes a record to an ArrayRecord file on this disk. The file appears
    at the end of the block. Raises FileError if it cannot be written. The options are
    ArrayRecordWriter's."""
    from array_record.python.array_record_module import ArrayRecordWriter

    def call(function: Callable, *arguments: object) -> Any:
        with file_errors(f"writing {path}", RuntimeError):
            return function(*arguments)

    with file_errors(f"writing {path}"), files.atomic_path(path) as temporary:
        writer = call(ArrayRecordWriter, str(temporary), options)
        yield lambda record: call(writer.write, record)
        call(writer.close)


def parquet_records(
    path: str, column: str, start: int, stop: int | None
) -> Iterator[tuple[int, bytes | None]]:
    """Yields (row, value) of a column of strings or bytes, for row groups [start, stop) of a
    parquet or .arrow file.

    Pages are checked if the writer stored checksums (pyarrow's `write_page_checksum`). Raises
    DataError if the file is truncated, damaged or not parquet, or has no such column.
    """
    with _parquet(path) as file:
        _require_text_column(file, column, path)
        first = 0
        for group in range(start):
            row_group = file.metadata.row_group(group)
            first += row_group.num_rows
        rows = _parquet_values(file, [column], start, stop)
        for number, (value,) in enumerate(rows, first):
            yield number, value


def _require_text_column(file: Any, column: str, path: str) -> None:
    columns = []
    for field in file.schema_arrow:
        if field.name == column and _is_text(field.type):
            return
        columns.append(f"{field.name!r} ({field.type})")
    available = ", ".join(columns)
    raise DataError(
        f"{path}: no column {column!r} of strings, found {available}; give a corpus with one"
    )


def parquet_columns(path: str) -> tuple[str, ...]:
    """The names of the columns of a parquet or .arrow file."""
    with _parquet(path) as file:
        names = file.schema_arrow.names
        return tuple(names)


def parquet_classes(path: str) -> dict[str, tuple[str, ...]]:
    """Column -> names of its classes, as the package datasets declares them in a file's schema."""
    with _parquet(path) as file:
        metadata = file.schema_arrow.metadata or {}
        return _declared_classes(metadata)


def parquet_rows(path: str, wanted: Container[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (row, name -> value) for those of the wanted columns that the file has; see also
    parquet_records.

    The numbers of declared classes (`parquet_classes`) are replaced by their names, None for -1.
    Bytes that are not UTF-8 text, such as those of images, come out as they are.
    """
    with _parquet(path) as file:
        schema = file.schema_arrow
        names = [name for name in schema.names if name in wanted]
        metadata = schema.metadata or {}
        declared = _declared_classes(metadata)
        rows = _parquet_values(file, names, 0, None)
        for number, values in enumerate(rows):
            row = {}
            for name, value in zip(names, values, strict=True):
                classes = declared.get(name, ())
                row[name] = named_cell(value, classes)
            yield number, row


def named_cell(value: Any, classes: Sequence[str]) -> Any:
    """A value as text where it is UTF-8, and as the name of its class where classes are declared;
    a number that is not a class stays as it is."""
    if isinstance(value, bytes):
        with suppress(NotUTF8):
            return decode_utf8(value, keep_mark=True)
        return value
    if isinstance(value, float) and math.isnan(value):
        return None
    if not classes or not isinstance(value, int):
        return value
    if value == -1:
        return None
    if 0 <= value < len(classes):
        return classes[value]
    return value


def _parquet_values(
    file: Any, names: list[str], start: int, stop: int | None
) -> Iterator[tuple[Any, ...]]:
    """The rows of some columns, in the row groups [start, stop). Strings come as bytes: read as
    strings, one that is not UTF-8 would make a whole batch fail."""
    import pyarrow

    end: int = file.num_row_groups if stop is None else stop
    groups = range(start, end)
    for batch in file.iter_batches(_BATCH, row_groups=groups, columns=names, use_threads=False):
        columns = []
        for name in names:
            column = batch.column(name)
            if _is_text(column.type):
                binary = pyarrow.large_binary()
                column = column.cast(binary)
            cells = column.to_pylist()
            columns.append(cells)
        yield from zip(*columns, strict=True)


def _declared_classes(metadata: Mapping[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """`feature_classes` of the description in a file's schema; {} without one."""
    try:
        text = metadata[b"huggingface"].decode()
        description = json_files.loads(text)
        features = description["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return feature_classes(features)


def feature_classes(features: Any) -> dict[str, tuple[str, ...]]:
    """Column -> names of its classes, by the features that the package datasets writes in JSON; {}
    if they are in another form."""
    classes = {}
    try:
        for name, feature in features.items():
            # The feature of a list is a list.
            is_label = isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
            if is_label:
                names = map(str, feature["names"])
                classes[name] = tuple(names)
    except (KeyError, TypeError, AttributeError):
        return {}
    return classes


def _is_text(kind: Any) -> bool:
    """Whether a type of pyarrow's, or None, is one of strings or bytes."""
    name = str(kind)
    if name.startswith("dictionary<"):
        name = str(kind.value_type)
    plain_name = name.removeprefix("large_")
    return plain_name in ("string", "binary")


def parquet_sizes(path: str) -> list[int]:
    """Compressed size, in bytes, of each row group of a parquet file; raises DataError as
    parquet_records does."""
    sizes = []
    with _parquet(path) as file:
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            size = _compressed_size(group)
            sizes.append(size)
    return sizes


def _compressed_size(group: Any) -> int:
    """The compressed size of a row group, by its metadata."""
    size = 0
    for index in range(group.num_columns):
        column = group.column(index)
        size += column.total_compressed_size
    return size


@contextmanager
def _parquet(path: str) -> Iterator[Any]:
    import pyarrow.parquet  # slow, and only parquet needs it

    is_arrow = path.lower().endswith(".arrow")
    kind = "Arrow" if is_arrow else "parquet"
    what = f"{path}: truncated, damaged or not {kind}"
    with (
        files.open_file(path, decompress=False) as stream,
        decode_errors(what, "copy or download it again"),
    ):
        if is_arrow:
            yield _ArrowFile(stream)
        else:
            yield pyarrow.parquet.ParquetFile(stream, page_checksum_verification=True)


class _ArrowFile:
    """As pyarrow's ParquetFile, with one row group, for an Arrow file or, as the package datasets
    writes, a stream."""

    num_row_groups = 1

    def __init__(self, stream: Any):
        import pyarrow.ipc

        is_file = stream.read(6) == b"ARROW1"
        stream.seek(0)
        reader: Any
        if is_file:
            reader = pyarrow.ipc.open_file(stream)
            numbers = range(reader.num_record_batches)
            self._batches = map(reader.get_batch, numbers)
        else:
            reader = pyarrow.ipc.open_stream(stream)
            self._batches = iter(reader)
        self.schema_arrow = reader.schema

    def iter_batches(self, size: int, columns: list[str], **_: Any) -> Iterator[Any]:
        """Batches of at most `size` rows of some columns."""
        for batch in self._batches:
            chosen = batch.select(columns)
            for column in chosen.columns:
                self._validate(column)
            for start in range(0, chosen.num_rows, size):
                yield chosen.slice(start, size)

    def _validate(self, column: Any) -> None:
        """Raises what pyarrow raises for damaged offsets, which would end the process. Strings need
        not be UTF-8."""
        kind = str(column.type)
        if kind in ("string", "large_string"):
            binary = kind.replace("string", "binary")
            column = column.view(binary)
        column.validate(full=True)


def _array_record(reader: Any, number: int) -> bytes | BadRecord:
    try:
        (record,) = reader.read([number])
    except RuntimeError as error:
        reason, _, _ = str(error).partition(";")
        return BadRecord(f"record {number}: {reason}")
    return record


def _check_count(path: str, count: int, expected: int | None) -> None:
    if expected is not None and count < expected:
        raise DataError(
            f"{path}: {count} records where {expected} or more were expected: copy or download it "
            "again"
        )


def _checked(data: bytes, number: int) -> bytes:
    """The record before its checksum; raises BadRecord if the two do not match."""
    size = len(data) - _FOOTER.size
    record = data[:size]
    checksum = _masked_crc32c(record)
    footer = _FOOTER.pack(checksum)
    if data[size:] != footer:
        raise BadRecord(f"record {number}: fails its checksum")
    return record


def _masked_crc32c(data: bytes) -> int:
    """The checksum of TFRecord: CRC-32C, rotated right by 15 bits, plus a constant."""
    checksum = google_crc32c.value(data)
    high = checksum << 17
    low = checksum >> 15
    rotated = high | low  # beyond 32 bits, which are cut off below
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF
