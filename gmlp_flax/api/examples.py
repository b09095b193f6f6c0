"""Data of a program, written once to files that runs read, so that a run can be resumed without the
program."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from gmlp_flax import tasks
from gmlp_flax.checkpoints import RUN_FILE
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.errors import DataError, RunError, listed
from gmlp_flax.io import files as io_files
from gmlp_flax.io import json_files
from gmlp_flax.processes import distributed
from gmlp_flax.tasks.data import TaskData

# An example: its inputs, and its label or None.
Example = tuple[tuple[Any, ...], Any]

LABELS = ("label", "labels", "fine_label")  # columns, the first of which counts
# The keys of a dict of data -> the role. Of two for one role, the first counts.
ROLE_OF_KEY = {"train": TRAIN, "heldout": HELDOUT, "validation": HELDOUT, "test": HELDOUT}
KEYS_FILE = "keys.json"  # in the folder of the data: the keys of the config that stand for them
CLASSES_FILE = "classes.txt"


def store(
    data: Any, config: ConfigDict, folder: str, classes: Sequence[str] = ()
) -> dict[str, Any]:
    """The keys of a config, with their values, that stand for data.

    Args:
        data: as `train` takes them; or {"heldout": data} for that role alone.
        config: of the run that will read them.
        folder: where they are written. If they are there already, and the run has taken a step,
            they are not written again.
        classes: the names of the classes of images, in place of those in the data.

    Raises:
        DataError, RunError: the data or an example do not suit the task, or the folder is remote or
            holds other files.
    """
    by_role = _by_role(data)
    if all(_is_path(part) for part in by_role.values()):
        return {f"data.{role}": os.fspath(part) for role, part in by_role.items()}
    if io_files.is_remote(folder) or jax.process_count() > 1:
        raise RunError(
            f"data of a program are written to {folder}, by one process to its own disk: give "
            "paths as data"
        )
    folder = os.path.abspath(folder)
    keys_file = os.path.join(folder, KEYS_FILE)
    keys = _keys_of_run(folder, keys_file)
    if keys:
        distributed.say(f"note: the data are read from {folder}, where they were written before")
        return keys
    _make_empty(folder, keys_file)
    io_files.write(keys_file, b"{}")  # whose folder it is, until all is written
    keys = _write_all(by_role, config, folder, classes)
    io_files.write(keys_file, json.dumps(keys).encode())
    return keys


def _by_role(data: Any) -> dict[str, Any]:
    """The data of each role; those of training, if none is named."""
    by_role: dict[str, Any] = {}
    if isinstance(data, Mapping):
        for key, role in ROLE_OF_KEY.items():
            if key in data:
                by_role.setdefault(role, data[key])
    return by_role or {TRAIN: data}


def _is_path(data: Any) -> bool:
    return isinstance(data, str | os.PathLike)


def _keys_of_run(folder: str, keys_file: str) -> dict[str, Any]:
    """The keys that were written for a run that has taken a step; {} if there are none."""
    run_file = os.path.join(os.path.dirname(folder), RUN_FILE)
    if not os.path.exists(keys_file) or not os.path.exists(run_file):
        return {}
    return json_files.read(keys_file, dict)


def _make_empty(folder: str, keys_file: str) -> None:
    """Deletes what a start that took no step has written; raises RunError for a folder of others'
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
    """Writes the data of each role that is no path; returns the keys that stand for all."""
    labels = _Labels(classes or _first_class_names(by_role.values()))
    kind = tasks.find(config.task).Data
    keys: dict[str, Any] = {}
    for role, part in by_role.items():
        if _is_path(part):
            keys[f"data.{role}"] = os.fspath(part)
            continue
        target = os.path.join(folder, role)
        os.makedirs(target)
        keys[f"data.{role}"] = f"{target}.jsonl"
        _write_role(part, kind, config, target, labels)
    if kind.numbers_classes:
        if len(labels.names) < 2:
            [name] = labels.names
            raise DataError(f"the data have one class, {name!r}: give examples of two or more")
        path = os.path.join(folder, CLASSES_FILE)
        keys["data.class_map"] = path
        io_files.write(path, "\n".join(labels.names).encode())
    return keys


def _write_role(
    data: Any, kind: type[TaskData], config: ConfigDict, target: str, labels: "_Labels"
) -> None:
    """Writes examples as rows of `target`.jsonl, and files that rows name to the folder
    `target`."""
    with open(f"{target}.jsonl", "w", encoding="utf-8") as file:
        for number, (inputs, label) in enumerate(examples(data, labels.names)):
            if kind.numbers_classes:
                label = labels.number(label)
            row = kind.row(config, inputs, label, os.path.join(target, str(number)))
            file.write(f"{json.dumps(row)}\n")


class _Labels:
    """The names of classes, in the order of their numbers.

    Args:
        names: all of them; empty: those of the labels that are asked for, in their order.
    """

    def __init__(self, names: Sequence[str]):
        self.names = list(names)
        self._grows = not names

    def number(self, label: Any) -> int:
        """The number of a label's class; raises DataError if it has none."""
        name = str(label)
        if self._grows and label is not None and name not in self.names:
            self.names.append(name)
        if name not in self.names:
            anything = f"(input, label), or a dict with one of {', '.join(LABELS)}"
            raise DataError(
                f"an example has the label {label!r}: expected {listed(self.names) or anything}"
            )
        return self.names.index(name)


def examples(data: Any, names: Sequence[str] = ()) -> Iterator[Example]:
    """The examples of one role.

    Args:
        data: of one role, as `train` takes them.
        names: of classes: a label that is a number becomes the name at this place, unless it is a
            name itself. Data that have names of their own go before.

    Raises:
        DataError: there are none, or one has no input.
    """
    if not _is_data(data):
        raise DataError(f"the data are {data!r:.80}: expected examples, or arrays (inputs, labels)")
    names = list(class_names(data) or names)  # a copy: those of the caller may grow
    is_empty = True
    for row in _rows(data):
        is_empty = False
        inputs, label = _example(row)
        yield inputs, _named(label, names)
    if is_empty:
        raise DataError("there are no examples in the data: give one or more")


def _is_data(data: Any) -> bool:
    if isinstance(data, tuple):
        return len(data) == 2
    return hasattr(data, "__iter__") or hasattr(data, "__getitem__")


def _rows(data: Any) -> Iterator[Any]:
    """The rows of a table in memory, of arrays (inputs, labels), or what gives examples itself."""
    if hasattr(data, "keys"):  # a dict of columns, or a pandas.DataFrame
        columns = {name: data[name] for name in data}
        for values in _aligned(list(columns.values())):
            yield dict(zip(columns, values, strict=True))
    elif isinstance(data, tuple):
        yield from _aligned(data)
    else:
        yield from data


def _aligned(columns: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The rows of columns; raises DataError if one is no list or array, or some have more rows than
    others."""
    for column in columns:
        if not hasattr(column, "__len__") or getattr(column, "ndim", 1) == 0:
            raise DataError(
                f"the data have {column!r:.80} as a column: expected a list or an array"
            )
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        shown = " and ".join(str(length) for length in lengths)
        raise DataError(f"the data have {shown} rows: expected as many of each")
    return zip(*columns, strict=True)


def _example(row: Any) -> Example:
    """The inputs and the label of a row: a dict, (input, label), or an input alone."""
    if isinstance(row, Mapping):
        return _example_of_columns(row)
    if not isinstance(row, tuple):
        return (row,), None
    if len(row) != 2 or (isinstance(row[0], tuple) and not row[0]):
        raise DataError(f"an example is {row!r:.80}: expected an input, or (input, label)")
    inputs, label = row
    return inputs if isinstance(inputs, tuple) else (inputs,), label


def _example_of_columns(row: Mapping[str, Any]) -> Example:
    label = None
    for name in reversed(LABELS):
        label = row.get(name, label)
    inputs = [value for name, value in row.items() if name not in LABELS and _is_input(value)]
    if not inputs:
        raise DataError(
            f"an example has no input: it has {', '.join(row)}; expected text, or an image"
        )
    return tuple(inputs), label


def _is_input(value: Any) -> bool:
    """Whether a value in a row is a text, a path, an array of pixels or a Pillow image."""
    is_array = getattr(value, "ndim", 0) > 1
    return _is_path(value) or is_array or hasattr(value, "getexif")


def _named(label: Any, names: Sequence[str]) -> Any:
    """A label as a number, a text or None of Python; the name of its class, if it is the number of
    one."""
    if hasattr(label, "item"):
        label = label.item()
    if isinstance(label, int) and str(label) not in names and 0 <= label < len(names):
        return names[label]
    return label


def class_names(data: Any) -> list[str]:
    """The names that a `datasets.Dataset` has for its numbered labels; [] without any."""
    features = getattr(data, "features", None) or {}
    for name in LABELS:
        names = getattr(features.get(name), "names", None)
        if names:
            return list(names)
    return []


def _first_class_names(parts: Any) -> list[str]:
    for part in parts:
        names = class_names(part)
        if names:
            return names
    return []
