"""What was read of a data set, for people: its form, files, classes, columns and some examples."""

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
CLASSES_SHOWN = 20  # of more, the smallest and the largest have their counts


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of some examples.

    Attributes:
        examples: how many were looked at.
        shortest, median, longest: tokens of an example, before it is cut.
        unknown: the share of [UNK] among them.
        cut: the share of the examples that lose tokens.
    """

    examples: int
    shortest: int
    median: int
    longest: int
    unknown: float
    cut: float

    def __str__(self) -> str:
        lengths = f"{self.longest:,}"
        if self.examples > 1:
            lengths = f"{self.shortest:,} to {self.longest:,}, in the median {self.median:,}"
        return (
            f"{lengths}; {self.unknown:.1%} are [UNK]; {self.cut:.1%} of the examples are cut "
            f"(in {counted(self.examples, 'example')})"
        )


def count_tokens(ids: Sequence[np.ndarray], unknown_id: int, most: int | None = None) -> Tokens:
    """The tokens of some examples.

    Args:
        ids: of each example, int [tokens].
        unknown_id: that of [UNK].
        most: how many of an example are read; None if none is cut.
    """
    lengths = np.array([len(tokens) for tokens in ids])
    unknown = sum(np.count_nonzero(tokens == unknown_id) for tokens in ids)
    is_cut = np.zeros(len(ids), bool) if most is None else lengths > most
    return Tokens(
        examples=len(ids),
        shortest=int(lengths.min()),
        median=int(np.median(lengths)),
        longest=int(lengths.max()),
        unknown=unknown / max(1, int(lengths.sum())),
        cut=float(is_cut.mean()),
    )


@dataclasses.dataclass(frozen=True)
class DataSummary:
    """What was read for a role, "train" or "heldout".

    Attributes:
        role: what the data are for.
        path, form, split: see Dataset.
        examples: how many there are; None for documents, which are not counted before they are
            tokenised.
        units: what examples are called: "images", "rows", "questions", "documents".
        files: names of the files; () for images in folders, of which each is a file.
        size: bytes of all files; None if it is not known.
        classes: name -> number of examples; None for a number that is not known.
        columns: that were read.
        shown: some examples, a line each.
        notes: what the user should know.
        tokens: of text.
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
        """What there is to say, as names and values."""
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
        width = max(len(name) for name, _ in rows)
        lines = [self.role]
        lines += [f"  {name:<{width}}  {value}" for name, value in rows]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True, repr=False)
class Inspection:
    """What was read for both roles; it shows itself in a terminal and in a notebook.

    Attributes:
        train, heldout: of each role.
        notes: on both together, such as examples that are in both.
    """

    train: DataSummary
    heldout: DataSummary
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([str(self.train), str(self.heldout), *self.notes])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """For notebooks: a table of each role."""
        parts = []
        for summary in (self.train, self.heldout):
            rows = []
            for name, value in summary.rows():
                rows.append(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>")
            caption = f"<caption>{html.escape(summary.role)}</caption>"
            parts.append(f"<table>{caption}{''.join(rows)}</table>")
        for note in self.notes:
            parts.append(f"<p>{html.escape(note)}</p>")
        return "".join(parts)


def summarize(dataset: Dataset, role: str, tokens: Tokens | None = None) -> DataSummary:
    """What was read of a data set.

    Args:
        dataset: of a role.
        role: "train" or "heldout".
        tokens: of text, if they are known.
    """
    return DataSummary(
        role=role,
        path=dataset.path,
        form=dataset.form,
        split=dataset.split,
        examples=dataset.count,
        units=dataset.units,
        files=tuple(file.name for file in dataset.files),
        size=dataset.byte_size(),
        classes=class_sizes(dataset),
        columns=dataset.columns,
        shown=tuple(dataset.some(SHOWN)),
        notes=dataset.notes,
        tokens=tokens,
    )


def summarize_examples(examples: Sequence[Any], form: str, role: str) -> DataSummary:
    """What is known of examples, dicts of arrays, that come from no data set.

    Args:
        examples: by position.
        form: what they are called.
        role: "train" or "heldout".
    """
    shown = []
    for index in spread(len(examples), SHOWN):
        arrays = [f"{name} {_shape(value)}" for name, value in examples[index].items()]
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
    """A number, or the type and the axes of an array."""
    array = np.asarray(value)
    return str(value) if array.ndim == 0 else f"{array.dtype} {[*array.shape]}"


def line(dataset: Dataset, role: str) -> str:
    """What was read of a data set in one line, without its size and its examples, which take
    longer to find."""
    parts = [dataset.form]
    if dataset.split:
        parts.append(f"split {dataset.split!r}")
    if dataset.count is not None:
        parts.append(f"{dataset.count:,} {dataset.units}")
    if dataset.files:
        parts.append(names_of_files([file.name for file in dataset.files]))
    if dataset.columns:
        parts.append(f"columns {', '.join(dataset.columns)}")
    if dataset.classes:
        parts.append(names_of_classes(class_sizes(dataset)))
    return f"{role}: {'; '.join(parts)}"


def class_sizes(dataset: Dataset) -> dict[str, int | None]:
    """Class -> number of its examples; None for a number that is not known."""
    counts = dataset.class_counts()
    if counts is None:
        return dict.fromkeys(dataset.classes)
    return dict(zip(dataset.classes, counts.tolist(), strict=True))


def names_of_files(names: Sequence[str]) -> str:
    """How many files there are, and some of their names."""
    return f"{counted(len(names), 'file')} ({listed(names, NAMES_SHOWN)})"


def names_of_classes(sizes: Mapping[str, int | None]) -> str:
    """How many classes there are, and their names; of many, the smallest and the largest."""
    total = "1 class" if len(sizes) == 1 else f"{len(sizes):,} classes"
    known = {name: size for name, size in sizes.items() if size is not None}
    if len(known) < len(sizes):
        return f"{total}: {listed(sizes, CLASSES_SHOWN)}"
    if len(known) <= CLASSES_SHOWN:
        counts = [f"{name} ({size:,})" for name, size in known.items()]
        return f"{total}: {', '.join(counts)}"
    smallest = min(known, key=lambda name: known[name])
    largest = max(known, key=lambda name: known[name])
    return (
        f"{total}: {listed(sizes, NAMES_SHOWN)}; the smallest {smallest} ({known[smallest]:,}), "
        f"the largest {largest} ({known[largest]:,})"
    )


def readable_size(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:,.4g} GB"
