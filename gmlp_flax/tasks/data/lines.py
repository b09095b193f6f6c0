"""A model's inputs on a command line: lines of a stream, and files of lines or rows."""

import codecs
import io
import select
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from gmlp_flax.data import rows, text_rows
from gmlp_flax.errors import DataError
from gmlp_flax.io import compression, files, json_files, records
from gmlp_flax.io.records import BadRecord
from gmlp_flax.tasks.inference.prediction import PAUSE, Predictor

INPUT = "input"  # the key of a text in JSON
CHUNK = 1 << 16  # bytes of a stream that are read at once


class Line(str):
    """A line that is an input, or the path of a file that is one.

    Attributes:
        where: its place, for messages; "" for a path.
        record: the other keys of its JSON object.
    """

    where: str
    record: Mapping[str, Any]

    def __new__(cls, text: str, where: str = "", record: Mapping[str, Any] = MappingProxyType({})):
        line = super().__new__(cls, text)
        line.where = where
        line.record = record
        return line


def read_files(words: Iterable[str], predictor: Predictor, as_json: bool) -> Iterator[Any]:
    """The inputs that files hold or are; an error for each that cannot be read.

    Args:
        words: paths of files, folders, and patterns.
        predictor: of the model that reads the inputs.
        as_json: see `read_lines`.
    """
    for word in words:
        try:
            paths = files.expand(word, predictor.suffixes)
        except DataError as error:
            yield error
            continue
        for path in paths:
            try:
                yield from _read_file(path, predictor, as_json)
            except DataError as error:
                yield error


def _read_file(path: str, predictor: Predictor, as_json: bool) -> Iterator[Any]:
    """The inputs of one file; raises DataError if it cannot be read."""

    def read_lines_of(name: str, stream: Any) -> Iterator[Any]:
        """The lines of a file."""
        return read_lines(name, stream, as_json)

    suffix = compression.suffix(path)
    if predictor.reads_tables and suffix in rows.SUFFIXES:
        yield from read_table(path, predictor)
        return
    for value in predictor.inputs_of_file(path, read_lines_of):
        is_path = type(value) is str
        yield Line(value) if is_path else value


def read_table(path: str, predictor: Predictor) -> Iterator[Any]:
    """The texts in the rows of a table, in the columns that the model was trained on; an error for
    each row without one. A tab separates the texts of a pair. In JSON lines the column may also be
    called "input".

    Raises:
        DataError: a column is missing, or the file cannot be read.
    """
    header = rows.column_names(path)
    suffix = compression.suffix(path)
    if INPUT in header and suffix in rows.JSON_LINES:
        columns: tuple[str, ...] = (INPUT,)
    else:
        columns = predictor.table_columns(path, header)
    is_columnar = suffix in rows.COLUMNAR
    for where, row in rows.read_rows(path, columns):
        try:
            if isinstance(row, BadRecord):
                raise row
            text = _text_of_row(row, columns)
        except BadRecord as error:
            yield DataError(f"{where}: {error}")
            continue
        others = {}
        if not is_columnar:
            others = {name: row[name] for name in row if name not in columns}
        yield Line(text, where, others)


def _text_of_row(row: dict[str, Any], columns: tuple[str, ...]) -> str:
    """The texts of a row's columns with tabs between them; raises BadRecord if it has none."""
    keeps_tabs = columns == (INPUT,)
    texts = []
    for column in columns:
        text = text_rows.text_of(row, column)
        if not keeps_tabs:
            text = text.replace("\t", " ")
        texts.append(text)
    return "\t".join(texts)


def read_lines(name: str, stream: Any, as_json: bool = False) -> Iterator[Any]:
    """The lines of a stream that are not blank, as they arrive; PAUSE when no other is ready, and
    errors for bad lines.

    Args:
        name: of the stream, for messages.
        stream: of bytes.
        as_json: whether a line that begins with a brace is a JSON object with "input".
    """
    number = 0
    begun: list[bytes] = []  # the parts of a line whose end has not arrived yet
    read = getattr(stream, "read1", stream.read)  # read1 does not wait until a chunk is full
    is_start = True
    while chunk := read(CHUNK):
        if is_start and _begins_as_utf16(chunk):
            yield from _read_line(chunk, name, as_json)
            return
        is_start = False
        *whole, rest = chunk.split(b"\n")
        for end in whole:
            number += 1
            where = f"{name}, line {number}"
            line = b"".join([*begun, end])
            yield from _read_line(line, where, as_json)
            begun = []
        begun.append(rest)
        if not _is_ready(stream):
            yield PAUSE
    where = f"{name}, line {number + 1}"
    last_line = b"".join(begun)
    yield from _read_line(last_line, where, as_json)


def _begins_as_utf16(data: bytes) -> bool:
    """Whether a stream begins as UTF-16 or UTF-32 does, so that none of its lines can be read."""
    has_mark = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return has_mark or b"\0" in data[:4]


def _read_line(data: bytes, where: str, as_json: bool) -> Iterator[Any]:
    """The input that a line holds, if it is not blank, or an error."""
    try:
        records.refuse_utf16(data)
        text = records.decode_utf8(data).strip()
        record: dict[str, Any] = {}
        if as_json and text.startswith("{"):
            record = json_files.loads(text)
            text = record.get(INPUT)
            if not isinstance(text, str):
                raise ValueError('expected an object with the key "input" and a text')
        if text:
            yield Line(text, where, record)
    except (records.NotUTF8, ValueError) as error:
        yield DataError(f"{where}: {error}")


def _is_ready(stream: Any) -> bool:
    """Whether reading from a stream would not wait."""
    try:
        ready, _, _ = select.select([stream], [], [], 0)
    except (io.UnsupportedOperation, TypeError, ValueError):  # for files in memory, and remote ones
        return True
    return bool(ready)
