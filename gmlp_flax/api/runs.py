"""Runs in Python: a model is trained and scored. Data that a program gives are written once to files that runs read,
so that a run goes on without the program."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.api.model import Model, require_counts, require_model
from gmlp_flax.checkpoints.assets import Files, require_same
from gmlp_flax.errors import ConfigError, DataError, RunError, listed
from gmlp_flax.io import files as io_files
from gmlp_flax.io import json_files
from gmlp_flax.planning import meshes
from gmlp_flax.processes import distributed
from gmlp_flax.training import loading, loop
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition

LABELS = ("label", "labels", "fine_label")  # columns, in the order in which they are looked for
SIDES = {"train": ("train",), "heldout": ("heldout", "validation", "test")}
KEYS, CLASSES = "keys.json", "classes.txt"


def train(
    config: str | ConfigDict,
    workdir: str | os.PathLike[str],
    *,
    init: Model | None = None,
    data: Any = None,
    optimizer: optax.GradientTransformation | None = None,
    callbacks: Sequence[Callable[[int, dict[str, float]], object]] = (),
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Trains a model, as `gmlp train` does, or goes on where a run was interrupted.

        result = gmlp_flax.train("finetune_image:gmlp_s", "runs/flowers", init=model, data={"train": ..., "test": ...})
        model = gmlp_flax.load("runs/flowers")

    Args:
        config: a config file, as `gmlp train --config` takes it, or a config.
        workdir: the run folder.
        init: a model that the run starts from: its architecture, its tokenizer and its parameters, resized to other
            images and with a new head for other classes, as by config.init_from.
        data: what config.data.train takes; or a `datasets.Dataset`, a Grain dataset, a dict or a tuple (inputs, labels)
            of arrays, or an iterable of examples: dicts, (input, label), or texts alone. A dict with the keys "train"
            and "heldout", "validation" or "test" has one of these for each side. What is no path is written to
            workdir/data.
        optimizer: in the place of the config's, with a learning rate of its own.
        callbacks: functions (step, values), called with each line of the log and each evaluation; values have names
            such as "train/loss" and "eval/top1". What they raise ends the run.
        options: keys of the config with other values, such as {"steps": 100, "optimizer.learning_rate": 1e-3}.

    Returns:
        The content of result.json, or None if a signal stopped the run before its last step.

    Raises:
        ConfigError, DataError, RunError: the run cannot start or continue. The message is one line.
    """
    config = config_lib.open_config(config) if isinstance(config, str) else config.copy_and_resolve_references()
    workdir = os.fspath(workdir)
    if init is not None:
        require_model(init)
        config = _with_model_of(init, config)
    for name, value in (options or {}).items():
        config_lib.check_name(name, "options", config)
        try:
            config.update_from_flattened_dict({name: value})
        except (TypeError, ValueError) as error:
            raise ConfigError(f"options: config.{name} is {value!r}: {error}") from None
    if data is not None:
        config.update_from_flattened_dict(store(data, config, io_files.join(workdir, "data")))
    source = None if init is None else _source(init)
    return loop.train(meshes.settle(config, workdir), workdir, given=loop.Given(source, optimizer, callbacks))


def evaluate(model: Model, data: Any = None, *, batch_size: int | None = None) -> dict[str, float]:
    """The metrics of a model on held-out data, each example counted once.

    Args:
        model: made or loaded.
        data: of one side, as in `train`, or what config.data.heldout takes; None: the held-out data of its own run.
        batch_size: examples at once; None: as in its run.

    Raises:
        ConfigError, DataError, RunError: the data cannot be read, or do not suit the model.
    """
    require_model(model)
    require_counts(batch_size=1 if batch_size is None else batch_size)
    config = model.config.copy_and_resolve_references()
    config.eval.batch_size = batch_size or config.eval.batch_size
    with tempfile.TemporaryDirectory() as folder:
        if data is not None:
            config.update_from_flattened_dict(store({"heldout": data}, config, folder, [*model.classes]))
        task = tasks.find(config.task).without_data(config, model.task.assets())
        metrics, _ = Evaluator(task, model.partition)(model.params)
    return metrics


def _with_model_of(init: Model, config: ConfigDict) -> ConfigDict:
    """A config with the model of another one, and what belongs to it; of another task, its architecture alone."""
    new, old = config_lib.changed(config, block=init.config.model.block), config_lib.flat(init.config)
    kind, known = tasks.find(config.task), config_lib.keys(new)
    same = config.task == init.config.task
    taken = [name for name in known if name in old and name.startswith("model.") and (same or known[name].architecture)]
    new.update_from_flattened_dict({name: old[name] for name in (*taken, *kind.inherited_keys) if name in old})
    if "tokenizer" in new.data:
        new.data.tokenizer = ""
    return new


def _source(model: Model) -> loading.Source:
    own = model.task.assets()

    def read(partition: Partition, shared: Files) -> Any:
        require_same(own, shared, "the model given as init")
        return jax.device_put(model.params, partition.shardings(model.params))

    return loading.Source("the model given as init", model.config, own, read)


def store(data: Any, config: ConfigDict, folder: str, classes: list[str] | None = None) -> dict[str, Any]:
    """The keys of a config, with their values, that stand for data.

    Args:
        data: as in `train`; or {"heldout": data} for that side alone.
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
    if io_files.is_remote(folder) or jax.process_count() > 1:
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
        io_files.write(keys["data.class_map"], "\n".join(names).encode())
    io_files.write(marker, json.dumps(keys).encode())
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
