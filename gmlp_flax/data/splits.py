"""The splits of a data set: the names that mean them, and which split a run reads.

A name means a split if it is one of WORDS, in any case: the whole name of a folder, or the first or
the last word of a file's name (words end at what is no letter). Where the name of one folder or
file means a split, all must: else which examples are held out cannot be known.
"""

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gmlp_flax.data import hugging_face, rows
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.holdout import TRAIN
from gmlp_flax.data.rows import Located
from gmlp_flax.errors import DataError, listed
from gmlp_flax.io import files
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord, BadRecords

TRAIN_SPLIT = "train"
VALIDATION_SPLIT = "validation"
TEST_SPLIT = "test"

# Word -> the split that it means, called as TFDS calls it.
WORDS = {
    "train": TRAIN_SPLIT,
    "training": TRAIN_SPLIT,
    "val": VALIDATION_SPLIT,
    "valid": VALIDATION_SPLIT,
    "validation": VALIDATION_SPLIT,
    "dev": VALIDATION_SPLIT,
    "eval": VALIDATION_SPLIT,
    "test": TEST_SPLIT,
    "testing": TEST_SPLIT,
}

RENAME = "rename or move one of them"  # if some names mean a split and others do not
FILL = "name the split in each row, or in none"  # the same of rows

ALL = "all"  # as config.data.split: all the data, whatever splits their names mean


class Request(NamedTuple):
    """Which examples of a data set a run asks for.

    Attributes:
        role: "train" or "heldout".
        split, heldout_split: the splits to train on and to hold out; "" for those that are usual.
        heldout_share: of the examples to train on, held out if there is no split for it; 0 if the
            path holds data of one role alone.
    """

    role: str
    split: str = ""
    heldout_split: str = ""
    heldout_share: float = 0.0


def split_of_folder(name: str) -> str:
    """The split that a folder's name means, or ""."""
    return WORDS.get(name.lower(), "")


def names_split(name: str) -> bool:
    """Whether the first or the last word of a name means a split."""
    words = _words(name)
    return any(word in WORDS for word in words[:1] + words[-1:])


def _words(name: str) -> list[str]:
    composed = unicodedata.normalize("NFC", name)
    return [word.lower() for word in re.findall(r"[^\W\d_]+", composed)]


def split_of_file(name: str) -> str:
    """The split that a file's name means by its first or its last word, or "".

    Numbers and suffixes do not count: "train-00000-of-00010.parquet" and "train_2.txt" mean train.

    Raises:
        DataError: the two words mean different splits, or a word between them means one.
    """
    words = _words(stem(os.path.basename(name)))
    meant = [WORDS[word] for word in words[:1] + words[-1:] if word in WORDS]
    if len(set(meant)) > 1:
        raise DataError(f"{name!r} can mean the split {meant[0]!r} or {meant[1]!r}: rename it")
    inner = [word for word in words[1:-1] if word in WORDS]
    if inner and not meant:
        raise DataError(
            f"{name!r} may mean the split {WORDS[inner[0]]!r}, but {inner[0]!r} is neither the "
            f"first nor the last word of its name: rename it; --config.data.split={ALL} reads all "
            "files whatever their names"
        )
    return meant[0] if meant else ""


def stem(name: str) -> str:
    """A file's name without the numbers of a shard, or without its suffixes."""
    shard = files.SHARD.match(name)
    if shard:
        return shard["stem"]
    ending = files.suffix(name) + files.compression(name)
    return name[: len(name) - len(ending)]


def by_name(path: str, found: Iterable[File]) -> dict[str, list[File]]:
    """The data files of each split, by the names of folders or, if these mean none, of the files.

    Where the package datasets has written its list of splits, each folder is one.

    Args:
        path: the folder that was searched, for messages.
        found: the files below it, of which those that describe data are left out.

    Returns:
        Split -> its files, in order; {"": all files} if no name means a split.

    Raises:
        DataError: some names mean a split and others do not, or a name means two.
    """
    found = list(found)
    data = [file for file in found if not hugging_face.is_metadata(file.name)]
    if hugging_face.declares_splits(found):
        splits = {file.name: _declared_split(file.name) for file in data}
    else:
        splits = {file.name: _split_of_folders(file.name) for file in data}
        if not any(splits.values()):
            splits = {file.name: split_of_file(file.name) for file in data}
    require_all_or_none(path, splits)
    groups: dict[str, list[File]] = {}
    for file in data:
        groups.setdefault(splits[file.name], []).append(file)
    return groups


def group_files(
    path: str, found: Sequence[File], members: Sequence[File], as_one: bool = False
) -> dict[str, list[File]]:
    """The data files of each split; {"": all} of a single file, or if all are to be one data set.

    Args:
        path: where they were found.
        found: all files there.
        members: those with data.
        as_one: whether all are one data set, whatever their names mean.

    Raises:
        DataError: as in `by_name`.
    """
    if as_one or rows.is_file(path, found):
        return {"": list(members)}
    return by_name(path, [*members, *hugging_face.metadata(found)])


def _declared_split(name: str) -> str:
    """The split that the first folder of a file is, by the word's usual name; "" without one."""
    folder, slash, _ = name.partition("/")
    if not slash:
        return ""
    return split_of_folder(folder) or folder


def _split_of_folders(name: str) -> str:
    """The split that a folder in a file's path means, the first one first."""
    for folder in name.split("/")[:-1]:
        split = split_of_folder(folder)
        if split:
            return split
    return ""


def require_all_or_none(path: str, splits: Mapping[str, str], advice: str = RENAME) -> None:
    """Refuses names, or rows, of which some mean a split and others do not.

    Args:
        path: where they were found, for the message.
        splits: name, or where a row is -> the split that it means, or "".
        advice: what to do, for the message.
    """
    with_split = [name for name, split in splits.items() if split]
    without = [name for name, split in splits.items() if not split]
    if with_split and without:
        raise DataError(
            f"{path!r}: {with_split[0]!r} names a split and {without[0]!r} does not: {advice}; "
            f"--config.data.split={ALL} reads all, whatever their names"
        )


def by_column(
    path: str, located: Iterable[Located], columns: Sequence[str], bad: BadRecords
) -> dict[str, list[tuple[int, Located]]]:
    """The rows of each split, by a column whose cells are WORDS.

    Args:
        path: of the file, for messages.
        located: its rows.
        columns: names of the column, of which the first that a row has is read.
        bad: counts and limits the rows that cannot be used.

    Returns:
        Split -> its rows, each with its position in the file; {"": all} if no row names a split.

    Raises:
        DataError: a cell is no word of a split, some rows name a split and others do not, or there
            are more bad rows than allowed.
    """
    groups: dict[str, list[tuple[int, Located]]] = {}
    firsts: dict[str, str] = {}  # where the first row of a split is -> the split
    for position, entry in enumerate(located):
        if isinstance(entry.row, BadRecord):
            bad.skip(f"{entry.where}: {entry.row}")
            continue
        split = split_of_row(entry, columns)
        if split not in groups:
            firsts[entry.where] = split
        groups.setdefault(split, []).append((position, entry))
    require_all_or_none(path, firsts, FILL)
    return groups or {"": []}


def split_of_row(entry: Located, columns: Sequence[str]) -> str:
    """The split that a row names in the first of some columns that it has, or "".

    Raises:
        DataError: the cell is no word of a split.
    """
    row: Any = entry.row
    for column in columns:
        if column in row:
            return _split_of_cell(row[column], entry.where, column)
    return ""


def _split_of_cell(value: Any, where: str, column: str) -> str:
    word = "" if value is None else str(value).strip().lower()
    if not word:
        return ""
    if word not in WORDS:
        raise DataError(
            f"{where}: the column {column!r} holds {value!r:.40}: expected one of "
            f"{', '.join(WORDS)}; --config.data.split={ALL} reads all rows as one"
        )
    return WORDS[word]


def choose(
    splits: Splits, request: Request, heldout_names: tuple[str, ...] = (VALIDATION_SPLIT,)
) -> Dataset:
    """The examples that a run asks for: a split, or a part of the training split.

    Args:
        splits: of the data set.
        request: what is asked for.
        heldout_names: the splits that such data usually hold out, the first that there is.

    Raises:
        DataError: there is no such split, it would be both trained on and held out, or nothing is
            left to train on or to hold out.
    """
    name, share = _choose_name(splits, request, heldout_names)
    dataset = splits[name]
    if not share:
        return dataset
    part = dataset.hold_out(request.role, share)
    if request.role == TRAIN:
        return part
    if share < 0:
        return part.with_notes(
            f"to choose settings, a share of {-share:.3g} of the training data is held out "
            "(config.data.search)"
        )
    return part.with_notes(
        f"the data have no split to hold out, so a share of {share:.3g} is held out "
        "(config.data.heldout_share)"
    )


def _choose_name(
    splits: Splits, request: Request, heldout_names: tuple[str, ...]
) -> tuple[str, float]:
    """The split to read, and the share of it that is held out; 0 if all of it has the role."""
    share = request.heldout_share
    if not share and request.role == TRAIN:  # the path holds data of one role alone
        return _find_train(splits, request), 0.0
    heldout = _find_heldout(splits, request, heldout_names)
    if not share:
        return heldout or _only_split(splits, heldout_names[0], "heldout_split"), 0.0
    train = _find_train(splits, request)
    if heldout == train and request.heldout_split:
        raise DataError(
            f"{splits.path!r}: the split {train!r} would be both trained on and held out: set "
            f"config.data.split and heldout_split to two of {_names(splits)}"
        )
    if share > 0 and heldout and heldout != train:
        return (train if request.role == TRAIN else heldout), 0.0
    return train, share


def _find_train(splits: Splits, request: Request) -> str:
    if request.split == ALL:
        return _whole(splits)
    if request.split:
        return _find(splits, request.split)
    return TRAIN_SPLIT if TRAIN_SPLIT in splits else _only_split(splits, TRAIN_SPLIT, "split")


def _find_heldout(splits: Splits, request: Request, usual: tuple[str, ...]) -> str:
    """The split to hold out, or "" if there is none for it."""
    if request.heldout_split:
        return _find(splits, request.heldout_split)
    for name in usual:
        if name in splits:
            return name
    return ""


def _only_split(splits: Splits, wanted: str, key: str) -> str:
    """The name of all the data, if they name no splits; raises DataError if they name some."""
    if "" in splits:
        return ""
    raise DataError(
        f"{splits.path!r} has no split {wanted!r}, but {_names(splits)}: choose one of them by "
        f"config.data.{key}"
    )


def _whole(splits: Splits) -> str:
    """The name of all the data as one; raises DataError if such data are read by splits alone."""
    if "" in splits:
        return ""
    raise DataError(
        f"{splits.path!r} has the splits {_names(splits)}, which are not read as one: choose one "
        f"of them in place of config.data.split={ALL}"
    )


def _find(splits: Splits, name: str) -> str:
    """A split by its own name, or by another word for it; raises DataError if it is missing."""
    if name in splits:
        return name
    word, underscore, part = name.partition("_")  # dev_matched
    other = WORDS.get(word.lower(), word) + underscore + part
    if other in splits:
        return other
    if "" in splits:
        raise DataError(f"{splits.path!r} has no split {name!r}: it names no splits; leave it out")
    raise DataError(f"{splits.path!r} has no split {name!r}: it has {_names(splits)}")


def _names(splits: Splits) -> str:
    return listed([repr(name) for name in splits])
