"""A description of a data set for people: its form, files, classes, columns and some examples."""

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.fingerprints import spread
from gmlp_flax.errors import counted, listed

SHOWN = 3  # examples
NAMES_SHOWN = 3  # of files
CLASSES_SHOWN = 20  # if there are more, only the smallest and the largest have their counts


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of some examples.

    Attributes:
        examples: the number of examples that were read.
        shortest, median, longest: tokens of an example, before it is cut.
        unknown: the share of [UNK] among the tokens.
        cut: the share of the examples that lose tokens.
    """

    examples: int
    shortest: int
    median: int
    longest: int
    unknown: float
    cut: float

    def __str__(self) -> str:
        if self.examples > 1:
            lengths = f"{self.shortest:,} to {self.longest:,}, in the median {self.median:,}"
        else:
            lengths = f"{self.longest:,}"
        examples = counted(self.examples, "example")
        return (
            f"{lengths}; {self.unknown:.1%} are [UNK]; {self.cut:.1%} of the examples are cut "
            f"(in {examples})"
        )


def count_tokens(ids: Sequence[np.ndarray], unknown_id: int, most: int | None = None) -> Tokens:
    """The tokens of some examples.

    Args:
        ids: the token ids of each example, int [tokens].
        unknown_id: the id of [UNK].
        most: how many tokens of an example are used; None if all are.
    """
    lengths = np.array([len(tokens) for tokens in ids])
    total = int(lengths.sum())
    unknown = 0
    for tokens in ids:
        unknown += np.count_nonzero(tokens == unknown_id)
    cut = 0.0
    if most is not None:
        is_cut = lengths > most
        cut = float(is_cut.mean())
    return Tokens(
        examples=len(ids),
        shortest=int(lengths.min()),
        median=int(np.median(lengths)),
        longest=int(lengths.max()),
        unknown=unknown / max(1, total),
        cut=cut,
    )


@dataclasses.dataclass(frozen=True)
class DataSummary:
    """What was read for a role, "train" or "heldout".

    Attributes:
        role: what the data are for.
        path, form, split: see Dataset.
        examples: the number of examples; None for documents, which are not counted before they are
            tokenized.
        units: the word for several examples: "images", "rows", "questions", "documents".
        files: names of the files; () for images in folders, where each image is a file.
        size: bytes of all files; None if it is not known.
        classes: name -> number of examples; None for a number that is not known.
        columns: names of the columns that were read.
        shown: some examples, a line each.
        notes: what the user should know.
        tokens: the tokens of some examples, for text.
    """

    role: str
    path: str
    form: str
    split: str
    examples: int | None
    units: str
    files: tuple[str, ...]
    size: int | None
    classes: Mapping[str, int | None]
    columns: tuple[str, ...]
    shown: tuple[str, ...]
    notes: tuple[str, ...]
    tokens: Tokens | None = None

    def rows(self) -> list[tuple[str, str]]:
        """The summary as pairs of a name and a value."""
        rows = [("form", self.form)]
        if self.path:
            rows.insert(0, ("read", self.path))
        if self.split:
            rows.append(("split", self.split))
        if self.files:
            rows.append(("files", names_of_files(self.files)))
        if self.size is not None:
            rows.append(("size", readable_size(self.size)))
        if self.examples is not None:
            rows.append((self.units, f"{self.examples:,}"))
        if self.columns:
            rows.append(("columns", ", ".join(self.columns)))
        if self.classes:
            rows.append(("labels", names_of_classes(self.classes)))
        if self.tokens is not None:
            rows.append(("tokens", str(self.tokens)))
        for number, example in enumerate(self.shown, start=1):
            rows.append((f"example {number}", example))
        for note in self.notes:
            rows.append(("note", note.removeprefix("note: ")))
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        names = [name for name, _ in rows]
        width = max(map(len, names))
        lines = [self.role]
        for name, value in rows:
            lines.append(f"  {name:<{width}}  {value}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True, repr=False)
class Inspection:
    """What was read for both roles. It has a display in terminals and in notebooks.

    Attributes:
        train, heldout: the summary of each role.
        notes: on both together, such as examples that are in both splits.
    """

    train: DataSummary
    heldout: DataSummary
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        train = str(self.train)
        heldout = str(self.heldout)
        lines = [train, heldout, *self.notes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """The display in notebooks: a table for each role."""
        parts = [_html_table(self.train), _html_table(self.heldout)]
        for note in self.notes:
            escaped = html.escape(note)
            parts.append(f"<p>{escaped}</p>")
        return "".join(parts)


def _html_table(summary: DataSummary) -> str:
    """A summary as a table in HTML, with the role as its caption."""
    caption = html.escape(summary.role)
    rows = []
    for name, value in summary.rows():
        header = html.escape(name)
        cell = html.escape(value)
        rows.append(f"<tr><th>{header}</th><td>{cell}</td></tr>")
    body = "".join(rows)
    return f"<table><caption>{caption}</caption>{body}</table>"


def summarize(dataset: Dataset, role: str, tokens: Tokens | None = None) -> DataSummary:
    """What was read of a data set.

    Args:
        dataset: the data set of a role.
        role: "train" or "heldout".
        tokens: the tokens of a text, if they are known.
    """
    names = [file.name for file in dataset.files]
    return DataSummary(
        role=role,
        path=dataset.path,
        form=dataset.form,
        split=dataset.split,
        examples=dataset.count,
        units=dataset.units,
        files=tuple(names),
        size=dataset.byte_size(),
        classes=class_sizes(dataset),
        columns=dataset.columns,
        shown=tuple(dataset.some(SHOWN)),
        notes=dataset.notes,
        tokens=tokens,
    )


def summarize_examples(examples: Sequence[Any], form: str, role: str) -> DataSummary:
    """A summary of examples, dicts of arrays, that come from no data set.

    Args:
        examples: by position.
        form: their name.
        role: "train" or "heldout".
    """
    shown = []
    for index in spread(len(examples), SHOWN):
        example = examples[index]
        arrays = []
        for name, value in example.items():
            shape = _shape(value)
            arrays.append(f"{name} {shape}")
        shown.append(", ".join(arrays))
    return DataSummary(
        role=role,
        path="",
        form=form,
        split="",
        examples=len(examples),
        units="examples",
        files=(),
        size=None,
        classes={},
        columns=(),
        shown=tuple(shown),
        notes=(),
    )


def _shape(value: Any) -> str:
    """A number as it is, or the type and the axes of an array."""
    array = np.asarray(value)
    if array.ndim == 0:
        return str(value)
    axes = list(array.shape)
    return f"{array.dtype} {axes}"


def line(dataset: Dataset, role: str) -> str:
    """What was read of a data set in one line, without its size and its examples, which take longer
    to compute."""
    parts = [dataset.form]
    if dataset.split:
        parts.append(f"split {dataset.split!r}")
    if dataset.count is not None:
        parts.append(f"{dataset.count:,} {dataset.units}")
    if dataset.files:
        names = [file.name for file in dataset.files]
        parts.append(names_of_files(names))
    if dataset.columns:
        columns = ", ".join(dataset.columns)
        parts.append(f"columns {columns}")
    if dataset.classes:
        sizes = class_sizes(dataset)
        parts.append(names_of_classes(sizes))
    text = "; ".join(parts)
    return f"{role}: {text}"


def class_sizes(dataset: Dataset) -> dict[str, int | None]:
    """Class -> number of its examples; None for a number that is not known."""
    counts = dataset.class_counts()
    if counts is None:
        return dict.fromkeys(dataset.classes)
    sizes = counts.tolist()
    pairs = zip(dataset.classes, sizes, strict=True)
    return dict(pairs)


def names_of_files(names: Sequence[str]) -> str:
    """The number of files, and some of their names."""
    count = counted(len(names), "file")
    shown = listed(names, NAMES_SHOWN)
    return f"{count} ({shown})"


def names_of_classes(sizes: Mapping[str, int | None]) -> str:
    """The number of classes and their names; if there are many, the smallest and the largest."""
    total = f"{len(sizes):,} classes"
    if len(sizes) == 1:
        total = "1 class"
    known = _known_sizes(sizes)
    if len(known) < len(sizes):
        shown = listed(sizes, CLASSES_SHOWN)
        return f"{total}: {shown}"
    if len(known) <= CLASSES_SHOWN:
        classes = [_with_size(name, known) for name in known]
        shown = ", ".join(classes)
        return f"{total}: {shown}"
    shown = listed(sizes, NAMES_SHOWN)
    smallest = _with_size(min(known, key=known.__getitem__), known)
    largest = _with_size(max(known, key=known.__getitem__), known)
    return f"{total}: {shown}; the smallest {smallest}, the largest {largest}"


def _known_sizes(sizes: Mapping[str, int | None]) -> dict[str, int]:
    known = {}
    for name, size in sizes.items():
        if size is not None:
            known[name] = size
    return known


def _with_size(name: str, sizes: Mapping[str, int]) -> str:
    size = sizes[name]
    return f"{name} ({size:,})"


def readable_size(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:,.4g} GB"
