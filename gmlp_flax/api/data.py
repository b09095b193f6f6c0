"""Data that a program gives, as files that runs read: written once, so that a run goes on without the program."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from gmlp_flax import tasks
from gmlp_flax.errors import DataError, RunError, listed
from gmlp_flax.io import files, json_files
from gmlp_flax.processes import distributed

LABELS = ("label", "labels", "fine_label")  # columns, in the order in which they are looked for
SIDES = {"train": ("train",), "heldout": ("heldout", "validation", "test")}
KEYS, CLASSES = "keys.json", "classes.txt"


def store(data: Any, config: ConfigDict, folder: str, classes: list[str] | None = None) -> dict[str, Any]:
    """The keys of a config, with their values, that stand for data.

    Args:
        data: see `train`; or {"heldout": data} for that side alone.
        config: of the run that will read them.
        folder: where they are written. If they are there already, they are not written again.
        classes: the names of the classes of images, in place of those in the data.

    Raises:
        DataError, RunError: the data or an example do not suit the task, or the folder is remote.
    """
    sides = data if isinstance(data, Mapping) else {}
    given = {side: sides[name] for side, names in SIDES.items() for name in names[::-1] if name in sides}
    given = given or {"train": data}
    if all(isinstance(one, str | os.PathLike) for one in given.values()):
        return {f"data.{side}": os.fspath(one) for side, one in given.items()}
    if files.is_remote(folder) or jax.process_count() > 1:
        raise RunError(f"data of a program are written to {folder}, by one process to its own disk: give paths as data")
    folder = os.path.abspath(folder)
    if os.path.exists(marker := os.path.join(folder, KEYS)):
        distributed.say(f"note: the data are read from {folder}, where they were written before")
        return json_files.read(marker, dict)
    shutil.rmtree(folder, ignore_errors=True)
    keys, names = {}, [*(classes or next(filter(None, map(_class_names, given.values())), []))]
    grows, kind = not names, tasks.find(config.task)
    for side, one in given.items():
        if isinstance(one, str | os.PathLike):
            keys[f"data.{side}"] = os.fspath(one)
            continue
        os.makedirs(target := os.path.join(folder, side))
        keys[f"data.{side}"] = path = f"{target}.jsonl"
        with open(path, "w", encoding="utf-8") as file:
            for number, (inputs, label) in enumerate(examples(one, names)):
                if kind.predicts_files:
                    label = _number(label, names, grows)
                elif not all(isinstance(text, str) for text in inputs):
                    raise DataError(f"an example of text is {type(inputs[0]).__name__}: expected str")
                print(json.dumps(kind.row(config, inputs, label, os.path.join(target, str(number)))), file=file)
    if kind.predicts_files:  # images have the numbers of classes, which need not be in the order of their names
        keys["data.class_map"] = os.path.join(folder, CLASSES)
        files.write(keys["data.class_map"], "\n".join(names).encode())
    files.write(marker, json.dumps(keys).encode())
    return keys


def _number(label: Any, names: list[str], grows: bool) -> int:
    """The position of a label in the names, to which it is added if they grow."""
    if grows and label is not None and str(label) not in names:
        names.append(str(label))
    if str(label) not in names:
        expected = listed(names) or f"(input, label), or a dict with one of {', '.join(LABELS)}"
        raise DataError(f"an example has the label {label!r}: expected {expected}")
    return names.index(str(label))


def examples(data: Any, names: list[str]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The examples of one side: the inputs of each, and its label or None. Numbered labels become names, if there are
    any.

    Raises:
        DataError: there are none.
    """
    names, rows, row = [*(_class_names(data) or names)], data, None
    if isinstance(data, Mapping):  # of arrays
        rows = (dict(zip(data, values, strict=True)) for values in zip(*data.values(), strict=True))
    elif isinstance(data, tuple):  # of inputs and labels
        rows = zip(*data, strict=True)
    for row in rows:
        if isinstance(row, Mapping):
            label = next((row[name] for name in LABELS if name in row), None)
            inputs = tuple(value for name, value in row.items() if name not in LABELS and _is_input(value))
        else:
            inputs, label = row if isinstance(row, tuple) else (row, None)
            inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        label = getattr(label, "item", lambda label=label: label)()
        if isinstance(label, int) and str(label) not in names and 0 <= label < len(names):
            label = names[label]
        if not inputs:
            raise DataError(f"an example has no input: it has {', '.join(row)}; expected text, or an image")
        yield inputs, label
    if row is None:
        raise DataError("there are no examples in the data: give one or more")


def _is_input(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) or getattr(value, "ndim", 0) > 1 or hasattr(value, "getexif")


def _class_names(data: Any) -> list[str]:
    """The names that a `datasets.Dataset` has for its numbered labels."""
    features = getattr(data, "features", None) or {}
    return next(([*features[name].names] for name in LABELS if hasattr(features.get(name), "names")), [])
