"""A data set: the examples of one split by position, and what their reader knows about them."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gmlp_flax.data import holdout
from gmlp_flax.data.fingerprints import Fingerprint, spread
from gmlp_flax.errors import DataError
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord

LINE = 80  # columns of a line that shows an example
SIZES_READ = 10_000  # examples whose sizes are added up


class Examples(abc.ABC):
    """Examples by position: read-only, picklable, and safe to read from several threads.

    Attributes:
        units: the word for several examples, such as "images".
    """

    units: str = "examples"

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Any:
        """The example at a position, 0 to len - 1; raises BadRecord if it cannot be read."""

    @abc.abstractmethod
    def key(self, index: int) -> str:
        """The key that decides whether the example is held out (see `holdout`)."""

    @abc.abstractmethod
    def content(self, index: int) -> bytes:
        """The bytes that are the same for equal examples, for `checks`; b"" if they cannot be
        read."""

    def size(self, index: int) -> int | None:
        """The bytes of `content`, if they are known without reading it."""
        return None

    @abc.abstractmethod
    def fingerprint(self, classes: Sequence[str], labels: np.ndarray | None) -> Fingerprint:
        """The fingerprint of these examples with their labels (see `fingerprints`)."""

    def describe(self, index: int) -> str:
        """The example at a position in a line, for people; raises BadRecord if it cannot be
        read."""
        text = str(self[index])
        return line_of(text)

    def take(self, indices: np.ndarray) -> Examples:
        """The examples at `indices`, int [examples], in this order."""
        return Subset(self, indices)


class Wrapped(Examples):
    """The examples of `source`, except for what a subclass changes."""

    def __init__(self, source: Examples):
        self.source = source
        self.units = source.units

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        position = self.position(index)
        return self.source[position]

    def position(self, index: int) -> int:
        """The position in `source` of the example at `index`."""
        return index

    def key(self, index: int) -> str:
        position = self.position(index)
        return self.source.key(position)

    def content(self, index: int) -> bytes:
        position = self.position(index)
        return self.source.content(position)

    def size(self, index: int) -> int | None:
        position = self.position(index)
        return self.source.size(position)

    def describe(self, index: int) -> str:
        position = self.position(index)
        return self.source.describe(position)

    def fingerprint(self, classes: Sequence[str], labels: np.ndarray | None) -> Fingerprint:
        return self.source.fingerprint(classes, labels)


class Subset(Wrapped):
    """The examples of `source` at `indices`, int [examples], in this order."""

    def __init__(self, source: Examples, indices: np.ndarray | Sequence[int]):
        super().__init__(source)
        self.indices = np.asarray(indices, np.int64)

    def __len__(self) -> int:
        return len(self.indices)

    def position(self, index: int) -> int:
        position = self.indices[index]
        return int(position)


class Relabelled(Wrapped):
    """Examples whose labels only they know: the label l becomes `positions[l]`, int [classes]."""

    def __init__(self, source: Examples, positions: np.ndarray):
        super().__init__(source)
        self.positions = positions

    def __getitem__(self, index: int) -> dict[str, Any]:
        example = super().__getitem__(index)
        label = example["label"]
        return {**example, "label": self.positions[label]}


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The examples of one split of a data set.

    Attributes:
        path: the path that was read.
        form: the documented form that was recognized, in words.
        examples: by position. An image is a dict {"image": encoded bytes or pixels, "name"}, with
            "label" if `labels` is None; a row of labelled text is a `text_rows.TextRow`, and a
            question of SQuAD a `questions.Question`.
        split: the name of the split: "train", "validation", "test", or the data's own name for it;
            "" if the data have no splits.
        classes: names of the classes, in the order of the labels; () without classes.
        labels: int32 [examples], positions in `classes`, or float32 for numbers to predict; None
            if they are known only from the examples.
        files: the files that were read; () for images in folders, where each image is a file.
        columns: names of the columns that were read.
        notes: what the user should know about the data, a line each.
        stratified: whether a share is held out class by class.
        origin: the data set as it was read, if this one is a part of it or has other labels.
    """

    path: str
    form: str
    examples: Any
    split: str = ""
    classes: tuple[str, ...] = ()
    labels: Any = None
    files: tuple[File, ...] = ()
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stratified: bool = False
    origin: Dataset | None = None

    def __len__(self) -> int:
        return len(self.examples)

    @functools.cached_property
    def fingerprint(self) -> Fingerprint:
        """Identifies the data when a run resumes: the fingerprint of the whole split, as it was
        read."""
        if self.origin is not None:
            return self.origin.fingerprint
        return self.examples.fingerprint(self.classes, self.labels)

    def class_counts(self) -> np.ndarray | None:
        """The number of examples of each class, int [classes]; None if labels are not known."""
        if self.labels is None or not self.classes:
            return None
        class_count = len(self.classes)
        is_known = self.labels >= 0
        known = self.labels[is_known]
        return np.bincount(known, minlength=class_count)

    @property
    def name(self) -> str:
        """The path and the split, for messages: "'photos' (test)"."""
        path = repr(self.path)
        if not self.split:
            return path
        return f"{path} ({self.split})"

    @property
    def units(self) -> str:
        """The word for several examples, such as "images"."""
        return self.examples.units

    @property
    def count(self) -> int | None:
        """The number of examples; None if it is not known before all are read."""
        return len(self)

    def byte_size(self) -> int | None:
        """The bytes of the data: those of the files, or an estimate from some of the examples; None
        if they are not known."""
        if self.files:
            return sum(file.size for file in self.files)
        total = 0
        looked_at = spread(len(self), SIZES_READ)
        for index in looked_at:
            size = self.examples.size(index)
            if size is None:
                return None
            total += size
        estimate = total * len(self) / len(looked_at)
        return round(estimate)

    def some(self, count: int) -> list[str]:
        """Some examples with their labels, a line each, evenly spread."""
        lines = []
        for index in spread(len(self), count):
            try:
                example = self.examples.describe(index)
                line = example + self._describe_label(index)
            except (BadRecord, DataError, OSError) as error:
                line = f"cannot be read: {error}"
            lines.append(line)
        return lines

    def _describe_label(self, index: int) -> str:
        if self.labels is not None:
            label = self.labels[index]
        elif self.classes:
            example = self.examples[index]
            label = example["label"]
        else:
            return ""
        if not self.classes:
            return f"  -> {label:g}"
        if label < 0:
            return "  -> no label"
        name = self.classes[label]
        return f"  -> {name}"

    def with_notes(self, *notes: str) -> Dataset:
        """The same data set with further notes, without empty lines and lines that it has
        already."""
        all_notes = (*self.notes, *notes)
        lines = dict.fromkeys(all_notes)
        lines.pop("", None)
        return dataclasses.replace(self, notes=tuple(lines))

    def take(self, indices: np.ndarray) -> Dataset:
        """The examples at `indices`, int [examples], with the classes of all."""
        examples = self.examples.take(indices)
        labels = self.labels
        if labels is not None:
            labels = labels[indices]
        origin = None
        if isinstance(examples, Subset):
            origin = self.origin or self
        return dataclasses.replace(self, examples=examples, labels=labels, origin=origin)

    def hold_out(self, role: str, share: float) -> Dataset:
        """The examples to train on, or the held-out ones, if a share of all examples is held out.

        Args:
            role: "train" or "heldout".
            share: a negative share holds out as much from the other end (see `holdout`).

        Raises:
            DataError: nothing would be left for this role, or a class has a single example.
        """
        indices = range(len(self))
        keys = [self.examples.key(index) for index in indices]
        if self.stratified:
            groups = self._groups_to_share()
            chosen = holdout.stratified_members(keys, groups, role, share)
        else:
            chosen = holdout.members(keys, role, share)
        if not len(chosen):
            what = f"the examples of {self.path!r}"
            raise holdout.nothing_left(what, role, share)
        return self.take(chosen)

    def _groups_to_share(self) -> list[np.ndarray]:
        """The positions of the examples of each class, int [two or more]. A declared class without
        examples is left out."""
        groups = []
        examples_by_class = self._examples_by_class()
        for name, indices in examples_by_class.items():
            if len(indices) == 1:
                raise DataError(
                    f"{self.path!r}: the class {name!r} has a single example, which cannot be both "
                    "trained on and held out: add another, or remove the class"
                )
            if len(indices):
                groups.append(indices)
        return groups

    def _examples_by_class(self) -> dict[str, np.ndarray]:
        """Class -> positions of its examples; all examples as one class if labels are not
        known."""
        if self.labels is None:
            all_examples = np.arange(len(self))
            return {self.split: all_examples}
        by_label = np.argsort(self.labels, kind="stable")
        class_count = len(self.classes)
        counts = np.bincount(self.labels, minlength=class_count)
        ends = np.cumsum(counts)
        bounds = ends[:-1]
        groups = np.split(by_label, bounds)
        return dict(zip(self.classes, groups, strict=True))


def line_of(text: str) -> str:
    """A text in one line of at most LINE columns."""
    words = text.split()
    line = " ".join(words)
    if len(line) <= LINE:
        return line
    ellipsis = "..."
    shown = LINE - len(ellipsis)
    return line[:shown] + ellipsis


class Splits(Mapping[str, Dataset]):
    """The splits of a data set by name. A split is read when it is first used.

    Args:
        path: the path that was read.
        form: the documented form that was recognized, in words.
        readers: name -> a function that reads the split; the name is "" if the data have no splits.
    """

    def __init__(self, path: str, form: str, readers: Mapping[str, Callable[[], Dataset]]):
        self.path = path
        self.form = form
        self._readers = dict(readers)
        self._read: dict[str, Dataset] = {}

    @classmethod
    def of_groups(
        cls, path: str, form: str, groups: Mapping[str, Any], read_split: Callable[..., Dataset]
    ) -> Splits:
        """The splits that `read_split(split, group)` reads.

        Args:
            path, form: see above.
            groups: split -> its files, or whatever else it consists of.
            read_split: reads a split.
        """
        readers = {}
        for split, group in groups.items():
            readers[split] = functools.partial(read_split, split, group)
        return cls(path, form, readers)

    @classmethod
    def of_names(
        cls, path: str, form: str, names: Iterable[str], read_split: Callable[[str], Dataset]
    ) -> Splits:
        """The splits of these names that `read_split(split)` reads."""
        readers = {}
        for split in names:
            readers[split] = functools.partial(read_split, split)
        return cls(path, form, readers)

    def __getitem__(self, name: str) -> Dataset:
        if name not in self._read:
            read = self._readers[name]
            self._read[name] = read()
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __contains__(self, name: object) -> bool:
        return name in self._readers
