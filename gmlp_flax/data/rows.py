"""Rows with named columns, from .csv, .tsv, .jsonl, .parquet and .arrow files.

    .csv, .tsv        RFC 4180 in UTF-8, with commas or tabs. The first line names the columns. A
                      cell in quotation marks may hold commas, tabs, line breaks and doubled marks
    .jsonl, .json     one JSON object per line, in UTF-8
    .parquet, .arrow  also as Hugging Face's package datasets writes them: if it declared names of
                      classes, rows have these names and not their numbers, also in .jsonl beside
                      its dataset_info.json

The first three may be compressed: .gz, .xz, .bz2, .zst.
"""

import csv
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gmlp_flax.data import hugging_face
from gmlp_flax.errors import DataError, counted, listed
from gmlp_flax.io import compression, files, json_files, records
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord

LONGEST = files.MOST  # bytes of a line, or of a cell

DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".json")
COLUMNAR = (".parquet", ".arrow")
SUFFIXES = (*DELIMITERS, *JSON_LINES, *COLUMNAR)
SEPARATORS_ADVICE = ": columns are separated by commas in .csv and by tabs in .tsv files"
_SEPARATORS = frozenset(",;|\t")  # of the cells of a table

Row = dict[str, Any]  # name of the column -> value


class Located(NamedTuple):
    """A row, or the reason why there is none, and its place for messages: "FILE, line 3"."""

    where: str
    row: Row | BadRecord


def is_unseparated(header: Collection[str]) -> bool:
    """Whether a table's only column has a name with another separator in it."""
    if len(header) != 1:
        return False
    [name] = header
    return not _SEPARATORS.isdisjoint(name)


def require_suffix(path: str, suffixes: Collection[str] = SUFFIXES, kind: str = "table") -> None:
    """Raises DataError unless a file has one of some suffixes. Files of COLUMNAR must not be
    compressed.

    Args:
        path: the path of the file.
        suffixes: the suffixes, without that of a compression.
        kind: what such a file is, for the message.
    """
    suffix = compression.suffix(path)
    if suffix in COLUMNAR and compression.compression(path):
        raise DataError(f"{path!r}: compressed {suffix} files are not read: decompress it")
    if suffix not in suffixes:
        expected = _listed_suffixes(suffixes)
        raise DataError(f"{path!r} is not a {kind}: expected {expected}; rename it if it is one")


def _listed_suffixes(suffixes: Collection[str]) -> str:
    """The suffixes, and which of these files may be compressed, for messages."""
    text = ", ".join(suffixes)
    compressible = [suffix for suffix in suffixes if suffix not in COLUMNAR]
    if not compressible:
        return text
    kinds = ", ".join(compressible)
    compressions = ", ".join(compression.COMPRESSIONS)
    return f"{text} ({kinds} also with {compressions})"


def is_file(path: str, listing: Sequence[File]) -> bool:
    """Whether the listing of a path is a single file, not the files of a folder."""
    if len(listing) != 1:
        return False
    [file] = listing
    return file.path == path


def find_by_suffix(
    path: str, listing: Sequence[File], suffixes: Collection[str] = SUFFIXES, kind: str = "table"
) -> list[File]:
    """The files at a path that have one of some suffixes, without those that describe others.

    Args:
        path: the path of a file or a folder, for messages.
        listing: the files there.
        suffixes, kind: see `require_suffix`.

    Raises:
        DataError: there is no such file, or a shard is missing.
    """
    if is_file(path, listing):
        require_suffix(path, suffixes, kind)
        return list(listing)
    members = []
    for file in listing:
        if hugging_face.is_metadata(file.name):
            continue
        suffix = compression.suffix(file.name)
        if suffix in suffixes:
            require_suffix(file.path, suffixes, kind)
            members.append(file)
    if not members:
        names = [file.name for file in listing]
        kinds = files.count_by_suffix(names) or "no files"
        expected = _listed_suffixes(suffixes)
        raise DataError(f"{path!r} holds no {kind} ({kinds}): expected {expected}")
    files.check_shards(path, members)
    return members


def unread_files_note(path: str, listing: Sequence[File], members: Sequence[File]) -> str:
    """A line that counts by suffix the files of a folder that are not read; "" if there are none.
    `members` are read, and files that describe them do not count."""
    used = {file.name for file in members}
    unread = []
    for file in listing:
        name = file.name
        if name in used or hugging_face.is_metadata(name):
            continue
        unread.append(name)
    return unread_note(path, unread)


def unread_note(path: str, names: Sequence[str]) -> str:
    """A line that counts by suffix the files at a path that are not read; "" if there are none."""
    if not names:
        return ""
    count = counted(len(names), "file")
    kinds = files.count_by_suffix(names)
    return f"{path!r}: {count} not read ({kinds})"


def read_rows(
    path: str, columns: Sequence[str] | None = None, header: Sequence[str] = (), quoted: bool = True
) -> Iterator[Located]:
    """Yields the rows of a file in order, without blank lines.

    Args:
        path: the path of the file.
        columns: the columns to read from a .parquet or .arrow file; None for all.
        header: names of the columns of a .csv or .tsv file whose first line is a row.
        quoted: whether quotation marks around the cells of a .tsv file are those of RFC 4180; if
            not, they are text, as in GLUE's files.

    Raises:
        DataError: the file has another format, cannot be read, or its header cannot be used.
    """
    require_suffix(path)
    suffix = compression.suffix(path)
    if suffix in COLUMNAR:
        return _columnar_rows(path, columns)
    if suffix in JSON_LINES:
        declared = hugging_face.declared_classes(path)
        located = _json_rows(path)
        return _with_class_names(located, declared)
    names = tuple(header)
    lines = _cells(path, quoted)
    return _named_rows(path, lines, names)


def _with_class_names(
    located: Iterator[Located], declared: Mapping[str, Sequence[str]]
) -> Iterator[Located]:
    """Rows with the names of declared classes in place of their numbers."""
    if not declared:
        yield from located
        return
    for where, row in located:
        if not isinstance(row, BadRecord):
            for column in declared.keys() & row.keys():
                value = row[column]
                row[column] = records.named_cell(value, declared[column])
        yield Located(where, row)


def column_names(path: str, quoted: bool = True) -> tuple[str, ...]:
    """The columns of a file, from its header, its schema, or the first object of JSON lines.

    Raises:
        DataError: the file is empty, holds no JSON object, or two columns have one name.
    """
    require_suffix(path)
    suffix = compression.suffix(path)
    if suffix in JSON_LINES:
        return _first_keys(path)
    if suffix in COLUMNAR:
        names = records.parquet_columns(path)
        _require_different(path, names)
        return names
    lines = _cells(path, quoted)
    return _read_header(path, lines)


def first_cells(path: str, quoted: bool = True) -> tuple[str, ...]:
    """The cells of the first line of a .csv or .tsv file, which may be a header or a row; () if the
    file is empty."""
    lines = _cells(path, quoted)
    first = next(lines, None)
    if first is None:
        return ()
    return tuple(first.cells)


def declared_classes(path: str, column: str) -> tuple[str, ...]:
    """The names of the classes of a column, if the package datasets declared them in the file or in
    the dataset_info.json beside it; else ()."""
    declared: Mapping[str, tuple[str, ...]] = {}
    suffix = compression.suffix(path)
    if suffix in COLUMNAR:
        declared = records.parquet_classes(path)
    if not declared:
        declared = hugging_face.declared_classes(path)
    return declared.get(column, ())


class _Line(NamedTuple):
    """The cells of a row of a table, and the number of its first line."""

    number: int
    cells: list[str]


def _cells(path: str, quoted: bool) -> Iterator[_Line]:
    """The rows of a .csv or .tsv file; see `read_rows`."""
    suffix = compression.suffix(path)
    delimiter = DELIMITERS[suffix]
    if suffix == ".csv" or quoted:
        return _quoted_cells(path, delimiter)
    return _plain_cells(path, delimiter)


def _named_rows(path: str, lines: Iterator[_Line], header: tuple[str, ...]) -> Iterator[Located]:
    """The rows of a table as dicts."""
    names = header or _read_header(path, lines)
    for line in lines:
        where = f"{path}, line {line.number}"
        try:
            row = _named_row(line.cells, names)
        except BadRecord as error:
            yield Located(where, error)
        else:
            yield Located(where, row)


def _named_row(cells: list[str], names: tuple[str, ...]) -> Row:
    """A row of a table as a dict; raises BadRecord if it has fewer or more cells than columns."""
    cell_count = len(cells)
    column_count = len(names)
    if cell_count != column_count:
        found = counted(cell_count, "cell")
        columns = listed(map(repr, names))
        raise BadRecord(f"found {found}; expected {column_count}, for the columns {columns}")
    row: Row = {}
    for name, cell in zip(names, cells, strict=True):
        row[name] = _utf8_cell(cell)
    return row


def _read_header(path: str, lines: Iterator[_Line]) -> tuple[str, ...]:
    first = next(lines, None)
    if first is None:
        raise DataError(f"{path} is empty: expected a first line that names the columns")
    try:
        names = [_utf8_cell(cell) for cell in first.cells]
    except BadRecord as error:
        raise DataError(f"{path}, line {first.number}: {error}") from None
    _require_different(path, names)
    return tuple(names)


def _require_different(path: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"{path}: two columns are called {name!r}: rename one")
        seen.add(name)


def _utf8_cell(cell: str) -> str:
    """A cell in which bytes that are not UTF-8 were escaped; raises BadRecord if there are any."""
    if cell.isascii():
        return cell
    content = cell.encode("utf-8", "surrogateescape")
    return records.decode_utf8(content, keep_mark=True)


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """The lines of a table, numbered from 1; bytes that are not UTF-8 are escaped."""
    for number, line in numbered_lines(path):
        try:
            records.refuse_utf16(line)
        except BadRecord as error:
            raise DataError(f"{path}, line {number}: {error}") from None
        text = line.decode("utf-8", "surrogateescape")
        if number == 1:
            text = text.removeprefix("\ufeff")
        yield number, text


def _plain_cells(path: str, delimiter: str) -> Iterator[_Line]:
    """The rows of a table in which a quotation mark is a character like any other."""
    for number, line in _lines(path):
        text = line.rstrip("\r\n")
        is_blank = not text.strip(" ")
        if not is_blank:
            cells = text.split(delimiter)
            yield _Line(number, cells)


def _quoted_cells(path: str, delimiter: str) -> Iterator[_Line]:
    """The rows of a table by RFC 4180."""
    csv.field_size_limit(LONGEST)
    lines = (line for _, line in _lines(path))
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    number = 1
    try:
        for cells in reader:
            if cells:  # a blank line has none
                yield _Line(number, cells)
            number = reader.line_num + 1
    except csv.Error as error:  # the beginning of the next row is unknown
        problem = _csv_problem(error)
        raise DataError(f"{path}, line {number}: {problem}") from None


def _csv_problem(error: csv.Error) -> str:
    """What is wrong with a table, and what to do."""
    if "new-line character" in str(error):
        return (
            "a carriage return without a line feed ends a line: save the file with line feeds, or "
            "put the cell in quotation marks"
        )
    return f"not CSV by RFC 4180 ({error}); check its quotation marks and line ends"


def numbered_lines(
    path: str, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """The lines that begin in the bytes [start, stop) of a file, with their line feeds. The first
    of them has number 1.

    Raises:
        DataError: a line has more than LONGEST bytes.
    """
    with files.open_file(path) as stream:
        position = 0
        if start:
            position = start - 1
            stream.seek(position)
            rest_of_line = stream.readline()  # of a line that begins before `start`
            position += len(rest_of_line)
        for number in itertools.count(1):
            line = stream.readline(LONGEST + 1)
            if len(line) > LONGEST:
                name = line_name(number, start)
                limit = LONGEST >> 20
                raise DataError(f"{path}, {name} has more than {limit:,} MiB")
            is_behind = stop is not None and position >= stop
            if not line or is_behind:
                return
            position += len(line)
            yield number, line


def line_name(number: int, start: int) -> str:
    """The name of a line for messages; lines are counted from a byte of the file on."""
    if not start:
        return f"line {number}"
    return f"line {number} after byte {start:,}"


def json_object(line: bytes) -> Row:
    """The object in a line of JSON; raises BadRecord if there is none."""
    records.refuse_utf16(line)
    text = records.decode_utf8(line)
    try:
        value = json_files.loads(text)
    except ValueError as error:
        reason = getattr(error, "msg", error)
        raise BadRecord(f"not JSON ({reason}); expected one object per line") from error
    if isinstance(value, list):
        raise BadRecord("found list; expected one object per line (jq -c '.[]' writes a list so)")
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise BadRecord(f"found {kind}; expected one object per line")
    return value


def _json_rows(path: str) -> Iterator[Located]:
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json_object(line)
        except BadRecord as error:
            yield Located(where, error)
        else:
            yield Located(where, row)


def _first_keys(path: str) -> tuple[str, ...]:
    """The keys of the first object of JSON lines."""
    problem = f"{path} is empty: expected one JSON object per line"
    located = _json_rows(path)
    for number, (where, row) in enumerate(located):
        if not isinstance(row, BadRecord):
            return tuple(row)
        if number == 0:
            problem = f"{where}: {row}"
    raise DataError(problem)


def _columnar_rows(path: str, columns: Sequence[str] | None) -> Iterator[Located]:
    if columns is None:
        columns = records.parquet_columns(path)
    for number, row in records.parquet_rows(path, columns):
        where = f"{path}, row {number}"
        yield Located(where, row)
