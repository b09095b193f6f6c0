"""GLUE, SNLI and Long Range Arena's texts as published, and as TFDS and Hugging Face have them.

    a folder          GLUE's: train.tsv, dev.tsv, test.tsv. MNLI has dev_matched.tsv and
                      dev_mismatched.tsv, which are two splits, and together a split of two parts.
                      SNLI's: snli_1.0_train.jsonl. Hugging Face's: train-00000-of-00001.parquet.
                      Other files of these folders are counted.
    a file            with GLUE's header: .tsv, .csv, .jsonl or .parquet. A column `split` or `tag`
                      may name the split of each row.
    a TFDS folder     tfds:glue/NAME, tfds:imdb_reviews and the like

A quotation mark in a .tsv file is a character like any other. Labels are the classes' names or
their numbers.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence

from gmlp_flax.data import rows, splits, text_rows, tfds_rows
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.finetuning.text_tasks import TextTask
from gmlp_flax.data.rows import Located
from gmlp_flax.data.splits import WORDS
from gmlp_flax.data.text_rows import Columns, Reading
from gmlp_flax.errors import DataError, listed
from gmlp_flax.io import compression, files, tfds_folders
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecords
from gmlp_flax.io.tfds_folders import Folder

FORM = "a published benchmark"
IDS = ("index", "idx", "pairID", "id")
SPLIT_COLUMNS = ("split", "tag")

PARTS = ("_matched", "_mismatched")  # the parts of a split of MNLI
_ANY_WORD = "|".join(WORDS)
_ANY_PART = "|".join(PARTS)
_SPLIT = re.compile(rf"(?:^|[-_.])({_ANY_WORD})({_ANY_PART}|)$")


def read(path: str, task: TextTask, bad: BadRecords, ignore_splits: bool = False) -> Splits:
    """The splits of a published task's data.

    Args:
        path: the path of a file or a folder, or tfds:NAME.
        task: the task.
        bad: counts and limits the rows that cannot be used.
        ignore_splits: whether all rows of a file are one data set, whatever splits they name.

    Raises:
        DataError: there are no such data. When a split is read: a column is missing, there are too
            many bad rows, or there is no row.
    """
    path = tfds_folders.find(str(path))
    listing = files.find_files(path)
    folder = tfds_folders.load(path, listing)
    if folder is not None:
        return _tfds_splits(folder, task, bad)
    if rows.is_file(path, listing):
        split_columns = () if ignore_splits else SPLIT_COLUMNS
        return _read_file(path, listing, task, bad, split_columns)
    return _read_folder(path, listing, task, bad)


def _tfds_splits(folder: Folder, task: TextTask, bad: BadRecords) -> Splits:
    readers = {}
    for split in folder.lengths:
        readers[split] = functools.partial(_read_tfds, folder, split, task, bad)
    with_joined = _with_joined_parts(readers)
    return Splits(folder.path, FORM, with_joined)


def _read_folder(path: str, listing: Sequence[File], task: TextTask, bad: BadRecords) -> Splits:
    groups = _files_by_split(path, listing)
    tables: list[File] = []
    for members in groups.values():
        tables += members
    note = rows.unread_files_note(path, listing, tables)
    start = functools.partial(Reading, path, task, bad, note)
    readers = {}
    for split, members in groups.items():
        readers[split] = functools.partial(_read_files, start, split, members)
    with_joined = _with_joined_parts(readers)
    return Splits(path, FORM, with_joined)


def _files_by_split(path: str, listing: Sequence[File]) -> dict[str, list[File]]:
    """Split, with its part -> its files in a folder."""
    groups: dict[str, list[File]] = {}
    for file in listing:
        split = _split_of_file(file.name)
        suffix = compression.suffix(file.name)
        is_table = suffix in rows.SUFFIXES
        if split and is_table:
            members = groups.setdefault(split, [])
            members.append(file)
    if not groups:
        names = [file.name for file in listing]
        available = listed(names, 4) or "no files"
        raise DataError(
            f"{path!r} holds no train.tsv or dev.tsv (or .jsonl, .csv, .parquet), found {available}"
        )
    for split, members in groups.items():
        _require_one_set(path, split, members)
    return groups


def _split_of_file(name: str) -> str:
    """The split, with its part, at the end of the name of a file directly in the folder; or ""."""
    if "/" in name:
        return ""
    stem = splits.stem(name)
    match = _SPLIT.search(stem.lower())
    if not match:
        return ""
    word, part = match.groups()
    split = WORDS[word]
    return split + part


def _require_one_set(path: str, split: str, members: Sequence[File]) -> None:
    """Refuses two files of a split, unless they are the shards of a complete set."""
    sets = {_set_of(file.name) for file in members}
    if len(sets) > 1:
        first = members[0].name
        last = members[-1].name
        raise DataError(
            f"{path!r} holds two files of the split {split!r}, {first!r} and {last!r}: move one "
            "away"
        )
    files.check_shards(path, members)


def _set_of(name: str) -> str:
    """The set of shards to which a file belongs, or the file itself."""
    shard = files.SHARD.match(name)
    if not shard:
        return name
    return f"{shard['stem']} of {shard['count']}"


def _with_joined_parts(
    readers: dict[str, Callable[[], Dataset]],
) -> dict[str, Callable[[], Dataset]]:
    """The readers of all splits, and of the splits that consist of MNLI's two parts."""
    joined = dict(readers)
    known_splits = dict.fromkeys(WORDS.values())  # each of them once
    for split in known_splits:
        if split in readers:
            continue
        parts = []
        for part in PARTS:
            name = split + part
            if name in readers:
                parts.append(readers[name])
        if parts:
            joined[split] = functools.partial(_join, parts)
    return joined


def _join(parts: Sequence[Callable[[], Dataset]]) -> Dataset:
    """The examples of two parts as one split. Each example knows its part."""
    datasets = [read_part() for read_part in parts]
    return text_rows.joined(datasets)


def _read_files(start: Callable[[], Reading], split: str, members: Sequence[File]) -> Dataset:
    reading = start()
    task = reading.task
    part = _part_of(split, task)
    for file in members:
        columns, located = _located(file.path, task)
        reading.add(located, columns, part)
    declared = _declared(task)
    return reading.finish(FORM, split, members, declared)


def _part_of(split: str, task: TextTask) -> int:
    """1 for the second part of a task with two."""
    has_parts = len(task.submission) == len(PARTS)
    if has_parts and split.endswith(PARTS[1]):
        return 1
    return 0


def _declared(task: TextTask) -> tuple[str, ...]:
    if task.numbers is not None:
        return ()
    return task.labels


def _located(path: str, task: TextTask) -> tuple[Columns, Iterator[Located]]:
    """The columns of a file, and its rows."""
    added_header = _added_header(path, task)
    header = added_header or rows.column_names(path, quoted=False)
    columns = text_rows.resolve_columns(path, header, task, IDS)
    to_read = (*columns.read, *SPLIT_COLUMNS)
    located = rows.read_rows(path, to_read, added_header, quoted=False)
    return columns, located


def _added_header(path: str, task: TextTask) -> tuple[str, ...]:
    """The columns of a table, from the task, if its first line is a row; () if the first line names
    them."""
    suffix = compression.suffix(path)
    is_table = suffix in rows.DELIMITERS
    if not is_table or not task.columns_without_header:
        return ()
    cells = rows.first_cells(path, quoted=False)
    first_line = set(cells)
    for names in task.texts:
        if first_line.isdisjoint(names):
            return task.columns_without_header
    return ()


def _read_file(
    path: str,
    members: Sequence[File],
    task: TextTask,
    bad: BadRecords,
    split_columns: Sequence[str],
) -> Splits:
    """The splits of a single file whose rows may name them."""
    rows.require_suffix(path)
    columns, located = _located(path, task)
    groups = splits.by_column(path, located, split_columns, bad)
    start = functools.partial(Reading, path, task, bad)
    declared = _declared(task)
    return text_rows.read_by_split(start, FORM, columns, groups, members, declared)


def _read_tfds(folder: Folder, split: str, task: TextTask, bad: BadRecords) -> Dataset:
    header = list(folder.fields)
    columns = text_rows.resolve_columns(folder.path, header, task, IDS)
    located = tfds_rows.read_rows(folder, split, columns.read)
    part = _part_of(split, task)
    reading = Reading(folder.path, task, bad)
    reading.add(located, columns, part)
    members = folder.shard_files(split)
    declared = _declared(task)
    return reading.finish(FORM, split, members, declared)
