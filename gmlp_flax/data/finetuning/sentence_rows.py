"""Rows of labelled sentences, as dicts: from tables in text, JSON lines, parquet and TFDS folders,
by split."""

import csv
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from gmlp_flax.data.finetuning.glue import SentenceTask
from gmlp_flax.data.splits import SPLIT_WORDS, may_name_splits, split_of
from gmlp_flax.data.text import corpora
from gmlp_flax.data.text.documents import LONGEST, json_lines, json_object, numbered_lines
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, records, tfds_folders
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord, decode_utf8, refuse_utf16

# Names that the columns of a row's id and split may have.
IDS = ("index", "idx", "pairID", "id")
TAGS = ("tag", "split")

# Of Prodigy, Label Studio, Argilla: the column of rows that nobody accepted, and its values.
REJECTED = {"answer": "reject ignore", "was_cancelled": "true", "status": "discarded"}

# Other names of columns of the user's own, which are read if the column "text" or "label" is
# missing and one fits.
USUAL = {
    "text": "sentence review content tweet comment".split(),
    "label": "class category target sentiment".split(),
}

PARTS = ("", "_matched", "_mismatched")  # of a split; only MNLI's splits have parts
_DOUBLED = re.compile(r'"([^"]|"")*""([^"]|"")*"')
_EXCEL = re.compile(r'"?sep=.[",;\t]*\s*')  # a first line, for Excel alone
_SPLIT = re.compile(rf"(?:^|[-_.])({'|'.join(SPLIT_WORDS)})({'|'.join(PARTS[1:])}|)$")

Record = dict[str, Any]  # name of the column -> value
Rows = Iterator[tuple[str, Record | BadRecord]]  # each with the row's name in messages
# of each row: its first line's number, its cells, and its text
Cells = Iterator[tuple[int, list[str], str]]


def rows_by_split(path: str, task: SentenceTask, notes: list[str]) -> dict[str, Rows]:
    """Split name -> its rows, which are read as they are asked for; the name is "" for a single
    file.

    What is assumed about a file goes to `notes` when it is read, a line each.

    Raises:
        DataError: there is no data of this task at `path`.
    """
    contents = files.find_files(path)
    if folder := tfds_folders.load(path, contents):
        return {name: tfds_rows(folder, name) for name in folder.lengths}
    is_file = contents and contents[0].path == path
    groups = {"": list(contents)} if is_file else _split_files(path, contents, task.own)
    if task.own and (
        unread := {file.name for file in contents}
        - {file.name for file in sum(groups.values(), [])}
    ):
        notes.append(
            f"not read of {path}: {len(unread)} files of no split, or double: {', '.join(sorted(unread)[:3])}"
        )
    return {
        name: itertools.chain.from_iterable(file_rows(file.path, task, notes) for file in group)
        for name, group in groups.items()
    }


def file_rows(path: str, task: SentenceTask, notes: list[str]) -> Rows:
    """The rows of a file, by its suffix: one of READERS, all but .parquet also with one of
    files.COMPRESSIONS.

    Blank lines are skipped. Tab-separated files are split only at tabs and line feeds; a quotation
    mark is a character like any other. In those with commas, cells in quotation marks may hold
    commas and line feeds. The user's own tables
    may be as pandas and Excel write them: with the delimiter that their header shows, and quoted
        beside tabs, too.

    Raises:
        DataError: the file is of no such format, cannot be read or in two ways, or its header lacks
            a column.
    """
    if files.suffix(path) not in READERS:
        raise DataError(
            f"{path!r} has no format of labelled sentences; expected {', '.join(READERS)}, or packed"
        )
    return _renamed(READERS[files.suffix(path)](path, task, notes), path, task, notes)


def _renamed(rows: Rows, path: str, task: SentenceTask, notes: list[str]) -> Rows:
    """The rows with the task's names of columns, see own_names."""
    own = functools.cache(lambda columns: own_names(columns, task))
    for where, row in rows:
        if isinstance(row, dict) and (names := own(tuple(row))):
            read = " and ".join(f"{one!r} as {other!r}" for one, other in names.items())
            line = f"{path}: read are the columns {read}"
            notes += [line] * (line not in notes)
            row = {names.get(name, name): value for name, value in row.items()}
        yield where, row


def own_names(header: Collection[str], task: SentenceTask) -> dict[str, str]:
    """Columns of the user's own that stand for those of the task which are missing -> the task's
    name of each.

    A column stands for one of the same name in other capitals or with blanks around it, or else by
    USUAL; of two that fit, none does.
    """
    plain, renamed = (
        {name: name.strip().casefold() for name in header if name not in task.columns},
        {},
    )
    for names in (*task.texts, task.label) if task.own else ():
        same = [name for name in plain if plain[name] in map(str.casefold, names)]
        alike = same or [name for name in plain if plain[name] in USUAL.get(names[0], ())]
        if len(alike) == 1 and {*names}.isdisjoint(header):
            renamed[alike[0]] = names[0]
    return renamed


def rejected(row: Record, task: SentenceTask) -> str:
    """The column by which an annotation tool marks a row of the user's own as rejected or skipped,
    or ""."""
    names = [
        name
        for name in REJECTED.keys() - task.columns
        if str(row.get(name)).lower() in REJECTED[name].split()
    ]
    return names[0] if names and task.own else ""


def tfds_rows(folder: tfds_folders.Folder, split: str) -> Rows:
    """The examples of a split of a TFDS folder; raises DataError if a shard is missing, truncated
    or empty."""
    classes = {
        name: tuple(getattr(feature, "names", None) or ())
        for name, feature in folder.fields.items()
    }

    def parse(data: bytes) -> Record:
        features = records.example_features(data)
        return {name: _value(feature, classes.get(name, ())) for name, feature in features.items()}

    return _parse(folder.records(split), parse)


def _parse(values: Iterable[tuple[str, Any]], parse: Callable[[Any], Record]) -> Rows:
    """The rows of values, each with its name; a BadRecord among these comes out in its place."""
    for where, value in values:
        try:
            yield where, value if isinstance(value, BadRecord) else parse(value)
        except BadRecord as error:
            yield where, error


def _split_files(path: str, contents: tuple[File, ...], own: bool) -> dict[str, list[File]]:
    """Split name -> its file in a folder, or its shards. Of several formats, as of SNLI, one that
    has all splits.

    In the user's own data a split may be named anywhere in a file's name; GLUE's folders also have
    files such as dev_ids.tsv, which hold no examples.
    """
    formats: dict[str, dict[str, list[File]]] = {suffix: {} for suffix in READERS}
    for file in contents:
        suffix, anywhere = files.suffix(file.name), split_of(corpora.stem(file.name)) if own else ""
        at_end = _SPLIT.search(corpora.stem(file.name))
        name = SPLIT_WORDS[at_end[1]] + at_end[2] if at_end else anywhere
        if suffix in READERS and name and "/" not in file.name:
            formats[suffix].setdefault(name, []).append(file)
    names = {name for splits in formats.values() for name in splits}
    whole = next((splits for splits in formats.values() if splits.keys() == names), None)
    # of one split, or folders
    if not names and any(file.name.endswith((".parquet", ".arrow")) for file in contents):
        found = {
            name: corpora.open_corpus(path, name).files
            for name in corpora.split_names(path) or ("",)
        }
        whole = names = {SPLIT_WORDS.get(name, name): [*group] for name, group in found.items()}
    if not names or whole is None:
        problem = (
            f"has no format with all of its splits {', '.join(sorted(names))}"
            if names
            else "names no split"
        )
        raise DataError(
            f"folder {path!r} {problem}: expected train.tsv and dev.tsv (or .jsonl, .csv, .parquet)"
        )
    for name, group in whole.items():
        shards = [files.SHARD.match(file.name) for file in group]
        sets = {
            (shard["stem"], shard["count"]) if shard else file
            for shard, file in zip(shards, group, strict=True)
        }
        if len(sets) > 1:
            raise DataError(
                f"{path!r} holds two files of the split {name!r}, {group[0].name!r} and {group[-1].name!r}"
            )
        files.check_shards(path, group)
    return whole


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """The lines of a table, numbered from 1; bytes that are not UTF-8 are escaped, UTF-16 is
    refused."""
    for number, line in numbered_lines(path):
        try:
            refuse_utf16(line)
        except BadRecord as error:
            raise DataError(f"{path}, line {number}: {error}") from None
        text = line.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
        yield number, "\n" if number == 1 and _EXCEL.fullmatch(text) else text


def _cells(path: str, delimiter: str, is_quoted: bool) -> Cells:
    """The rows of a table that are not blank."""
    lines = _lines(path)
    if not is_quoted:
        yield from (
            (at, line.rstrip("\r\n").split(delimiter), line)
            for at, line in lines
            if line.strip(" \r\n")
        )
        return
    number, taken = 1, []
    reader = csv.reader(
        (taken.append(line) or line for _, line in lines), strict=True, delimiter=delimiter
    )
    try:
        for cells in reader:
            if "".join(cells).strip(" "):
                yield number, cells, "".join(taken).rstrip("\r\n")
            number = reader.line_num + 1
            taken.clear()
    except csv.Error as error:  # where the next row begins is not known
        raise DataError(
            f"{path}, line {number}: not CSV ({error}); check its quotation marks"
        ) from None


def _layout(path: str, notes: list[str], task: SentenceTask, usual: str) -> tuple[str, bool]:
    """The delimiter of a table of the user's own, and whether quotation marks around cells are the
    writer's; `usual` is the delimiter of files with its suffix."""
    first = next((line for _, line in _lines(path) if line.strip()), "")
    if "\r" in first.rstrip("\r\n") and '"' not in first:
        raise DataError(
            f"{path}, line 1: not CSV, as its lines end in \\r alone: save it with \\n or \\r\\n"
        )
    headers = {
        mark: next(csv.reader(first.splitlines(), delimiter=mark), []) for mark in (usual, *",\t;|")
    }
    renamed = {mark: own_names(cells, task) for mark, cells in headers.items()}
    delimiter = max(
        headers, key=lambda mark: len(task.columns.intersection(headers[mark])) + len(renamed[mark])
    )
    if delimiter != usual:
        notes.append(f"{path} has {delimiter!r} between its columns, by its header")
    texts = [
        at
        for at, name in enumerate(headers[delimiter])
        if (renamed[delimiter].get(name, name),) in task.texts
    ]
    return delimiter, delimiter != "\t" or _is_quoted(path, texts, notes)


def _is_quoted(path: str, texts: list[int], notes: list[str]) -> bool:
    """Whether quotation marks around cells of a table with tabs are the writer's, as in those of
    pandas and Excel.

    They are if the file follows a writer's rules: only cells that need marks have them, or all
    texts, the columns at `texts`, have them. They are the text's if the file follows no rules of
    quoting.
    """
    cells = ((number, cell) for number, row, _ in _cells(path, "\t", False) for cell in row)
    marked = [(number, cell) for number, cell in cells if cell.startswith('"')]
    if not marked:
        return False
    try:
        styles = [_styles(row, text, texts) for _, row, text in _cells(path, "\t", True)]
    except DataError:
        styles = []
    given = f"{path}, line {marked[0][0]}: the cell {marked[0][1][:40]!r}"
    if styles and (all(needed for needed, _ in styles) or all(always for _, always in styles[1:])):
        notes.append(
            f"{given} and the like lose their quotation marks, as pandas and Excel write them"
        )
        return True
    if not styles and not any(_DOUBLED.fullmatch(cell) for _, cell in marked):
        notes.append(
            f"{given} and the like keep their quotation marks, as the file is not quoted by rules"
        )
        return False
    raise DataError(
        f"{given} can be read in two ways, with its quotation marks or without: give JSON lines"
    )


def _styles(row: list[str], text: str, texts: list[int]) -> tuple[bool, bool]:
    """Whether only cells that need quotation marks have them in the text of a row; whether all of
    `texts` have them."""
    marked = [
        f'\t"{cell}"\t' in f"\t{text}\t" for cell in (cell.replace('"', '""') for cell in row)
    ]
    # it may be rows between two marks that belong to the texts
    if any("\t" in cell and "\n" in cell for cell in row):
        return False, False
    needed = (
        any(mark in cell for mark in '"\t\r\n')
        for cell, has in zip(row, marked, strict=True)
        if has
    )
    return all(needed), all(marked[at] for at in texts if at < len(row))


def _table_rows(path: str, task: SentenceTask, notes: list[str]) -> Rows:
    csv.field_size_limit(LONGEST)
    names: tuple[str, ...] = ()
    usual = "," if files.suffix(path) == ".csv" else "\t"
    layout = _layout(path, notes, task, usual) if task.own else (usual, usual == ",")
    for number, cells, _ in _cells(path, *layout):
        where = f"{path}, line {number}"
        try:
            decode_utf8("".join(cells).encode("utf-8", "surrogateescape"))
            if not names:
                names = _header(where, tuple(cells), task)
                if names == tuple(cells):
                    continue
            if len(cells) != len(names):
                raise BadRecord(f"{len(cells)} columns where {len(names)} were expected")
            yield where, dict(zip(names, cells, strict=True))
        except BadRecord as error:
            if not names and not task.headerless:  # the next row would be taken for the header
                raise DataError(f"{where}: {error}") from None
            yield where, error


def _header(where: str, cells: tuple[str, ...], task: SentenceTask) -> tuple[str, ...]:
    """Names of the columns, by the first line; in CoLA's and Retrieval's files that line may be an
    example."""
    if twice := [cell for cell in cells if cell in task.columns and cells.count(cell) > 1]:
        raise DataError(f"{where}: two columns of the header are named {twice[0]!r}: rename one")
    known = {*cells, *own_names(cells, task).values()}
    missing = [names for names in (*task.texts, *[task.label] * task.own) if not set(names) & known]
    if missing and not task.headerless:
        raise DataError(
            f"{where}: no column {' or '.join(map(repr, missing[0]))} in the header, found "
            f"{', '.join(repr(cell[:40]) for cell in cells[:15])}; give a file whose "
            "first line names this column; for labelled text you may set config.own.text, own.second and own.label"
            f"{', and write classes that have a column each (one-hot) as one column' * (missing[0] is task.label)}"
        )
    return task.headerless if missing else cells


def _json_rows(path: str, task: SentenceTask, notes: list[str]) -> Rows:
    return _parse(
        ((f"{path}, line {number}", line) for number, line in json_lines(path) if line.strip()),
        json_object,
    )


def _parquet_rows(path: str, task: SentenceTask, notes: list[str]) -> Rows:
    header = _header(path, records.parquet_columns(path), task)
    read = {*task.columns, *own_names(header, task), *IDS, *REJECTED}
    columns = {name for name in header if name in read or may_name_splits(name)}
    return (
        (f"{path}, row {number}", record) for number, record in records.parquet_rows(path, columns)
    )


READERS: dict[str, Callable[[str, SentenceTask, list[str]], Rows]] = {
    ".tsv": _table_rows,
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), _json_rows),
    ".csv": _table_rows,
    **dict.fromkeys((".parquet", ".arrow"), _parquet_rows),
    ".txt": _table_rows,
}


def _value(feature: Any, classes: tuple[str, ...]) -> str | int | None:
    """The feature's only string or integer; of a feature with classes the name of the class, None
    for -1."""
    if len(feature.bytes_list.value) == 1:
        return decode_utf8(feature.bytes_list.value[0])
    value = feature.int64_list.value[0] if len(feature.int64_list.value) == 1 else None
    if value is None or not classes or value >= len(classes):
        return value
    return classes[value] if value >= 0 else None
