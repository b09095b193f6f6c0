"""Classes: their names, their order, and labels as positions in it, the same for all data.

The name of a class is the text of its label, without white space around it. If all names are whole
numbers, they are ordered by size. Names that a data set declares keep its order. All others are
ordered by their letters. Labels of two data sets are compared by these names, never by position.
"""

import dataclasses
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gmlp_flax.data.dataset import Dataset, Relabelled
from gmlp_flax.errors import DataError, counted, listed
from gmlp_flax.io.records import BadRecord

# The files of a run of images: the names of its classes, and words for people in the same order,
# which converted weights have.
CLASSES_FILE = "classes.json"
NAMES_FILE = "names.json"
UNLABELLED = -1

_WHOLE = re.compile(r"[+-]?\d{1,300}")  # Python refuses numbers with thousands of digits


def class_name(value: Any) -> str:
    """The name of the class that a label means: its text, stripped, in Unicode's form NFC.

    If a cell is not text, the name is its text in JSON: true, 1, 1.0. A cell without a label (None,
    NaN, or blanks) gives "".

    Raises:
        BadRecord: the label is neither text nor a number.
    """
    if value is None:
        return ""
    if isinstance(value, float) and math.isnan(value):
        return ""
    if not isinstance(value, str | bool | int | float):
        raise BadRecord(f"the label {value!r:.60}: expected text or a number")
    text = value if isinstance(value, str) else json.dumps(value)
    composed = unicodedata.normalize("NFC", text)
    return composed.strip()


def class_in_cell(value: Any, where: str, column: str) -> str:
    """The name of the class in a cell. Raises DataError if there is none; `where` is the place of
    the cell, for the message."""
    try:
        name = class_name(value)
    except BadRecord as error:
        raise DataError(f"{where}: {error} in the column {column!r}") from None
    if not name:
        raise DataError(f"{where}: no class in the column {column!r}, but {value!r}")
    return name


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """The names in the order of their labels: whole numbers by size, else all by their letters."""
    distinct = set(names)
    key = _by_number if _are_whole(distinct) else None
    in_order = sorted(distinct, key=key)
    return tuple(in_order)


def _are_whole(names: Iterable[str]) -> bool:
    """Whether all names are whole numbers."""
    return all(_WHOLE.fullmatch(name) for name in names)


def _by_number(name: str) -> tuple[int, str]:
    """The key that sorts names of whole numbers by size, and equal numbers by their letters."""
    return int(name), name


def positions(names: Sequence[str], classes: Sequence[str]) -> np.ndarray:
    """The position of each name in the classes: int32 [names]; raises KeyError for an unknown
    one."""
    position_of = {}
    for position, name in enumerate(classes):
        position_of[name] = position
    labels = [position_of[name] for name in names]
    return np.array(labels, np.int32)


def check_names(counts: Mapping[str, int], where: str, allow_letters: bool = False) -> None:
    """Refuses names that no class can have, and two names that differ only in capitals or blanks.

    Args:
        counts: name of the class -> its number of examples.
        where: what has these classes, for the message.
        allow_letters: whether `a` and `A` are two classes, as in folders of letters (EMNIST).

    Raises:
        DataError: a name is empty or not UTF-8, or two names are the same.
    """
    seen: dict[str, str] = {}
    for name, count in counts.items():
        if not name or not _is_utf8(name):
            raise DataError(f"{where}: {name!r} is not a name of a class: expected text in UTF-8")
        is_letter = allow_letters and len(name) == 1
        plain = name if is_letter else _plain(name)
        other = seen.setdefault(plain, name)
        if other != name:
            other_count = counts[other]
            raise DataError(
                f"{where}: the classes {other!r} ({other_count:,}) and {name!r} ({count:,}) "
                "differ only in capitals or blanks: write them the same way"
            )


def _plain(name: str) -> str:
    """A name in small letters, with one space between words: equal for names that are too alike."""
    words = name.casefold().split()
    return " ".join(words)


def _is_utf8(text: str) -> bool:
    """Whether a text has no lone surrogates, as names of files and strings in JSON may have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def from_names(
    names: Sequence[str], where: str, declared: Sequence[str] = (), allow_letters: bool = False
) -> tuple[tuple[str, ...], np.ndarray]:
    """The classes of examples, by the name of each example's class, and their labels.

    Args:
        names: the name of each example's class.
        where: what has these classes, for messages.
        declared: all names, in the order that the data set declares; () if it declares none.
        allow_letters: see `check_names`.

    Returns:
        classes: in their order.
        labels: int32 [examples].

    Raises:
        DataError: as in `check_names`; or a name is not declared, or is declared twice.
    """
    counts = Counter(names)
    if declared:
        classes = tuple(class_name(name) for name in declared)
        _check_declared(counts, classes, where)
    else:
        check_names(counts, where, allow_letters)
        classes = ordered(counts)
    labels = positions(names, classes)
    return classes, labels


def _check_declared(names: Iterable[str], classes: Sequence[str], where: str) -> None:
    """Refuses declared classes if two have the same name, and names that are not declared."""
    known = set(classes)
    quoted = map(repr, classes)
    expected = listed(quoted)
    if len(known) < len(classes):
        raise DataError(f"{where}: two of its classes have one name: {expected}")
    unknown = set(names) - known
    if not unknown:
        return
    name = min(unknown)
    problem = f"{where}: the class {name!r} is not one of {expected}"
    if _WHOLE.fullmatch(name):
        problem += ": a number is a position only in data that declare names of classes"
    raise DataError(problem)


def require_several(dataset: Dataset) -> None:
    """Raises DataError if a data set has fewer than two classes."""
    if len(dataset.classes) >= 2:
        return
    if dataset.classes:
        [only_class] = dataset.classes
        present = f"the class {only_class!r} alone"
    else:
        present = "no class"
    examples = counted(len(dataset), "example")
    raise DataError(
        f"{dataset.name}, read as {dataset.form}: {examples} with {present}: a classifier needs "
        "two classes or more; check the path"
    )


def in_order(dataset: Dataset, order: Sequence[str], where: str, partial: bool = False) -> Dataset:
    """The data set with the classes of a list, its labels mapped by name.

    Args:
        dataset: any; the order of its own classes does not matter.
        order: names of the classes.
        where: what has this list, for messages.
        partial: whether the data set may have no example of some classes.

    Raises:
        DataError: the data set has other classes, or fewer if that is not allowed.
    """
    names = _composed(dataset.classes)
    wanted = _composed(order)
    strange = _without(names, wanted)
    missing = _without(wanted, names)
    is_incomplete = bool(missing) and not partial
    if strange or is_incomplete:
        differences = _differences(dataset, order, strange, missing, where)
        raise DataError(differences)
    new_labels = positions(names, wanted)
    return relabelled(dataset, order, new_labels)


def _composed(names: Iterable[str]) -> list[str]:
    """Names in Unicode's form NFC."""
    return [unicodedata.normalize("NFC", name) for name in names]


def _without(names: Iterable[str], others: Iterable[str]) -> list[str]:
    """The names that are not among the others."""
    excluded = set(others)
    return [name for name in names if name not in excluded]


def relabelled(dataset: Dataset, classes: Sequence[str], new: np.ndarray) -> Dataset:
    """The data set with other classes: label l becomes new[l], int32 [classes of the data set]."""
    new_classes = tuple(classes)
    if new_classes == dataset.classes:
        return dataset
    origin = dataset.origin or dataset
    changed = dataclasses.replace(dataset, classes=new_classes, origin=origin)
    if dataset.labels is None:
        examples = Relabelled(dataset.examples, new)
        return dataclasses.replace(changed, examples=examples)
    labels = dataset.labels.copy()
    is_known = labels >= 0
    known_labels = labels[is_known]
    new_labels = new[known_labels]
    labels[is_known] = new_labels
    return dataclasses.replace(changed, labels=labels)


def absent(dataset: Dataset) -> list[str]:
    """The classes without any example in a data set; [] if it has no labels at all, like a test
    set.

    If the labels are known from the examples alone, these are the classes that the data set did not
    declare before `in_order`.
    """
    if isinstance(dataset.examples, Relabelled):
        declared = dataset.examples.positions
        is_absent = np.ones(len(dataset.classes), bool)
        is_absent[declared] = False
    else:
        counts = dataset.class_counts()
        if counts is None or not counts.any():
            return []
        is_absent = counts == 0
    labels = np.flatnonzero(is_absent)
    return [dataset.classes[label] for label in labels.tolist()]


def _differences(
    dataset: Dataset, order: Sequence[str], strange: list[str], missing: list[str], where: str
) -> str:
    name = dataset.name
    count = len(dataset.classes)
    wanted_count = len(order)
    parts = []
    if missing:
        only_in_order = listed(map(repr, missing))
        parts.append(f"{only_in_order} only there")
    if strange:
        only_in_data = listed(map(repr, strange))
        parts.append(f"{only_in_data} only in {name}")
    differences = ", ".join(parts)
    text = (
        f"{name} has {count} classes, and {where} has {wanted_count}: {differences}; "
        "give data with the same classes"
    )
    if _are_decimal(dataset.classes):
        text += ", or name the numbers by config.data.class_map=FILE (a class a line) or 'run'"
    return text


def _are_decimal(names: Iterable[str]) -> bool:
    return all(name.isdecimal() for name in names)


def named(dataset: Dataset, order: Sequence[str]) -> Dataset:
    """A data set whose classes are the numbers 0 to n - 1, with the names that these numbers mean.

    Args:
        dataset: returned unchanged if its classes have other names.
        order: the names of the classes 0, 1, ...

    Raises:
        DataError: a number is larger.
    """
    if not _are_decimal(dataset.classes):
        return dataset
    numbers = [int(name) for name in dataset.classes]
    largest = max(numbers, default=-1)
    count = len(order)
    last = count - 1
    if largest > last:
        raise DataError(
            f"{dataset.path!r} has a class {largest}, and config.data.class_map has "
            f"{count} classes, from 0 to {last}: give the list of these images"
        )
    positions_in_order = np.array(numbers, np.int32)
    return relabelled(dataset, order, positions_in_order)
