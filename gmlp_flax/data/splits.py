"""The splits of a data set: the names that mean them, and which split a run reads.

A name means a split if it is one of WORDS, in any case: the whole name of a folder, or the first or
the last word of a file's name (any character except a letter ends a word). If the name of one
folder or file means a split, all names must. Otherwise it is unclear which examples are held out.
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
from gmlp_flax.io import compression, files
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord, BadRecords

TRAIN_SPLIT = "train"
VALIDATION_SPLIT = "validation"
TEST_SPLIT = "test"

# Word -> the split that it means, under its name in TFDS.
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
FILL = "name the split in each row, or in none"  # if some rows name a split and others do not

ALL = "all"  # a value of config.data.split: all the data, whatever splits their names mean


class Request(NamedTuple):
    """Which examples of a data set a run asks for.

    Attributes:
        role: "train" or "heldout".
        split, heldout_split: the splits to train on and to hold out; "" for the usual ones.
        heldout_share: the share of the training examples that is held out if there is no split for
            it; 0 if the path holds data of one role only.
    """

    role: str
    split: str = ""
    heldout_split: str = ""
    heldout_share: float = 0.0


def split_of_folder(name: str) -> str:
    """The split that a folder's name means, or ""."""
    word = name.lower()
    return WORDS.get(word, "")


def is_held_out(split: str) -> bool:
    """Whether a split is one to hold out: validation or test, also in parts such as
    validation_matched."""
    word, _, _ = split.partition("_")
    whole_split = split_of_folder(word)
    return whole_split in (VALIDATION_SPLIT, TEST_SPLIT)


def names_split(name: str) -> bool:
    """Whether the first or the last word of a name means a split."""
    words = _words(name)
    return any(word in WORDS for word in _ends(words))


def _ends(words: list[str]) -> list[str]:
    """The first and the last of some words."""
    return words[:1] + words[-1:]


def _words(name: str) -> list[str]:
    composed = unicodedata.normalize("NFC", name)
    words = re.findall(r"[^\W\d_]+", composed)
    return [word.lower() for word in words]


def split_of_file(name: str) -> str:
    """The split that a file's name means by its first or its last word, or "".

    Numbers and suffixes do not count: "train-00000-of-00010.parquet" and "train_2.txt" mean train.

    Raises:
        DataError: the two words mean different splits, or a word between them means one.
    """
    base = os.path.basename(name)
    words = _words(stem(base))
    meant = [WORDS[word] for word in _ends(words) if word in WORDS]
    if meant:
        first = meant[0]
        last = meant[-1]
        if first != last:
            raise DataError(f"{name!r} can mean the split {first!r} or {last!r}: rename it")
        return first
    for word in words:
        if word in WORDS:
            split = WORDS[word]
            raise DataError(
                f"{name!r} may mean the split {split!r}, but {word!r} is neither the first "
                f"nor the last word of its name: rename it; --config.data.split={ALL} reads all "
                "files whatever their names"
            )
    return ""


def stem(name: str) -> str:
    """A file's name without the numbers of a shard, or without its suffixes."""
    shard = files.SHARD.match(name)
    if shard:
        return shard["stem"]
    ending = compression.suffix(name) + compression.compression(name)
    length = len(name) - len(ending)
    return name[:length]


def by_name(path: str, listing: Iterable[File]) -> dict[str, list[File]]:
    """The data files of each split, by the names of folders or, if these mean none, of the files.

    If the package datasets has written its list of splits, each folder is a split.

    Args:
        path: the folder, for messages.
        listing: the files below it; those that describe data are left out.

    Returns:
        Split -> its files, in order; {"": all files} if no name means a split.

    Raises:
        DataError: some names mean a split and others do not, or a name means two.
    """
    listing = list(listing)
    data = [file for file in listing if not hugging_face.is_metadata(file.name)]
    names = [file.name for file in data]
    if hugging_face.declares_splits(listing):
        split_of = {name: _declared_split(name) for name in names}
    else:
        split_of = _splits_of_names(names)
    require_all_or_none(path, split_of)
    require_one_word(path, split_of)
    groups: dict[str, list[File]] = {}
    for file in data:
        split = split_of[file.name]
        members = groups.setdefault(split, [])
        members.append(file)
    return groups


def _splits_of_names(names: Sequence[str]) -> dict[str, str]:
    """Name of a file -> the split that its folders mean or, if no folders do, its own name."""
    of_folders = {name: _split_of_folders(name) for name in names}
    is_split_by_folders = any(of_folders.values())
    if is_split_by_folders:
        return of_folders
    return {name: split_of_file(name) for name in names}


def group_files(
    path: str, listing: Sequence[File], members: Sequence[File], ignore_splits: bool = False
) -> dict[str, list[File]]:
    """The data files of each split; {"": all} for a single file, or if all files are one data set.

    Args:
        path: the path of the data.
        listing: all files there.
        members: the files with data.
        ignore_splits: whether all files are one data set, whatever their names mean.

    Raises:
        DataError: as in `by_name`.
    """
    if ignore_splits or rows.is_file(path, listing):
        return {"": list(members)}
    metadata = hugging_face.metadata(listing)
    named_files = [*members, *metadata]
    return by_name(path, named_files)


def _declared_split(name: str) -> str:
    """The split of a file: the name of its first folder, or the usual name if that is a word for a
    split; "" for a file in no folder."""
    folder, slash, _ = name.partition("/")
    if not slash:
        return ""
    return split_of_folder(folder) or folder


def _split_of_folders(name: str) -> str:
    """The split that the first folder in a file's path means that means one, or ""."""
    *folders, _ = name.split("/")
    for folder in folders:
        split = split_of_folder(folder)
        if split:
            return split
    return ""


def require_all_or_none(path: str, splits: Mapping[str, str], advice: str = RENAME) -> None:
    """Refuses names, or rows, if some mean a split and others do not.

    Args:
        path: the path of the data, for the message.
        splits: name, or place of a row -> the split that it means, or "".
        advice: what to do, for the message.
    """
    with_split = []
    without = []
    for name, split in splits.items():
        names = with_split if split else without
        names.append(name)
    if with_split and without:
        raise DataError(
            f"{path!r}: {with_split[0]!r} names a split and {without[0]!r} does not: {advice}; "
            f"--config.data.split={ALL} reads all, whatever their names"
        )


def require_one_word(path: str, splits: Mapping[str, str]) -> None:
    """Refuses names that mean one split by different words, such as dev.csv beside val.csv: they may
    be two versions of the split.

    Args:
        path: the path of the data, for the message.
        splits: name of a file -> the split that it means, or "".
    """
    first_of_split: dict[str, str] = {}  # split -> the first name
    for name, split in splits.items():
        first = first_of_split.setdefault(split, name)
        if split and _word_of(first, split) != _word_of(name, split):
            raise DataError(
                f"{path!r}: {first!r} and {name!r} both mean the split {split!r}: move or rename "
                f"one of them; --config.data.split={ALL} reads all, whatever their names"
            )


def _word_of(name: str, split: str) -> str:
    """The word by which a file's folders or, if they mean nothing, its own name means a split."""
    *folders, base = name.split("/")
    words = [folder.lower() for folder in folders]
    words_of_base = _words(stem(base))
    words += _ends(words_of_base)
    for word in words:
        if WORDS.get(word) == split:
            return word
    return split


def by_column(
    path: str, located: Iterable[Located], columns: Sequence[str], bad: BadRecords
) -> dict[str, list[tuple[int, Located]]]:
    """The rows of each split, by a column whose cells are WORDS.

    Args:
        path: the path of the file, for messages.
        located: its rows.
        columns: possible names of the column; the first one that a row has is read.
        bad: counts and limits the rows that cannot be used.

    Returns:
        Split -> its rows, each with its position in the file; {"": all} if no row names a split.

    Raises:
        DataError: a cell is not a word for a split, some rows name a split and others do not, or
            there are more bad rows than allowed.
    """
    groups: dict[str, list[tuple[int, Located]]] = {}
    split_of_first: dict[str, str] = {}  # place of the first row of a split -> the split
    for position, entry in enumerate(located):
        if isinstance(entry.row, BadRecord):
            bad.skip(f"{entry.where}: {entry.row}")
            continue
        split = split_of_row(entry, columns)
        if split not in groups:
            split_of_first[entry.where] = split
            groups[split] = []
        members = groups[split]
        members.append((position, entry))
    require_all_or_none(path, split_of_first, FILL)
    return groups or {"": []}


def refuse_other_capitals(where: str, header: Iterable[str], column: str) -> None:
    """Raises DataError if the column that names splits is written in other capitals: its rows would
    all be trained on."""
    for name in header:
        if name != column and name.strip().casefold() == column:
            raise DataError(
                f"{where}: the column {name!r} is not read: rename it to {column!r} if it assigns "
                "rows to splits, or to another word if not"
            )


def split_of_row(entry: Located, columns: Sequence[str]) -> str:
    """The split that a row names in the first of some columns that it has, or "".

    Raises:
        DataError: the cell is not a word for a split.
    """
    row: Any = entry.row
    for column in columns:
        if column in row:
            return _split_of_cell(row[column], entry.where, column)
    return ""


def _split_of_cell(value: Any, where: str, column: str) -> str:
    if value is None:
        return ""
    text = str(value).strip()
    word = text.lower()
    if not word:
        return ""
    if word not in WORDS:
        known = ", ".join(WORDS)
        raise DataError(
            f"{where}: the column {column!r} holds {value!r:.40}: expected one of "
            f"{known}; --config.data.split={ALL} reads all rows as one"
        )
    return WORDS[word]


def choose(
    splits: Splits, request: Request, heldout_names: tuple[str, ...] = (VALIDATION_SPLIT,)
) -> Dataset:
    """The examples that a run asks for: a split, or a part of the training split.

    Args:
        splits: the splits of the data set.
        request: which examples are requested.
        heldout_names: the splits that such data usually hold out; the first that exists is used.

    Raises:
        DataError: there is no such split, a split would be both trained on and held out, or nothing
            is left to train on or to hold out.
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
    if not share and request.role == TRAIN:  # the path holds data of one role only
        return _find_train(splits, request), 0.0
    heldout = _find_heldout(splits, request, heldout_names)
    if not share:
        name = heldout or _only_split(splits, heldout_names[0], "heldout_split")
        return name, 0.0
    train = _find_train(splits, request)
    if heldout == train and request.heldout_split:
        raise DataError(
            f"{splits.path!r}: the split {train!r} would be both trained on and held out: set "
            f"config.data.split and heldout_split to two of {_names(splits)}"
        )
    if share > 0 and heldout and heldout != train:
        name = train if request.role == TRAIN else heldout
        return name, 0.0
    return train, share


def _find_train(splits: Splits, request: Request) -> str:
    if request.split == ALL:
        return _whole(splits)
    if request.split:
        return _find(splits, request.split)
    if TRAIN_SPLIT in splits:
        return TRAIN_SPLIT
    return _only_split(splits, TRAIN_SPLIT, "split")


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
    """The name of all the data as one; raises DataError if the data are read only by splits."""
    if "" in splits:
        return ""
    raise DataError(
        f"{splits.path!r} has the splits {_names(splits)}, which cannot be read as one: choose one "
        f"of them in place of config.data.split={ALL}"
    )


def _find(splits: Splits, name: str) -> str:
    """The name of a split that is called by its name or another word for it; raises DataError if it
    is missing."""
    if name in splits:
        return name
    word, underscore, part = name.partition("_")  # dev_matched
    usual_word = WORDS.get(word.lower(), word)
    usual_name = usual_word + underscore + part
    if usual_name in splits:
        return usual_name
    if "" in splits:
        raise DataError(f"{splits.path!r} has no split {name!r}: it names no splits; leave it out")
    raise DataError(f"{splits.path!r} has no split {name!r}: it has {_names(splits)}")


def _names(splits: Splits) -> str:
    return listed(map(repr, splits))
