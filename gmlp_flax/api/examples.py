"""A program's data, written once to files that runs read, so that a run can be resumed without the
program."""

import filecmp
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import tasks
from gmlp_flax.checkpoints import RUN_FILE
from gmlp_flax.data import hugging_face
from gmlp_flax.data.classes import class_name
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.io import files as io_files
from gmlp_flax.io import json_files, records
from gmlp_flax.io.records import BadRecord
from gmlp_flax.processes import distributed
from gmlp_flax.tasks.data.base import TaskData
from gmlp_flax.tasks.language_modeling import LanguageModeling

# An example: its inputs, and its label or None.
Example = tuple[tuple[Any, ...], Any]

LABELS = ("label", "labels", "fine_label")  # columns, the first of which counts
# The keys of a dict of data -> the role. If two keys have one role, the first counts.
ROLE_OF_KEY = {"train": TRAIN, "heldout": HELDOUT, "validation": HELDOUT, "test": HELDOUT}
KEYS_FILE = "keys.json"  # in the folder of the data: the keys of the config that stand for them
MOST_HELDOUT = 1_000_000  # examples of a held-out stream
CHARACTERS_OF_TOKEN = 16  # more than tokens have on average
SECONDS_BETWEEN_LINES = 10


def store(
    data: Any, config: ConfigDict, folder: str, classes: Sequence[str] = ()
) -> dict[str, Any]:
    """The keys of a config, with their values, that stand for data.

    Args:
        data: as `train` takes them; or {"heldout": data} for that role alone.
        config: of the run that will read them.
        folder: where they are written. If the run has taken a step, they must equal the data that
            were written before.
        classes: the names of the classes in their order; (): the names that the data declare, as a
            `datasets.Dataset` with a ClassLabel does, or else in the order of their names.

    Raises:
        DataError, RunError: the data or an example do not suit the task, the folder is remote or
            holds other files, or the run was trained on other data.
    """
    by_role = _by_role(data)
    if all(_is_path(part) for part in by_role.values()):
        paths = {}
        for role, path in by_role.items():
            paths[f"data.{role}"] = io_files.user_path(path)
        return paths
    if io_files.is_remote(folder) or jax.process_count() > 1:
        raise RunError(
            f"data of a program are written to {folder}, by one process to its own disk: give "
            "paths as data"
        )
    folder = os.path.abspath(folder)
    keys_file = os.path.join(folder, KEYS_FILE)
    if _has_taken_a_step(folder, keys_file):
        workdir = os.path.dirname(folder)
        with tempfile.TemporaryDirectory(dir=workdir) as copy:
            _write_all(by_role, config, copy, classes)
            _require_same(folder, copy)
        return json_files.read(keys_file, dict)
    _make_empty(folder, keys_file)
    io_files.write(keys_file, b"{}")  # marks the folder as ours until all is written
    keys = _write_all(by_role, config, folder, classes)
    text = json.dumps(keys)
    io_files.write(keys_file, text.encode())
    return keys


def _by_role(data: Any) -> dict[str, Any]:
    """The data of each role; those of training, if none is named."""
    key_of_role: dict[str, str] = {}
    if isinstance(data, Mapping):
        for key, role in ROLE_OF_KEY.items():
            if key in data:
                key_of_role.setdefault(role, key)
    if not key_of_role:
        return {TRAIN: data}
    _say_unread(data, key_of_role)
    return {role: data[key] for role, key in key_of_role.items()}


def _say_unread(data: Mapping, key_of_role: Mapping[str, str]) -> None:
    """Names the parts of data that no role reads, in a line."""
    read = list(key_of_role.values())
    unread = [str(key) for key in data if key not in read]
    if unread:
        read_keys = " and ".join(read)
        unread_keys = ", ".join(unread)
        distributed.say(f"note: of the data, {read_keys} are read, and not {unread_keys}")


def _is_path(data: Any) -> bool:
    return isinstance(data, str | os.PathLike)


def _has_taken_a_step(folder: str, keys_file: str) -> bool:
    """Whether all data were written for a run that has taken a step since."""
    if not os.path.exists(keys_file):
        return False
    workdir = os.path.dirname(folder)
    run_file = os.path.join(workdir, RUN_FILE)
    return os.path.exists(run_file)


def _require_same(folder: str, copy: str) -> None:
    """Raises RunError if the files of two folders differ, apart from the keys."""
    written = _files_below(folder)
    written.discard(KEYS_FILE)
    written_now = _files_below(copy)
    different = sorted(written ^ written_now)
    if not different:
        names = sorted(written)
        _, different, unread = filecmp.cmpfiles(folder, copy, names, shallow=False)
        different += unread
    if different:
        workdir = os.path.dirname(folder)
        first = different[0]
        raise RunError(
            f"the data are not those that the run in {workdir} was trained on, "
            f"which are in {folder} ({first} differs): give those data, or another workdir"
        )


def _files_below(folder: str) -> set[str]:
    """The paths of all files in a folder and its subfolders, relative to it."""
    relative_paths = set()
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            relative_path = os.path.relpath(path, folder)
            relative_paths.add(relative_path)
    return relative_paths


def _make_empty(folder: str, keys_file: str) -> None:
    """Deletes what a run that took no step has written; raises RunError for a folder with other
    files."""
    if os.path.exists(keys_file):
        shutil.rmtree(folder)
    elif os.path.isdir(folder) and os.listdir(folder):
        raise RunError(
            f"{folder} is where the data would be written, and holds others: give another workdir"
        )


def _write_all(
    by_role: Mapping[str, Any], config: ConfigDict, folder: str, classes: Sequence[str]
) -> dict[str, Any]:
    """Writes the data of each role, except paths; returns the keys that stand for all."""
    task = tasks.find(config.task)
    kind = task.Data
    keys: dict[str, Any] = {}
    for role, part in by_role.items():
        key = f"data.{role}"
        if _is_path(part):
            keys[key] = io_files.user_path(part)
            continue
        target = os.path.join(folder, role)
        limit = limit_of(part, role, config, by_role)
        writer = RowWriter(kind, config, target, limit)
        writer.write(part)
        keys[key] = f"{target}.jsonl"
    column = kind.label_column(config)
    declared = classes or _first_class_names(by_role.values())
    if column and declared:
        info_file = os.path.join(folder, hugging_face.INFO_FILE)
        hugging_face.write_info(info_file, column, declared)
    return keys


class Limit(NamedTuple):
    """How much of a stream is written; without a limit, `most` is None.

    Attributes:
        most: examples or, of a language model, characters of text.
        of_text: whether characters are counted.
        is_error: whether more is an error, or the rest is not read.
    """

    most: int | None = None
    of_text: bool = False
    is_error: bool = False


def limit_of(data: Any, role: str, config: ConfigDict, by_role: Mapping[str, Any]) -> Limit:
    """How much of the data of a role a run can read. The length of a stream is not known, so its
    training examples are limited to those that the run's steps read."""
    if hasattr(data, "__len__"):
        return Limit()
    if role == HELDOUT:
        return Limit(MOST_HELDOUT, is_error=True)
    examples_read = config.steps * config.batch_size
    if HELDOUT not in by_role:
        trained_share = 1 - config.data.heldout_share
        examples_read = math.ceil(examples_read / trained_share)
    kind = tasks.find(config.task)
    if issubclass(kind, LanguageModeling):
        tokens_read = examples_read * config.model.length
        characters_read = tokens_read * CHARACTERS_OF_TOKEN
        return Limit(characters_read, of_text=True)
    return Limit(examples_read)


class RowWriter:
    """Writes examples as rows of `target`.jsonl, and files that rows name to `target`_files.

    Args:
        kind: the data of the task.
        config: of the run.
        target: the path without a suffix.
        limit: of the examples.
    """

    def __init__(self, kind: type[TaskData], config: ConfigDict, target: str, limit: Limit):
        self.kind = kind
        self.config = config
        self.target = target
        self.files = f"{target}_files"
        self.role = os.path.basename(target)
        self.has_classes = bool(kind.label_column(config))
        self.limit = limit

    def write(self, data: Any) -> None:
        """Writes the examples of a role, and says how many there are so far, every few seconds."""
        os.makedirs(self.files)
        last_report = time.monotonic()
        path = f"{self.target}.jsonl"
        with open(path, "w", encoding="utf-8") as file:
            for number, row in enumerate(self._rows(data), start=1):
                line = json.dumps(row)
                file.write(f"{line}\n")
                now = time.monotonic()
                if now - last_report > SECONDS_BETWEEN_LINES:
                    last_report = now
                    distributed.say(
                        f"writing the {self.role} data to {self.target}: {number:,} examples so far"
                    )

    def _rows(self, data: Any) -> Iterator[Mapping[str, Any]]:
        """The rows of examples, up to the limit."""
        most = self.limit.most
        size = 0
        for number, (inputs, label) in enumerate(examples(data)):
            row = self._row(inputs, label, number)
            size += self._size(inputs)
            if most is not None and size > most:
                self._stop(number)
                return
            yield row

    def _size(self, inputs: tuple[Any, ...]) -> int:
        """What an example counts towards the limit: its characters, or 1."""
        if not self.limit.of_text:
            return 1
        return sum(len(text) for text in inputs)

    def _row(self, inputs: tuple[Any, ...], label: Any, number: int) -> Mapping[str, Any]:
        """An example as a row. A class is written by its name and never by a number, which would
        mean a position in the names that the data declare."""
        path = os.path.join(self.files, f"{number}")
        if self.has_classes:
            try:
                label = class_name(label) or None
            except BadRecord as error:
                raise DataError(f"example {number}: {error}") from None
        return self.kind.row(self.config, inputs, label, path)

    def _stop(self, number: int) -> None:
        """Says that the rest of a stream is not read; raises DataError if it would have to be."""
        if self.limit.is_error:
            raise DataError(
                f"the {self.role} data are a stream of more than {number:,} examples, and each "
                "evaluation would read all of them: give fewer, such as "
                "list(itertools.islice(data, 10000))"
            )
        distributed.say(
            f"note: the first {number:,} examples of the stream of {self.role} data were written: "
            "the steps of this run read no more"
        )


def examples(data: Any) -> Iterator[Example]:
    """The examples of one role.

    Args:
        data: of one role, as `train` takes them. A label that is a number is the name of a class.
            If the data declare names, it is the position of one of them.

    Raises:
        DataError: there are none, or one has no input.
    """
    if not _is_data(data):
        raise DataError(f"the data are {data!r:.80}: expected examples, or arrays (inputs, labels)")
    names = class_names(data)
    is_empty = True
    for row in _rows(data):
        is_empty = False
        inputs, label = _example(row)
        yield inputs, _plain_label(label, names)
    if is_empty:
        raise DataError("there are no examples in the data: give one or more")


def _is_data(data: Any) -> bool:
    if isinstance(data, tuple):
        return len(data) == 2
    return hasattr(data, "__iter__") or hasattr(data, "__getitem__")


def _rows(data: Any) -> Iterator[Any]:
    """The rows of a table in memory, of arrays (inputs, labels), or of an iterable of examples."""
    if hasattr(data, "keys"):  # a dict of columns, or a pandas.DataFrame
        columns = {name: data[name] for name in data}
        all_values = list(columns.values())
        for values in _aligned(all_values):
            yield dict(zip(columns, values, strict=True))
    elif isinstance(data, tuple):
        yield from _aligned(data)
    else:
        yield from data


def _aligned(columns: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The rows of columns; raises DataError if one is not a list or array, or some have more rows
    than others."""
    for column in columns:
        is_scalar = getattr(column, "ndim", 1) == 0
        if is_scalar or not hasattr(column, "__len__"):
            raise DataError(
                f"the data have {column!r:.80} as a column: expected a list or an array"
            )
    lengths = list(map(len, columns))
    is_even = len(set(lengths)) <= 1
    if not is_even:
        shown = " and ".join(map(str, lengths))
        raise DataError(f"the data have {shown} rows: expected as many of each")
    return zip(*columns, strict=True)


def _example(row: Any) -> Example:
    """The inputs and the label of a row: a dict, (input, label), or an input without a label."""
    if isinstance(row, Mapping):
        return _example_of_columns(row)
    if not isinstance(row, tuple):
        return (row,), None
    if len(row) != 2:
        raise _malformed(row)
    inputs, label = row
    if not isinstance(inputs, tuple):
        return (inputs,), label
    if not inputs:
        raise _malformed(row)
    return inputs, label


def _malformed(row: tuple[Any, ...]) -> DataError:
    return DataError(f"an example is {row!r:.80}: expected an input, or (input, label)")


def _example_of_columns(row: Mapping[str, Any]) -> Example:
    label = None
    for name in reversed(LABELS):
        label = row.get(name, label)
    inputs = []
    for name, value in row.items():
        if name not in LABELS and _is_input(value):
            inputs.append(value)
    if not inputs:
        names = ", ".join(row)
        raise DataError(f"an example has no input: it has {names}; expected text, or an image")
    return tuple(inputs), label


def _is_input(value: Any) -> bool:
    """Whether a value in a row is a text, a path, an array of pixels or a Pillow image."""
    is_array = getattr(value, "ndim", 0) > 1
    is_pillow_image = hasattr(value, "getexif")
    return _is_path(value) or is_array or is_pillow_image


def _plain_label(label: Any, names: Sequence[str]) -> Any:
    """A label as Python's number, text or None; the name of its class, if it is the position of a
    name that the data declare. Raises DataError for an array of several numbers."""
    if hasattr(label, "item"):
        if np.size(label) != 1:
            shape = list(np.shape(label))
            raise DataError(
                f"a label is an array {shape}: expected text or a number; of one-hot labels give "
                "labels.argmax(-1)"
            )
        label = label.item()
    return records.named_cell(label, names)


def class_names(data: Any) -> list[str]:
    """The names that a `datasets.Dataset` has for its numbered labels; [] without any."""
    features = getattr(data, "features", None) or {}
    for name in LABELS:
        feature = features.get(name)
        names = getattr(feature, "names", None)
        if names:
            return list(names)
    return []


def _first_class_names(parts: Any) -> list[str]:
    for part in parts:
        names = class_names(part)
        if names:
            return names
    return []
