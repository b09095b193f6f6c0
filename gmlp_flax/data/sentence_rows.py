"""Rows of labelled sentences, as dicts: from tab-separated files, JSON lines and TFDS's three formats."""

import json
import os
from collections.abc import Iterator
from typing import Any

from gmlp_flax.data import files, records, tfds_folders
from gmlp_flax.data.errors import DataError
from gmlp_flax.data.records import BadRecord
from gmlp_flax.data.sentence_tasks import SentenceTask

Record = dict[str, Any]  # name of the column -> what the row says
Rows = Iterator[tuple[str, Record | BadRecord]]  # each with what messages call the row
Lines = Iterator[tuple[int, bytes]]


def file_rows(path: str, task: SentenceTask) -> Rows:
    """The rows of a file, by its suffix: .tsv, .txt, .jsonl or .json, also .gz or .xz. Blank lines are passed over.

    Tab-separated files are split at tabs and line feeds and nowhere else; a quotation mark is a character like others.

    Raises:
        DataError: the file is of another format or cannot be read, or its header lacks the task's columns.
    """
    suffix = os.path.splitext(path.lower().removesuffix(files.packing(path)))[1]
    if suffix not in READERS:
        raise DataError(
            f"{path!r} is of no format that labelled sentences are read in; expected {', '.join(READERS)}, or one of "
            f"them with {' or '.join(files.PACKINGS)}"
        )
    with files.opened(path) as stream:
        # Iterating over bytes: only line feeds end a line.
        lines = ((number, line.rstrip(b"\r\n")) for number, line in enumerate(stream, start=1))
        yield from READERS[suffix](path, ((number, line) for number, line in lines if line.strip(b" ")), task)


def _tsv_rows(path: str, lines: Lines, task: SentenceTask) -> Rows:
    names: tuple[str, ...] = ()
    for number, line in lines:
        where = f"{path}, line {number}"
        try:
            cells = tuple(_decoded(line).split("\t"))
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
    """Names of the columns by the first line; CoLA's may be an example."""
    missing = [wanted for wanted in task.texts if not set(wanted) & set(cells)]
    if not missing:
        return cells
    if len(cells) == len(task.headerless):
        return task.headerless
    raise DataError(
        f"{where}: no column {' or '.join(map(repr, missing[0]))} in the header, found "
        f"{', '.join(repr(cell[:40]) for cell in cells[:15])}; give a file of this task, with GLUE's header"
    )


def _json_rows(path: str, lines: Lines, task: SentenceTask) -> Rows:
    for number, line in lines:
        try:
            record = json.loads(_decoded(line))
            if not isinstance(record, dict):
                record = BadRecord(f"found {type(record).__name__}; expected an object")
        except BadRecord as error:
            record = error
        except (ValueError, RecursionError) as error:
            record = BadRecord(f"not JSON ({getattr(error, 'msg', error)}); expected one object a line")
        yield f"{path}, line {number}", record


READERS = {".tsv": _tsv_rows, ".jsonl": _json_rows, ".json": _json_rows, ".txt": _tsv_rows}


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRecord(f"not UTF-8 (byte 0x{data[error.start]:02x}); convert it, e.g. with iconv -t UTF-8") from error
    if "\0" in text:
        raise BadRecord("not UTF-8 (a zero byte, as UTF-16 has); convert it, e.g. with iconv -t UTF-8")
    return text.removeprefix("\ufeff")


def require_features(folder: tfds_folders.Folder, task: SentenceTask) -> None:
    """Raises DataError unless a TFDS folder has the task's features, with its labels in its order."""
    fields = folder.fields
    missing = next((names for names in task.texts if not set(names) & set(fields)), None)
    if missing:
        raise DataError(
            f"{folder.path!r} has no feature {' or '.join(map(repr, missing))}, found {folder.listed}; give a data set "
            "of this task"
        )
    names = getattr(fields.get("label"), "names", None) or task.labels
    if tuple(names) != task.labels:
        raise DataError(
            f"{folder.path!r} has the labels {', '.join(names)}, where this task's are {', '.join(task.labels)}; give "
            "this task's data set"
        )


def tfds_rows(folder: tfds_folders.Folder, split: str) -> Rows:
    """The examples of a split of a TFDS folder; raises DataError where a shard is missing, truncated or empty."""
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    read = {
        "array_record": lambda shard: records.array_records(shard.file.path, 0, shard.records),
        "tfrecord": lambda shard: records.TFRecordFile(shard.file.path).records(0, shard.records),
        "parquet": lambda shard: records.parquet_records(shard.file.path, "data", 0, None),
    }[folder.file_format]
    for shard in folder.shards(split):
        for number, data in read(shard):
            where = f"{shard.file.path}, record {number}"
            if isinstance(data, BadRecord):  # it names the record itself
                yield shard.file.path, data
                continue
            try:
                features = tf_example_pb2.Example.FromString(data or b"").features.feature
                yield where, {name: _value(feature) for name, feature in features.items()}
            except DecodeError:
                yield where, BadRecord("not a tf.train.Example")
            except BadRecord as error:
                yield where, error


def _value(feature: Any) -> str | int | None:
    """The one string or integer of a feature."""
    if len(feature.bytes_list.value) == 1:
        return _decoded(feature.bytes_list.value[0])
    return feature.int64_list.value[0] if len(feature.int64_list.value) == 1 else None
