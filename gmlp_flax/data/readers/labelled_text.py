"""Labelled text: rows with named columns, in .csv, .tsv, .jsonl, .parquet or .arrow files, the
first three also compressed.

`text` is the column of the text, or of a pair's first text, and `label` the column of the label.
config.own.text, own.second and own.label give other names. A label is its text, stripped. Rows
without one are left out and counted. Tables are read by RFC 4180, in UTF-8.

    a file           a column `split` with words for splits (train, val, test, ...) may assign its
                     rows to splits
    a folder         with a file for each split (train.csv, my_valid.csv), or one that Hugging
                     Face's package datasets wrote; other files are counted by suffix
    a TFDS folder    tfds:NAME, whose features are the columns
"""

import functools
from collections.abc import Callable, Sequence

from gmlp_flax.data import rows, splits, text_rows, tfds_rows
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.finetuning.text_tasks import TextTask
from gmlp_flax.data.text_rows import Columns, Reading
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, tfds_folders
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecords
from gmlp_flax.io.tfds_folders import Folder

FORM = "rows with text and label"
SPLIT_COLUMN = "split"

_FLAGS = ": name the columns with --config.own.text=, own.second= and own.label="


def read(path: str, task: TextTask, bad: BadRecords, ignore_splits: bool = False) -> Splits:
    """The splits of labelled text.

    Args:
        path: the path of a file or a folder.
        task: the columns (`text_tasks.custom_task`).
        bad: counts and limits the rows that cannot be used.
        ignore_splits: whether all rows are one data set, whatever splits the names mean.

    Raises:
        DataError: there are no such data, or only some names or rows mean splits. When a split is
            read: a column is missing, there are too many bad rows, or there is no row.
    """
    path = tfds_folders.find(str(path))
    listing = files.find_files(path)
    folder = tfds_folders.load(path, listing)
    if folder is not None:
        read_tfds = functools.partial(_read_tfds, folder, task, bad)
        return Splits.of_names(path, FORM, folder.lengths, read_tfds)
    is_file = rows.is_file(path, listing)
    if is_file and not ignore_splits:
        return _by_split_column(path, listing, task, bad)
    tables = rows.find_by_suffix(path, listing)
    groups = splits.group_files(path, listing, tables, ignore_splits)
    if not ignore_splits:
        without_split = groups.get("", ())
        _refuse_split_column(without_split, task)
    note = rows.unread_files_note(path, listing, tables)
    start = functools.partial(Reading, path, task, bad, note)
    read_split = functools.partial(_read_files, start)
    return Splits.of_groups(path, FORM, groups, read_split)


def _refuse_split_column(members: Sequence[File], task: TextTask) -> None:
    """Raises DataError if a file of a folder has a column `split`, and no name means a split."""
    for file in members:
        header = rows.column_names(file.path)
        columns = _resolve_columns(file.path, header, task)
        is_read = SPLIT_COLUMN in columns.read  # as the text or the label
        if SPLIT_COLUMN in header and not is_read:
            raise DataError(
                f"{file.path} has a column {SPLIT_COLUMN!r}, which is read only from a single "
                f"file: give the path of that file, or --config.data.split={splits.ALL} if all "
                "rows are one data set"
            )


def _resolve_columns(path: str, header: Sequence[str], task: TextTask) -> Columns:
    columns = text_rows.resolve_columns(path, header, task, flags=_FLAGS)
    if not columns.label:
        raise text_rows.missing_column(path, task.label, header, _FLAGS)
    return columns


def _read_files(start: Callable[[], Reading], split: str, members: Sequence[File]) -> Dataset:
    reading = start()
    declared: tuple[str, ...] = ()
    for file in members:
        header = rows.column_names(file.path)
        columns = _resolve_columns(file.path, header, reading.task)
        located = rows.read_rows(file.path, columns.read)
        reading.add(located, columns)
        declared_by_file = rows.declared_classes(file.path, columns.label)
        if declared_by_file:
            declared = declared_by_file
    return reading.finish(FORM, split, members, declared)


def _read_tfds(folder: Folder, task: TextTask, bad: BadRecords, split: str) -> Dataset:
    header = list(folder.fields)
    columns = _resolve_columns(folder.path, header, task)
    located = tfds_rows.read_rows(folder, split, columns.read)
    reading = Reading(folder.path, task, bad)
    reading.add(located, columns)
    members = folder.shard_files(split)
    declared = tfds_rows.declared_classes(folder, columns.label)
    return reading.finish(FORM, split, members, declared)


def _by_split_column(path: str, members: Sequence[File], task: TextTask, bad: BadRecords) -> Splits:
    """The splits of a file whose rows may name them."""
    header = rows.column_names(path)
    columns = _resolve_columns(path, header, task)
    other_columns = [name for name in header if name not in columns.read]
    splits.refuse_other_capitals(path, other_columns, SPLIT_COLUMN)
    is_read = SPLIT_COLUMN in columns.read  # as the text or the label
    split_columns = () if is_read else (SPLIT_COLUMN,)
    to_read = columns.read + split_columns
    located = rows.read_rows(path, to_read)
    groups = splits.by_column(path, located, split_columns, bad)
    start = functools.partial(Reading, path, task, bad)
    declared = rows.declared_classes(path, columns.label)
    return text_rows.read_by_split(start, FORM, columns, groups, members, declared)
