"""Rows of labelled sentences, as dicts: from tab-separated files, JSON lines and TFDS folders."""

import itertools
import os
from collections.abc import Iterator
from typing import Any

from gmlp_flax.data.finetuning.glue import SentenceTask
from gmlp_flax.data.storage import files, json_files, records, tfds_folders
from gmlp_flax.data.storage.records import BadRecord, decoded, refuse_utf16
from gmlp_flax.errors import DataError

Record = dict[str, Any]  # name of the column -> value
Rows = Iterator[tuple[str, Record | BadRecord]]  # each with the row's name in messages
Lines = Iterator[tuple[int, bytes]]


def file_rows(path: str, task: SentenceTask) -> Rows:
    """The rows of a file, by its suffix: .tsv, .txt, .jsonl or .json, each also as .gz or .xz. Blank lines are skipped.

    Tab-separated files are split only at tabs and line feeds; a quotation mark is a character like any other.

    Raises:
        DataError: the file has another format or cannot be read, or its header lacks the task's columns.
    """
    suffix = os.path.splitext(path.lower().removesuffix(files.packing(path)))[1]
    if suffix not in READERS:
        raise DataError(
            f"{path!r} has no format in which labelled sentences are read; expected {', '.join(READERS)}, or one of "
            f"these with {' or '.join(files.PACKINGS)}"
        )
    with files.opened(path) as stream:
        # Iteration over bytes ends lines only at line feeds.
        read = iter(lambda: stream.readline(files.MOST + 1), b"")
        lines = ((number, _whole(path, number, line).rstrip(b"\r\n")) for number, line in enumerate(read, start=1))
        yield from READERS[suffix](path, ((number, line) for number, line in lines if line.strip(b" ")), task)


def _whole(path: str, number: int, line: bytes) -> bytes:
    if len(line) > files.MOST:
        raise DataError(f"{path}, line {number} has more than {files.MOST >> 20:,} MiB")
    return line


def _tsv_rows(path: str, lines: Lines, task: SentenceTask) -> Rows:
    names: tuple[str, ...] = ()
    for number, line in lines:
        where = f"{path}, line {number}"
        try:
            cells = tuple(_text(line).split("\t"))
            if not names:
                names = _header(where, cells, task)
                if names == cells:
                    continue
            if len(cells) != len(names):
                raise BadRecord(f"{len(cells)} columns, separated by tabs, where {len(names)} were expected")
            yield where, dict(zip(names, cells, strict=True))
        except BadRecord as error:
            yield where, error


def _header(where: str, cells: tuple[str, ...], task: SentenceTask) -> tuple[str, ...]:
    """Names of the columns, by the first line; in CoLA's and Retrieval's files that line may be an example."""
    missing = [wanted for wanted in task.texts if not set(wanted) & set(cells)]
    needed = {*itertools.chain(*task.texts), *task.label}
    if twice := [cell for cell in cells if cell in needed and cells.count(cell) > 1]:
        raise DataError(f"{where}: two columns of the header are named {twice[0]!r}: rename one")
    if not missing:
        return cells
    if len(cells) == len(task.headerless):
        return task.headerless
    if task.headerless and len(task.texts) > 1:
        names = ", ".join(task.headerless)
        raise BadRecord(f"{len(cells)} columns, separated by tabs, where {len(task.headerless)} were expected: {names}")
    raise DataError(
        f"{where}: no column {' or '.join(map(repr, missing[0]))} in the header, found "
        f"{', '.join(repr(cell[:40]) for cell in cells[:15])}; give a file whose "
        "first line names this column, or config.own.text and own.second for data of your own"
    )


def _json_rows(path: str, lines: Lines, task: SentenceTask) -> Rows:
    for number, line in lines:
        try:
            record = json_files.loaded(_text(line))
            if not isinstance(record, dict):
                record = BadRecord(f"found {type(record).__name__}; expected an object")
        except BadRecord as error:
            record = error
        except ValueError as error:
            record = BadRecord(f"not JSON ({getattr(error, 'msg', error)}); expected one object per line")
        yield f"{path}, line {number}", record


READERS = {".tsv": _tsv_rows, ".jsonl": _json_rows, ".json": _json_rows, ".txt": _tsv_rows}


def _text(data: bytes) -> str:
    refuse_utf16(data)
    return decoded(data)


def require_features(folder: tfds_folders.Folder, task: SentenceTask) -> None:
    """Raises DataError unless a TFDS folder has the task's features, with its labels in its order."""
    fields = folder.fields
    missing = next((names for names in task.texts if not set(names) & set(fields)), None)
    if missing:
        raise DataError(
            f"{folder.path!r} has no feature {' or '.join(map(repr, missing))}, found {folder.listed}; give a data set "
            "of this task"
        )
    named = (getattr(fields.get(name), "names", None) for name in task.label)
    names = next(filter(None, named), task.labels)
    if tuple(names) != task.labels:
        raise DataError(
            f"{folder.path!r} has the labels {', '.join(names)}, but this task's are {', '.join(task.labels)}; give "
            "this task's data set"
        )


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


def _value(feature: Any, classes: tuple[str, ...]) -> str | int | None:
    """The feature's only string or integer; of a feature with classes the name of the class, None for -1."""
    if len(feature.bytes_list.value) == 1:
        return _text(feature.bytes_list.value[0])
    value = feature.int64_list.value[0] if len(feature.int64_list.value) == 1 else None
    if value is None or not classes or value >= len(classes):
        return value
    return classes[value] if value >= 0 else None
