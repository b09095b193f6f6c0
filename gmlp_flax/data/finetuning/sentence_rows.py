"""Rows of labelled sentences, as dicts: from tables in text, JSON lines, parquet and TFDS folders, by split."""

import csv
import functools
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

from gmlp_flax.data.finetuning.glue import SentenceTask
from gmlp_flax.data.splits import SPLIT_WORDS
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, json_files, records, tfds_folders
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord, decode_utf8, refuse_utf16

# Names that the columns of a row's id and split may have.
IDS = ("index", "idx", "pairID", "id")
TAGS = ("tag", "split")

PARTS = ("", "_matched", "_mismatched")  # of a split; only MNLI's splits have parts
_SPLIT = re.compile(rf"(?:^|[-_.])({'|'.join(SPLIT_WORDS)})({'|'.join(PARTS[1:])}|)$")

Record = dict[str, Any]  # name of the column -> value
Rows = Iterator[tuple[str, Record | BadRecord]]  # each with the row's name in messages


def rows_by_split(path: str, task: SentenceTask) -> dict[str, Callable[[], Rows]]:
    """Split name -> a function that yields its rows; the name is "" for a single file.

    Raises:
        DataError: there is no data of this task at `path`.
    """
    contents = files.find_files(path)
    if folder := tfds_folders.load(path, contents):
        _require_features(folder, task)
        return {name: functools.partial(tfds_rows, folder, name) for name in folder.lengths}
    if contents and contents[0].path == path:
        return {"": functools.partial(file_rows, path, task)}

    def chained(parts: list[File]) -> Rows:
        return itertools.chain.from_iterable(file_rows(file.path, task) for file in parts)

    return {name: functools.partial(chained, parts) for name, parts in _split_files(path, contents).items()}


def split_name(name: str) -> str:
    """TFDS's name for the split at the end of a name, such as "validation_matched"; "" if there is none."""
    match = _SPLIT.search(name)
    return SPLIT_WORDS[match[1]] + match[2] if match else ""


def file_rows(path: str, task: SentenceTask) -> Rows:
    """The rows of a file, by its suffix: one of READERS, all but .parquet also with one of files.COMPRESSIONS.

    Blank lines are skipped. Tab-separated files are split only at tabs and line feeds; a quotation mark is a character
    like any other. In those with commas, cells in quotation marks may hold commas and line feeds.

    Raises:
        DataError: the file has another format or cannot be read, or its header lacks the task's columns.
    """
    if files.suffix(path) not in READERS:
        raise DataError(
            f"{path!r} has no format in which labelled sentences are read; expected {', '.join(READERS)}, or text "
            f"with {' or '.join(files.COMPRESSIONS)}"
        )
    yield from READERS[files.suffix(path)](path, task)


def tfds_rows(folder: tfds_folders.Folder, split: str) -> Rows:
    """The examples of a split of a TFDS folder; raises DataError if a shard is missing, truncated or empty."""
    classes = {name: tuple(getattr(feature, "names", None) or ()) for name, feature in folder.fields.items()}
    for where, data in folder.records(split):
        try:
            if isinstance(data, BadRecord):
                raise data
            features = records.example_features(data)
            yield where, {name: _value(feature, classes.get(name, ())) for name, feature in features.items()}
        except BadRecord as error:
            yield where, error


def _split_files(path: str, contents: tuple[File, ...]) -> dict[str, list[File]]:
    """Split name -> its file in a folder, or its shards. Of several formats, as of SNLI, one that has all splits."""
    # Suffix -> split -> set of shards -> files.
    formats: dict[str, dict[str, dict[tuple, list[File]]]] = {suffix: {} for suffix in READERS}
    for file in contents:
        suffix, shard = files.suffix(file.name), files.SHARD.match(file.name)
        stem = shard["stem"] if shard else file.name[: len(file.name) - len(suffix + files.compression(file.name))]
        name, shard_set = split_name(stem), (stem, shard["count"]) if shard else (file.name,)
        if suffix in READERS and name and "/" not in file.name:
            formats[suffix].setdefault(name, {}).setdefault(shard_set, []).append(file)
    names = {name for of_format in formats.values() for name in of_format}
    whole = next((of_format for of_format in formats.values() if of_format.keys() == names), None)
    if not names or whole is None:
        problem = f"has no format with all of its splits {', '.join(sorted(names))}" if names else "holds no GLUE task"
        raise DataError(
            f"folder {path!r} {problem}: expected train.tsv and dev.tsv (or .jsonl, .csv, .parquet), or TFDS's files; "
            "give a folder with them, or single files as config.data.train and heldout"
        )
    for name, shard_sets in whole.items():
        if len(shard_sets) > 1:
            first, second = (files_of_set[0].name for files_of_set in list(shard_sets.values())[:2])
            raise DataError(
                f"{path!r} holds two files of the split {name!r}, {first!r} and {second!r}; give a folder of one task, "
                "or single files as config.data.train and heldout"
            )
    parts = {name: next(iter(shard_sets.values())) for name, shard_sets in whole.items()}
    for shard_files in parts.values():
        files.check_shards(path, shard_files)
    return parts


def _lines(path: str) -> Iterator[bytes]:
    """The lines of a file, which end only at line feeds; raises DataError for one that no memory would hold."""
    with files.open_file(path) as stream:
        for number, line in enumerate(iter(lambda: stream.readline(files.MOST + 1), b""), start=1):
            if len(line) > files.MOST:
                raise DataError(f"{path}, line {number} has more than {files.MOST >> 20:,} MiB")
            yield line


def _numbered_lines(path: str) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, without their ends, and their numbers."""
    lines = ((number, line.rstrip(b"\r\n")) for number, line in enumerate(_lines(path), start=1))
    return ((number, line) for number, line in lines if line.strip(b" "))


def _tsv_rows(path: str, task: SentenceTask) -> Rows:
    cells = ((number, line.split(b"\t")) for number, line in _numbered_lines(path))
    return _table_rows(path, cells, "tabs", task)


def _csv_rows(path: str, task: SentenceTask) -> Rows:
    return _table_rows(path, _csv_cells(path), "commas", task)


def _csv_cells(path: str) -> Iterator[tuple[int, list[bytes]]]:
    mark = "\ufeff"  # in front of a quotation mark, it would belong to the cell
    lines = (line.decode("utf-8", "surrogateescape").removeprefix(mark) for line in _lines(path))
    csv.field_size_limit(files.MOST)
    reader = csv.reader(lines, strict=True)
    number = 1
    try:
        for cells in reader:
            if "".join(cells).strip(" "):
                yield number, [cell.encode("utf-8", "surrogateescape") for cell in cells]
            number = reader.line_num + 1
    except csv.Error as error:  # where the next row begins is not known
        raise DataError(f"{path}, line {number}: not CSV ({error}); check its quotation marks") from None


def _table_rows(path: str, table: Iterator[tuple[int, list[bytes]]], separators: str, task: SentenceTask) -> Rows:
    names: tuple[str, ...] = ()
    for number, line in table:
        where = f"{path}, line {number}"
        try:
            cells = tuple(map(_text, line))
            if not names:
                names = _header(where, cells, separators, task)
                if names == cells:
                    continue
            if len(cells) != len(names):
                raise BadRecord(f"{len(cells)} columns, separated by {separators}, where {len(names)} were expected")
            yield where, dict(zip(names, cells, strict=True))
        except BadRecord as error:
            yield where, error


def _header(where: str, cells: tuple[str, ...], separators: str, task: SentenceTask) -> tuple[str, ...]:
    """Names of the columns, by the first line; in CoLA's and Retrieval's files that line may be an example."""
    needed = {*itertools.chain(*task.texts), *task.label}
    if twice := [cell for cell in cells if cell in needed and cells.count(cell) > 1]:
        raise DataError(f"{where}: two columns of the header are named {twice[0]!r}: rename one")
    missing = [names for names in task.texts if not set(names) & set(cells)]
    if not missing:
        return cells
    if len(cells) == len(task.headerless):
        return task.headerless
    if task.headerless and len(task.texts) > 1:
        expected = f"{len(task.headerless)} were expected: {', '.join(task.headerless)}"
        raise BadRecord(f"{len(cells)} columns, separated by {separators}, where {expected}")
    raise DataError(
        f"{where}: no column {' or '.join(map(repr, missing[0]))} in the header, found "
        f"{', '.join(repr(cell[:40]) for cell in cells[:15])}; give a file whose "
        "first line names this column, or config.own.text and own.second for data of your own"
    )


def _json_rows(path: str, task: SentenceTask) -> Rows:
    for number, line in _numbered_lines(path):
        try:
            record = json_files.loads(_text(line))
            if not isinstance(record, dict):
                record = BadRecord(f"found {type(record).__name__}; expected an object")
        except BadRecord as error:
            record = error
        except ValueError as error:
            record = BadRecord(f"not JSON ({getattr(error, 'msg', error)}); expected one object per line")
        yield f"{path}, line {number}", record


def _parquet_rows(path: str, task: SentenceTask) -> Rows:
    columns = {*itertools.chain(*task.texts), *task.label, *IDS, *TAGS}
    return ((f"{path}, row {number}", record) for number, record in records.parquet_rows(path, columns))


READERS: dict[str, Callable[[str, SentenceTask], Rows]] = {
    ".tsv": _tsv_rows,
    ".jsonl": _json_rows,
    ".ndjson": _json_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
    ".txt": _tsv_rows,
}


def _text(data: bytes) -> str:
    refuse_utf16(data)
    return decode_utf8(data)


def _require_features(folder: tfds_folders.Folder, task: SentenceTask) -> None:
    """Raises DataError unless a TFDS folder has the task's features, with its labels in its order."""
    fields = folder.fields
    if missing := [names for names in task.texts if not set(names) & set(fields)]:
        expected = " or ".join(map(repr, missing[0]))
        raise DataError(
            f"{folder.path!r} has no feature {expected}, found {folder.listed}; give a data set of this task"
        )
    named = (getattr(fields.get(name), "names", None) for name in task.label)
    names = next(filter(None, named), task.labels)
    if task.labels and tuple(names) != task.labels:
        raise DataError(
            f"{folder.path!r} has the labels {', '.join(names)}, but this task's are {', '.join(task.labels)}; give "
            "this task's data set"
        )


def _value(feature: Any, classes: tuple[str, ...]) -> str | int | None:
    """The feature's only string or integer; of a feature with classes the name of the class, None for -1."""
    if len(feature.bytes_list.value) == 1:
        return _text(feature.bytes_list.value[0])
    value = feature.int64_list.value[0] if len(feature.int64_list.value) == 1 else None
    if value is None or not classes or value >= len(classes):
        return value
    return classes[value] if value >= 0 else None
