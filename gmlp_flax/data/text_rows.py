"""Labelled text in memory: rows of one text or two, and how a file's rows become a data set."""

import dataclasses
import difflib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from gmlp_flax.data import classes, fingerprints, rows
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
        texts: the texts, without white space around them.
        id: the id of its prediction.
        part: 1 for MNLI's mismatched examples, else 0.
    """

    texts: tuple[str, ...]
    id: str
    part: int = 0


class TextRows(Examples):
    """Rows of labelled text. Rows with the same first text are held out together."""

    units = "rows"

    def __init__(self, rows: Sequence[TextRow]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> TextRow:
        return self.rows[index]

    def key(self, index: int) -> str:
        row = self.rows[index]
        return row.texts[0]

    def content(self, index: int) -> bytes:
        row = self.rows[index]
        text = "\0".join(row.texts)
        return text.encode("utf-8", "surrogatepass")

    def size(self, index: int) -> int:
        row = self.rows[index]
        return sum(map(len, row.texts))

    def describe(self, index: int) -> str:
        row = self.rows[index]
        lines = [line_of(text) for text in row.texts]
        return " | ".join(lines)

    def take(self, indices: np.ndarray) -> "TextRows":
        rows = [self.rows[index] for index in indices.tolist()]
        return TextRows(rows)

    def fingerprint(self, classes: Sequence[str], labels: np.ndarray | None) -> Fingerprint:
        """A fingerprint of all texts and labels."""
        texts_of_rows = [row.texts for row in self.rows]
        columns = zip(*texts_of_rows, strict=True)
        texts = list(itertools.chain.from_iterable(columns))
        label_bytes = b"" if labels is None else labels.tobytes()
        return {
            "examples": len(self),
            "texts": fingerprints.of_texts(texts),
            "labels": fingerprints.digest([label_bytes]),
        }


class Columns(NamedTuple):
    """The columns of a file that are read; "" for a column that the file does not have."""

    texts: tuple[str, ...]
    label: str
    id: str = ""

    @property
    def read(self) -> tuple[str, ...]:
        """The names of all columns that are read."""
        names = (*self.texts, self.label, self.id)
        return tuple(name for name in names if name)


Label = str | float | None  # the name of a class, a number to predict, or None without one


class Labels:
    """Reads the labels of a task's rows: names of classes, or numbers.

    Args:
        task: the task. If it declares classes, a label is the name of a class or its number; else
            it is any text.
    """

    def __init__(self, task: TextTask):
        self.task = task
        self._names: dict[str, str] = {}
        if task.numbers is None:
            self._names = _spellings(task.labels)

    def read(self, value: Any, column: str) -> Label:
        """The label that a cell means, None if it has no label. Raises BadRecord for any other
        value."""
        if isinstance(value, Decimal):
            value = str(value)
        name = class_name(value)
        if not name or name in self.task.unlabelled:
            return None
        if self.task.numbers is not None:
            return _number(name, column, self.task.numbers)
        if not self._names:
            return name
        if name not in self._names:
            known = listed(map(repr, self.task.labels))
            raise BadRecord(f"the label {name!r} in {column!r}: expected {known}, or its number")
        return self._names[name]


def _spellings(labels: Sequence[str]) -> dict[str, str]:
    """Each spelling of a class in the files of a published task -> the name of the class. A name
    that is a word may be spelled as its number, which Long Range Arena writes as a float."""
    are_numbers = any(name.isdecimal() for name in labels)
    name_of = {name: name for name in labels}
    for position, name in enumerate(labels):
        number = name if are_numbers else str(position)
        name_of[number] = name
        name_of[f"{number}.0"] = name
    return name_of


def _number(text: str, column: str, interval: Interval) -> float:
    try:
        strict_text = text.replace("_", "?")  # only Python reads 1_000 as a number
        number = float(strict_text)
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
        column: the name of the column.
        words: the only words that the text may have; () for any text.

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
        _require_words(text, words)
    return text


def _require_words(text: str, words: Sequence[str]) -> None:
    """Raises BadRecord if a text has other words than these."""
    for word in text.split():
        if word in words:
            continue
        known = " ".join(words)
        raise BadRecord(f"the symbol {word[:40]!r}; expected one of {known}")


class Reading:
    """The rows of a split as they are read.

    Args:
        path: the path of the data, for messages.
        task: the task.
        bad: counts and limits the rows that cannot be used.
        note: a line for the user, or "".

    Attributes:
        seen: the number of rows so far, including those that cannot be used.
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
        """Reads the rows of a file, after those of earlier files.

        Raises:
            DataError: there are more bad rows than allowed.
        """
        numbered = enumerate(located, start=self.seen)
        self.add_numbered(numbered, columns, part)

    def add_numbered(
        self, numbered: Iterable[tuple[int, Located]], columns: Columns, part: int = 0
    ) -> None:
        """Like `add`, for rows with their positions. The position is the id of a row without
        one."""
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
        texts = []
        for column in columns.texts:
            text = text_of(row, column, self.task.words)
            interned = self._interned.setdefault(text, text)
            texts.append(interned)
        label = self._label(row, columns)
        row_id = self._id(row, columns, position)
        text_row = TextRow(tuple(texts), row_id, part)
        self.rows.append(text_row)
        self.labels.append(label)

    def _label(self, row: Row, columns: Columns) -> Label:
        name = columns.label
        if not name:
            self._refuse_label(row)
            return None
        if name not in row:
            raise BadRecord(f"no column {name!r}, found {listed(map(repr, row))}")
        return self._labels.read(row[name], name)

    def _refuse_label(self, row: Row) -> None:
        """Raises BadRecord if a row of JSON lines has a label, and the first row has none."""
        for name in self.task.label:
            if name in row:
                raise BadRecord(f"a column {name!r}, which the first row does not have")

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
            split: the name of the split.
            files: the files that were read.
            declared: the classes in their order, if the task or the data declare them.

        Raises:
            DataError: there is no row.
        """
        if not self.rows:
            of_split = f" in the split {split!r}" if split else ""
            raise DataError(f"{self.path!r} holds no example{of_split}; give other data")
        rows = self.rows
        labels: Any = self.labels
        notes = list(self.notes)
        labelled = [index for index, label in enumerate(labels) if label is not None]
        unlabelled_count = len(rows) - len(labelled)
        if labelled and unlabelled_count:
            left_out = counted(unlabelled_count, "row")
            notes.append(f"{self.path}: {left_out} without a label left out")
            rows = [rows[index] for index in labelled]
            labels = [labels[index] for index in labelled]
        class_names, positions = self._classes_of(labels, bool(labelled), declared)
        return Dataset(
            path=self.path,
            form=form,
            examples=TextRows(rows),
            split=split,
            classes=class_names,
            labels=positions,
            files=tuple(files),
            columns=self.columns.read,
            notes=tuple(notes),
        )

    def _classes_of(
        self, labels: Sequence[Any], are_labelled: bool, declared: Sequence[str]
    ) -> tuple[tuple[str, ...], np.ndarray]:
        """The classes and the position in them of each label, int32 [labels]; no classes and
        float32 [labels] if the labels are numbers."""
        if self.task.numbers is not None:
            numbers = np.array(labels, np.float32)  # None becomes NaN
            return (), numbers
        if not are_labelled:
            class_names = tuple(map(class_name, declared))
            unlabelled = np.full(len(labels), UNLABELLED, np.int32)
            return class_names, unlabelled
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
        start: starts to read a split.
        form, declared: see `Reading.finish`.
        columns: the columns of the file.
        groups: split -> its rows, from `splits.by_column`.
        members: the file, as the only member.
    """

    def read_split(split: str, numbered: Iterable[tuple[int, Located]]) -> Dataset:
        """The rows of a split."""
        reading = start()
        reading.add_numbered(numbered, columns)
        return reading.finish(form, split, members, declared)

    [file] = members
    return Splits.of_groups(file.path, form, groups, read_split)


def resolve_columns(
    path: str, header: Sequence[str], task: TextTask, ids: Sequence[str] = (), flags: str = ""
) -> Columns:
    """The columns of a file that a task reads.

    Args:
        path: the path of the file, for messages.
        header: the columns of the file.
        task: has the possible names of each column, which differ between editions.
        ids: possible names of the column of ids; the first one in the header is read.
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
    label = _first_of(task.label, header)
    row_id = _first_of(ids, header)
    return Columns(tuple(texts), label, row_id)


def _first_of(names: Iterable[str], header: Sequence[str]) -> str:
    for name in names:
        if name in header:
            return name
    return ""


def missing_column(
    path: str, names: Sequence[str], header: Sequence[str], advice: str = ""
) -> DataError:
    """The error if a file has no column with one of `names`. It lists the columns of the file,
    those with similar names first."""
    most = max(1, len(header))
    by_similarity = difflib.get_close_matches(names[0], header, n=most, cutoff=0.0)
    available = listed(map(repr, by_similarity)) or "none"
    wanted = " or ".join(map(repr, names))
    if rows.is_unseparated(header):
        advice = rows.SEPARATORS_ADVICE
    return DataError(f"{path}: no column {wanted}, found {available}{advice}")


def joined(parts: Sequence[Dataset]) -> Dataset:
    """The rows of several data sets of one form as one data set. Its split has the name of the
    first one's split, up to the underscore."""
    first = parts[0]
    split, _, _ = first.split.partition("_")
    rows: list[TextRow] = []
    members: list[File] = []
    notes: list[str] = []
    for part in parts:
        rows += part.examples.rows
        members += part.files
        notes += part.notes
    labels = [part.labels for part in parts]
    return dataclasses.replace(
        first,
        examples=TextRows(rows),
        split=split,
        labels=np.concatenate(labels),
        files=tuple(members),
        notes=tuple(dict.fromkeys(notes)),
    )
