"""Labelled text in memory: rows of one text or two, and what becomes of a file's rows."""

import dataclasses
import difflib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from gmlp_flax.data import classes, fingerprints
from gmlp_flax.data.classes import UNLABELLED, class_name
from gmlp_flax.data.dataset import Dataset, Examples, Splits, line_of
from gmlp_flax.data.finetuning.text_tasks import Interval, TextTask
from gmlp_flax.data.fingerprints import Fingerprint
from gmlp_flax.data.rows import Located, Row
from gmlp_flax.errors import DataError, counted, listed
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord, BadRecords


class TextRow(NamedTuple):
    """One text, or a pair of texts.

    Attributes:
        texts: without white space around them.
        id: what predictions are written under.
        part: 1 for MNLI's mismatched examples, else 0.
    """

    texts: tuple[str, ...]
    id: str
    part: int = 0


class TextRows(Examples):
    """Rows of labelled text; those with the same first text are held out together."""

    units = "rows"

    def __init__(self, rows: Sequence[TextRow]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> TextRow:
        return self.rows[index]

    def key(self, index: int) -> str:
        return self.rows[index].texts[0]

    def content(self, index: int) -> bytes:
        return "\0".join(self.rows[index].texts).encode("utf-8", "surrogatepass")

    def size(self, index: int) -> int:
        return sum(len(text) for text in self.rows[index].texts)

    def describe(self, index: int) -> str:
        return " | ".join(line_of(text) for text in self.rows[index].texts)

    def take(self, indices: np.ndarray) -> "TextRows":
        return TextRows([self.rows[index] for index in indices.tolist()])

    def fingerprint(self, classes: Sequence[str], labels: np.ndarray | None) -> Fingerprint:
        """All texts and labels."""
        by_column = zip(*(row.texts for row in self.rows), strict=True)
        texts = fingerprints.of_texts(list(itertools.chain.from_iterable(by_column)))
        label_bytes = b"" if labels is None else labels.tobytes()
        return {
            "examples": len(self),
            "texts": texts,
            "labels": fingerprints.digest([label_bytes]),
        }


class Columns(NamedTuple):
    """The columns of a file that are read; "" for one that is not there."""

    texts: tuple[str, ...]
    label: str
    id: str = ""

    @property
    def read(self) -> tuple[str, ...]:
        """The names of all of them."""
        return tuple(name for name in (*self.texts, self.label, self.id) if name)


Label = str | float | None  # the name of a class, a number to predict, or None without one


class Labels:
    """Reads the labels of a task's rows: names of classes, or numbers.

    Args:
        task: the task. If it declares classes, a label is the name of one or its number; else it
            is any text.
    """

    def __init__(self, task: TextTask):
        self.task = task
        self._names = _spellings(task.labels) if task.numbers is None else {}

    def read(self, value: Any, column: str) -> Label:
        """The label that a cell means; None without one. Raises BadRecord for another value."""
        name = str(value) if isinstance(value, Decimal) else class_name(value)
        if not name or name in self.task.unlabelled:
            return None
        if self.task.numbers is not None:
            return _number(name, column, self.task.numbers)
        if self._names and name not in self._names:
            known = listed(map(repr, self.task.labels))
            raise BadRecord(f"the label {name!r} in {column!r}: expected {known}, or its number")
        return self._names.get(name, name)


def _spellings(labels: Sequence[str]) -> dict[str, str]:
    """What stands for each class in a published task's files -> its name: the name or, of words,
    their number, which Long Range Arena writes as a float."""
    names = {name: name for name in labels}
    are_numbers = any(name.isdecimal() for name in labels)
    for position, name in enumerate(labels):
        number = name if are_numbers else str(position)
        names[number] = name
        names[f"{number}.0"] = name
    return names


def _number(text: str, column: str, interval: Interval) -> float:
    try:
        number = float(text.replace("_", "?"))  # 1_000 is a number in Python alone
    except ValueError:
        number = math.nan
    if not interval.least <= number <= interval.most:
        raise BadRecord(
            f"the label {text[:40]!r} in {column!r}: expected a number from {interval.least:.4g} "
            f"to {interval.most:.4g}, written with a decimal point"
        )
    return number


def text_of(row: Row, column: str, words: Sequence[str] = ()) -> str:
    """The text in a column of a row, without white space around it.

    Args:
        row: the row.
        column: its name.
        words: all that the text may consist of; () for any text.

    Raises:
        BadRecord: there is no such column, or no text in it.
    """
    if column not in row:
        raise BadRecord(f"no column {column!r}, found {listed(map(repr, row))}")
    value = row[column]
    if value is None:
        raise BadRecord(f"the column {column!r} is null: expected text")
    if not isinstance(value, str):
        kind = type(value).__name__
        raise BadRecord(f"the column {column!r} holds {kind} {value!r:.40}: expected text")
    text = value.strip()  # so that equal premises are equal
    if not text:
        raise BadRecord(f"the column {column!r} is empty: expected text")
    if words:
        for word in text.split():
            if word not in words:
                raise BadRecord(f"the symbol {word[:40]!r}; expected one of {' '.join(words)}")
    return text


class Reading:
    """The rows of a split as they are read.

    Args:
        path: of the data, for messages.
        task: the task.
        bad: counts and limits the rows that cannot be used.
        note: for the user; "" for none.

    Attributes:
        seen: how many rows there were, those that cannot be used among them.
    """

    def __init__(self, path: str, task: TextTask, bad: BadRecords, note: str = ""):
        self.path = path
        self.task = task
        self.bad = bad
        self.notes = [note] if note else []
        self.rows: list[TextRow] = []
        self.labels: list[Label] = []
        self.columns = Columns((), "")
        self.seen = 0
        self._labels = Labels(task)
        self._ids: set[str] = set()
        self._interned: dict[str, str] = {}  # Retrieval has each long document in many pairs

    def add(self, located: Iterable[Located], columns: Columns, part: int = 0) -> None:
        """Reads the rows of a file, which follow those of the files before.

        Raises:
            DataError: there are more bad rows than allowed.
        """
        self.add_numbered(enumerate(located, start=self.seen), columns, part)

    def add_numbered(
        self, numbered: Iterable[tuple[int, Located]], columns: Columns, part: int = 0
    ) -> None:
        """As `add`, of rows that are given with their positions, by which predictions call rows
        without an id."""
        self.columns = columns
        for position, (where, row) in numbered:
            self.seen = position + 1
            try:
                self._add_row(row, columns, position, part)
            except BadRecord as error:
                self.bad.skip(f"{where}: {error}")

    def _add_row(self, row: Row | BadRecord, columns: Columns, position: int, part: int) -> None:
        if isinstance(row, BadRecord):
            raise row
        texts = tuple(text_of(row, column, self.task.words) for column in columns.texts)
        label = self._label(row, columns)
        row_id = self._id(row, columns, position)
        interned = tuple(self._interned.setdefault(text, text) for text in texts)
        self.rows.append(TextRow(interned, row_id, part))
        self.labels.append(label)

    def _label(self, row: Row, columns: Columns) -> Label:
        name = columns.label
        if name and name in row:
            return self._labels.read(row[name], name)
        if name:
            raise BadRecord(f"no column {name!r}, found {listed(map(repr, row))}")
        for name in self.task.label:
            if name in row:  # of JSON lines
                raise BadRecord(f"a column {name!r}, which the first row does not have")
        return None

    def _id(self, row: Row, columns: Columns, position: int) -> str:
        if not columns.id:
            return str(position)
        value = row.get(columns.id)
        if not isinstance(value, str | int | float):
            raise BadRecord(f"the id {value!r} in {columns.id!r}: expected text or a number")
        row_id = str(value)
        if row_id in self._ids:
            raise BadRecord(f"the id {row_id!r} in {columns.id!r} is that of an earlier row")
        self._ids.add(row_id)  # predictions are written under it
        return row_id

    def finish(
        self, form: str, split: str, files: Sequence[File], declared: Sequence[str] = ()
    ) -> Dataset:
        """The data set of the rows that were read.

        Rows without a label are left out, unless no row has one, as in a test set.

        Args:
            form: the documented form, in words.
            split: its name.
            files: that were read.
            declared: the classes in their order, if the task or the data declare them.

        Raises:
            DataError: there is no row.
        """
        if not self.rows:
            of_split = f" in the split {split!r}" if split else ""
            raise DataError(f"{self.path!r} holds no example{of_split}; give other data")
        labelled = [index for index, label in enumerate(self.labels) if label is not None]
        notes = list(self.notes)
        if labelled and len(labelled) < len(self.rows):
            left_out = counted(len(self.rows) - len(labelled), "row")
            notes.append(f"{self.path}: {left_out} without a label left out")
        kept = labelled or list(range(len(self.rows)))
        class_names, labels = self._labels_of(kept, bool(labelled), declared)
        return Dataset(
            path=self.path,
            form=form,
            examples=TextRows([self.rows[index] for index in kept]),
            split=split,
            classes=class_names,
            labels=labels,
            files=tuple(files),
            columns=self.columns.read,
            notes=tuple(notes),
        )

    def _labels_of(
        self, kept: Sequence[int], are_labelled: bool, declared: Sequence[str]
    ) -> tuple[tuple[str, ...], np.ndarray]:
        """The classes and the labels of some rows: int32 or, of numbers, float32 [rows]."""
        labels: list[Any] = [self.labels[index] for index in kept]
        if self.task.numbers is not None:
            numbers = [math.nan if label is None else label for label in labels]
            return (), np.array(numbers, np.float32)
        if not are_labelled:
            class_names = tuple(class_name(name) for name in declared)
            return class_names, np.full(len(kept), UNLABELLED, np.int32)
        return classes.from_names(labels, self.path, declared)


def read_by_split(
    start: Callable[[], Reading],
    form: str,
    columns: Columns,
    groups: Mapping[str, Iterable[tuple[int, Located]]],
    members: Sequence[File],
    declared: Sequence[str] = (),
) -> Splits:
    """The splits of a file whose rows name them.

    Args:
        start: begins the reading of a split.
        form, declared: see `Reading.finish`.
        columns: of the file.
        groups: split -> its rows, from `splits.by_column`.
        members: the file.
    """

    def read_split(split: str) -> Dataset:
        """The rows of a split."""
        reading = start()
        reading.add_numbered(groups[split], columns)
        return reading.finish(form, split, members, declared)

    [file] = members
    readers = {split: functools.partial(read_split, split) for split in groups}
    return Splits(file.path, form, readers)


def resolve_columns(
    path: str, header: Sequence[str], task: TextTask, ids: Sequence[str] = (), flags: str = ""
) -> Columns:
    """The columns of a file that a task reads.

    Args:
        path: of the file, for messages.
        header: the columns that it has.
        task: names the columns, each by the names that it has in one edition or another.
        ids: names of the column of ids, of which the first that is there is read.
        flags: what else a user may do about a missing column.

    Raises:
        DataError: the column of a text is missing.
    """
    texts = []
    for names in task.texts:
        column = _first_of(names, header)
        if not column:
            raise missing_column(path, names, header, flags)
        texts.append(column)
    return Columns(tuple(texts), _first_of(task.label, header), _first_of(ids, header))


def _first_of(names: Iterable[str], header: Sequence[str]) -> str:
    for name in names:
        if name in header:
            return name
    return ""


def missing_column(
    path: str, names: Sequence[str], header: Sequence[str], advice: str = ""
) -> DataError:
    """The error of a file without a column, which is called by one of `names`; the columns that
    are there are listed, those of similar names first."""
    most = max(1, len(header))
    similar = difflib.get_close_matches(names[0], header, n=most, cutoff=0.0)
    there = listed(map(repr, similar)) or "none"
    wanted = " or ".join(map(repr, names))
    has_other_separator = len(header) == 1 and any(mark in header[0] for mark in ",;|\t")
    if has_other_separator:
        advice = ": columns are separated by commas in .csv and by tabs in .tsv files"
    return DataError(f"{path}: no column {wanted}, found {there}{advice}")


def joined(parts: Sequence[Dataset]) -> Dataset:
    """The rows of several data sets of one form as one, with the name of the first one's split
    before its underscore."""
    first = parts[0]
    split, _, _ = first.split.partition("_")
    rows: list[TextRow] = []
    read: list[File] = []
    notes: list[str] = []
    for part in parts:
        rows += part.examples.rows
        read += part.files
        notes += part.notes
    return dataclasses.replace(
        first,
        examples=TextRows(rows),
        split=split,
        labels=np.concatenate([part.labels for part in parts]),
        files=tuple(read),
        notes=tuple(dict.fromkeys(notes)),
    )
