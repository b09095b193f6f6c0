"""GLUE, SNLI and Long Range Arena's texts as they are published, and as TFDS and Hugging Face have
them.

    a folder          GLUE's: train.tsv, dev.tsv, test.tsv; of MNLI dev_matched.tsv and
                      dev_mismatched.tsv, which are one split of two parts, and splits of their own.
                      SNLI's: snli_1.0_train.jsonl. Hugging Face's: train-00000-of-00001.parquet.
                      Other files of these folders are not read, but counted.
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
from gmlp_flax.io import files, tfds_folders
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecords
from gmlp_flax.io.tfds_folders import Folder

FORM = "a published benchmark"
IDS = ("index", "idx", "pairID", "id")
SPLIT_COLUMNS = ("split", "tag")

PARTS = ("_matched", "_mismatched")  # of a split of MNLI
_SPLIT = re.compile(rf"(?:^|[-_.])({'|'.join(WORDS)})({'|'.join(PARTS)}|)$", re.IGNORECASE)


def read(path: str, task: TextTask, bad: BadRecords, as_one: bool = False) -> Splits:
    """The splits of a published task's data.

    Args:
        path: of a file or a folder, or tfds:NAME.
        task: the task.
        bad: counts and limits the rows that cannot be used.
        as_one: whether all rows of a file are one data set, whatever splits they name.

    Raises:
        DataError: there is no such data. Of a split: a column is missing, there are too many bad
            rows, or no row.
    """
    path = tfds_folders.find(str(path))
    found = files.find_files(path)
    folder = tfds_folders.load(path, found)
    if folder is not None:
        readers = {
            split: functools.partial(_read_tfds, folder, split, task, bad)
            for split in folder.lengths
        }
    elif rows.is_file(path, found):
        return _read_file(path, found, task, bad, () if as_one else SPLIT_COLUMNS)
    else:
        groups = _files_by_split(path, found)
        tables = [file for members in groups.values() for file in members]
        start = functools.partial(Reading, path, task, bad, rows.others_note(path, found, tables))
        readers = {
            split: functools.partial(_read_files, start, split, members)
            for split, members in groups.items()
        }
    return Splits(path, FORM, _with_joined_parts(readers))


def _files_by_split(path: str, found: Sequence[File]) -> dict[str, list[File]]:
    """Split, with its part -> its files, of the files of a folder."""
    groups: dict[str, list[File]] = {}
    for file in found:
        split = _split_of_file(file.name)
        if split and files.suffix(file.name) in rows.SUFFIXES:
            groups.setdefault(split, []).append(file)
    if not groups:
        there = listed([file.name for file in found], 4) or "no files"
        raise DataError(
            f"{path!r} holds no train.tsv or dev.tsv (or .jsonl, .csv, .parquet), found {there}"
        )
    for split, members in groups.items():
        _require_one_set(path, split, members)
    return groups


def _split_of_file(name: str) -> str:
    """The split, with its part, that the name of a file right in the folder ends in; or ""."""
    if "/" in name:
        return ""
    match = _SPLIT.search(splits.stem(name))
    if not match:
        return ""
    return WORDS[match[1].lower()] + match[2].lower()


def _require_one_set(path: str, split: str, members: Sequence[File]) -> None:
    """Refuses two files of a split, unless they are shards of one set, all of them there."""
    sets = set()
    for file in members:
        shard = files.SHARD.match(file.name)
        sets.add((shard["stem"], shard["count"]) if shard else file.name)
    if len(sets) > 1:
        first = members[0].name
        last = members[-1].name
        raise DataError(
            f"{path!r} holds two files of the split {split!r}, {first!r} and {last!r}: move one "
            "away"
        )
    files.check_shards(path, members)


def _with_joined_parts(
    readers: dict[str, Callable[[], Dataset]],
) -> dict[str, Callable[[], Dataset]]:
    """The readers of all splits, and of those that are made of MNLI's two parts."""
    joined = dict(readers)
    for split in dict.fromkeys(WORDS.values()):
        parts = [readers[split + part] for part in PARTS if split + part in readers]
        if parts and split not in readers:
            joined[split] = functools.partial(_join, parts)
    return joined


def _join(parts: Sequence[Callable[[], Dataset]]) -> Dataset:
    """The examples of two parts as one split; those of the second part know it."""
    datasets = [read_part() for read_part in parts]
    return text_rows.joined(datasets)


def _read_files(start: Callable[[], Reading], split: str, members: Sequence[File]) -> Dataset:
    reading = start()
    for file in members:
        columns, located = _located(file.path, reading.task)
        reading.add(located, columns, _part_of(split, reading.task))
    return reading.finish(FORM, split, members, _declared(reading.task))


def _part_of(split: str, task: TextTask) -> int:
    """1 for the second part of a task with two."""
    return int(split.endswith(PARTS[1]) and len(task.submission) == len(PARTS))


def _declared(task: TextTask) -> tuple[str, ...]:
    return () if task.numbers is not None else task.labels


def _located(path: str, task: TextTask) -> tuple[Columns, Iterator[Located]]:
    """The columns of a file, and its rows."""
    added = _added_header(path, task)
    header = added or rows.column_names(path, quoted=False)
    columns = text_rows.resolve_columns(path, header, task, IDS)
    read = (*columns.read, *SPLIT_COLUMNS)
    return columns, rows.read_rows(path, read, added, quoted=False)


def _added_header(path: str, task: TextTask) -> tuple[str, ...]:
    """The columns of a table whose first line is a row, by the task; () if it names them."""
    if not task.headerless or files.suffix(path) not in rows.DELIMITERS:
        return ()
    first = set(rows.first_cells(path, quoted=False))
    has_columns = all(first & set(names) for names in task.texts)
    return () if has_columns else task.headerless


def _read_file(
    path: str,
    members: Sequence[File],
    task: TextTask,
    bad: BadRecords,
    split_columns: Sequence[str],
) -> Splits:
    """The splits of a single file, whose rows may name them."""
    rows.require_suffix(path)
    columns, located = _located(path, task)
    groups = splits.by_column(path, located, split_columns, bad)
    start = functools.partial(Reading, path, task, bad)
    return text_rows.read_by_split(start, FORM, columns, groups, members, _declared(task))


def _read_tfds(folder: Folder, split: str, task: TextTask, bad: BadRecords) -> Dataset:
    columns = text_rows.resolve_columns(folder.path, list(folder.fields), task, IDS)
    reading = Reading(folder.path, task, bad)
    located = tfds_rows.read_rows(folder, split, columns.read)
    reading.add(located, columns, _part_of(split, task))
    shards = [shard.file for shard in folder.shards(split)]
    return reading.finish(FORM, split, shards, _declared(task))
