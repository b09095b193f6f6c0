"""Runs in Python: a model is trained, scored, and probed: what its frozen features tell of classes.

Data that a program gives are written once to files that runs read, so that a run goes on without
the program.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict
from scipy import optimize

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.api.factory import as_classifier
from gmlp_flax.api.model import POOLS, Model, require_counts, require_model
from gmlp_flax.checkpoints import RUN_FILE
from gmlp_flax.checkpoints.assets import Files, require_same
from gmlp_flax.data import pipeline
from gmlp_flax.errors import ConfigError, DataError, RunError, listed
from gmlp_flax.io import files as io_files
from gmlp_flax.io import json_files
from gmlp_flax.planning import plan
from gmlp_flax.processes import distributed
from gmlp_flax.training import loading, loop
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition

LABELS = ("label", "labels", "fine_label")  # columns, in the order in which they are looked for
SIDES = {"train": ("train",), "heldout": ("heldout", "validation", "test")}
KEYS, CLASSES = "keys.json", "classes.txt"
NEIGHBOURS, TEMPERATURE = 20, 0.07  # as DINO (arXiv 2104.14294)
SHOTS, SEEDS, RIDGE, BIAS = (1, 5, 10, 25), 3, 2.0**10, 100.0  # as big_vision's fewshot_lsr
STEPS, DECAY = 100, 1e-3  # of the linear classifier: L-BFGS, and its weights' decay

# float32 [examples, channels], and the labels, int [examples]
Features = tuple[np.ndarray, np.ndarray]


def train(
    config: str | ConfigDict,
    workdir: str | os.PathLike[str],
    *,
    init: Model | None = None,
    data: Any = None,
    optimizer: optax.GradientTransformation | None = None,
    callbacks: Callable[[int, dict[str, float]], object]
    | Sequence[Callable[[int, dict[str, float]], object]] = (),
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Trains a model, as `gmlp train` does, or goes on where a run was interrupted.

        result = gmlp_flax.train("finetune_image:gmlp_s", "runs/flowers", init=model, data={"train":
        ..., "test": ...}) model = gmlp_flax.load("runs/flowers")

    Args:
        config: a config file, as `gmlp train --config` takes it, or a config.
        workdir: the run folder.
        init: a model that the run starts from: its architecture, its tokenizer and its parameters,
            resized to other images and with a new head for other classes, as by config.init_from.
        data: what config.data.train takes; or a `datasets.Dataset`, a Grain dataset, a dict or a
            tuple (inputs, labels)
            of arrays, or an iterable of examples: dicts, (input, label), or texts alone. A dict
            with the keys "train" and "heldout", "validation" or "test" has one of these for each
            side. What is no path is written to workdir/data.
        optimizer: in the place of the config's, with a learning rate of its own.
        callbacks: functions (step, values), or one, called with each line of the log and each
            evaluation; values have names such as "train/loss" and "eval/top1". What they raise ends
            the run.
        options: keys of the config with other values, such as {"steps": 100,
            "optimizer.learning_rate": 1e-3}.

    Returns:
        The content of result.json, or None if a signal stopped the run before its last step.

    Raises:
        UserError: the run cannot start or continue. The message is one line.
    """
    if optimizer is not None and not hasattr(optimizer, "update"):
        raise ConfigError(
            f"optimizer is {optimizer!r:.80}: expected optax's, such as optax.sgd(0.1)"
        )
    callbacks = [callbacks] if callable(callbacks) else callbacks
    config = (
        config_lib.open_config(config)
        if isinstance(config, str)
        else config.copy_and_resolve_references()
    )
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
    config = plan.settle_mesh(config, workdir)
    return loop.train(
        config,
        workdir,
        again="the same call of train",
        init=source,
        optimizer=optimizer,
        callbacks=callbacks,
    )


def evaluate(model: Model, data: Any = None, *, batch_size: int | None = None) -> dict[str, float]:
    """The metrics of a model on held-out data, each example counted once.

    Args:
        model: made or loaded.
        data: of one side, as in `train`, or what config.data.heldout takes; None: the held-out data
            of its own run.
        batch_size: examples at once; None: as in its run.

    Raises:
        UserError: the data cannot be read, or do not suit the model.
    """
    require_model(model)
    require_counts(batch_size=1 if batch_size is None else batch_size)
    config = model.config.copy_and_resolve_references()
    config.eval.batch_size = batch_size or config.eval.batch_size
    with tempfile.TemporaryDirectory() as folder:
        if data is not None:
            config.update_from_flattened_dict(
                store({"heldout": data}, config, folder, [*model.classes])
            )
        task = tasks.find(config.task).without_data(config, model.task.assets())
        metrics, _ = Evaluator(task, model.partition)(model.params)
    return metrics


def _with_model_of(init: Model, config: ConfigDict) -> ConfigDict:
    """A config with the model of another one, and what belongs to it; of another task, its
    architecture alone."""
    new, old = (
        config_lib.changed(config, block=init.config.model.block),
        config_lib.flat(init.config),
    )
    kind, known = tasks.find(config.task), config_lib.keys(new)
    same = config.task == init.config.task
    taken = [
        name
        for name in known
        if name in old and name.startswith("model.") and (same or known[name].architecture)
    ]
    new.update_from_flattened_dict(
        {name: old[name] for name in (*taken, *kind.inherited_keys) if name in old}
    )
    if "tokenizer" in new.data:
        new.data.tokenizer = ""
    return new


def _source(model: Model) -> loading.Source:
    own = model.task.assets()

    def read(partition: Partition, shared: Files) -> Any:
        require_same(own, shared, "the model given as init")
        return jax.device_put(model.params, partition.shardings(model.params))

    return loading.Source("the model given as init", model.config, own, read)


def store(
    data: Any, config: ConfigDict, folder: str, classes: list[str] | None = None
) -> dict[str, Any]:
    """The keys of a config, with their values, that stand for data.

    Args:
        data: as in `train`; or {"heldout": data} for that side alone.
        config: of the run that will read them.
        folder: where they are written. If they are there already, and the run has taken a step,
            they are not written again.
        classes: the names of the classes of images, in place of those in the data.

    Raises:
        DataError, RunError: the data or an example do not suit the task, or the folder is remote or
            holds other files.
    """
    sides = data if isinstance(data, Mapping) else {}
    given = {
        side: sides[name] for side, names in SIDES.items() for name in names[::-1] if name in sides
    }
    given = given or {"train": data}
    if all(isinstance(one, str | os.PathLike) for one in given.values()):
        return {f"data.{side}": os.fspath(one) for side, one in given.items()}
    if io_files.is_remote(folder) or jax.process_count() > 1:
        raise RunError(
            f"data of a program are written to {folder}, by one process to its own disk: give paths as data"
        )
    folder = os.path.abspath(folder)
    if os.path.exists(marker := os.path.join(folder, KEYS)):
        if (keys := json_files.read(marker, dict)) and os.path.exists(
            os.path.join(os.path.dirname(folder), RUN_FILE)
        ):
            distributed.say(
                f"note: the data are read from {folder}, where they were written before"
            )
            return keys
        shutil.rmtree(folder)
    elif os.path.isdir(folder) and os.listdir(folder):
        raise RunError(
            f"{folder} is where the data would be written, and holds others: give another workdir"
        )
    io_files.write(marker, b"{}")  # whose they are, until all are written
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
                    raise DataError(
                        f"an example of text is {type(inputs[0]).__name__}: expected str"
                    )
                print(
                    json.dumps(kind.row(config, inputs, label, os.path.join(target, str(number)))),
                    file=file,
                )
    if kind.predicts_files and len(names) < 2:
        raise DataError(f"the data have one class, {names[0]!r}: give examples of two or more")
    # images have the numbers of classes, which need not be in the order of their names
    if kind.predicts_files:
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
    """The examples of one side: the inputs of each, and its label or None. Numbered labels become
    names, if there are any.

    Raises:
        DataError: there are none.
    """
    if not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")) or (
        isinstance(data, tuple) and len(data) != 2
    ):
        raise DataError(f"the data are {data!r:.80}: expected examples, or arrays (inputs, labels)")
    # a DataFrame, too
    data = {name: data[name] for name in data} if hasattr(data, "keys") else data
    names, rows, row = [*(_class_names(data) or names)], data, None
    columns = [*data.values()] if isinstance(data, Mapping) else data
    if isinstance(data, Mapping | tuple):  # of arrays
        if len({*map(len, columns)}) > 1:
            raise DataError(
                f"the data have {' and '.join(str(len(one)) for one in columns)} rows: expected as many of each"
            )
        rows = zip(*columns, strict=True)
        rows = (
            (dict(zip(data, values, strict=True)) for values in rows)
            if isinstance(data, Mapping)
            else rows
        )
    for row in rows:
        if isinstance(row, Mapping):
            label = next((row[name] for name in LABELS if name in row), None)
            inputs = tuple(
                value for name, value in row.items() if name not in LABELS and _is_input(value)
            )
        else:
            inputs, label = row if isinstance(row, tuple) else (row, None)
            inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        label = getattr(label, "item", lambda label=label: label)()
        if isinstance(label, int) and str(label) not in names and 0 <= label < len(names):
            label = names[label]
        if not inputs:
            raise DataError(
                f"an example has no input: it has {', '.join(row)}; expected text, or an image"
            )
        yield inputs, label
    if row is None:
        raise DataError("there are no examples in the data: give one or more")


def _is_input(value: Any) -> bool:
    return (
        isinstance(value, str | os.PathLike)
        or getattr(value, "ndim", 0) > 1
        or hasattr(value, "getexif")
    )


def _class_names(data: Any) -> list[str]:
    """The names that a `datasets.Dataset` has for its numbered labels."""
    features = getattr(data, "features", None) or {}
    return next(
        ([*features[name].names] for name in LABELS if hasattr(features.get(name), "names")), []
    )


def probe(
    model: Model,
    data: Any,
    kind: Literal["knn", "linear", "fewshot"] = "knn",
    *,
    layers: Sequence[int] = (-1,),
    pool: Literal["mean", "cls"] = "mean",
    batch_size: int = 32,
) -> dict[str, float]:
    """The held-out accuracy of simple classifiers on a model's frozen features.

    Args:
        model: of images, or a language model; its own classes, if it has some, do not count.
        data: labelled examples of both sides, as in `train`, whatever their classes; of one alone,
            a share is held out.
        kind: "knn": the 20 nearest neighbours by cosine similarity, weighted by exp(similarity /
            0.07). "linear": logistic regression on standardized features, by 100 steps of L-BFGS,
            L2 penalty 1e-3. "fewshot": ridge regression on 1, 5, 10 and 25 examples of each class
            (big_vision's fewshot_lsr, l2_reg 1024), the mean over three draws.
        layers: of the features, as in `Model.features`.
        pool: the same.
        batch_size: examples at once.

    Returns:
        "accuracy"; of few shots "accuracy_1", "accuracy_5", ..., for as many as each class has; and
        "examples", how many were held out.

    Raises:
        UserError: the data cannot be read, have no labels, or do not suit the model.
    """
    require_model(model)
    require_counts(batch_size=batch_size)
    for name, value, known in (("kind", kind, KINDS), ("pool", pool, POOLS)):
        if value not in known:
            raise RunError(f"{name} is {value!r}: expected one of {', '.join(known)}")
    config, files = as_classifier(model.config), model.task.assets()
    if not (find := tasks.find(config.task)).heads:
        raise RunError(
            f"a model of the task {config.task} cannot be probed: give one of images or text"
        )
    with tempfile.TemporaryDirectory() as folder:
        config.update_from_flattened_dict(store(data, config, folder))
        task = find(
            config,
            folder,
            {name: content for name, content in files.items() if name not in find.heads},
        )
        train, heldout = (
            _features(model, task.labelled(side), layers, pool, batch_size) for side in SIDES
        )
    return KINDS[kind](train, heldout) | {"examples": len(heldout[1])}


def _features(
    model: Model, source: Any, layers: Sequence[int], pool: Any, batch_size: int
) -> Features:
    states, labels = [], []
    with pipeline.evaluation_batches(source, batch_size=batch_size) as batches:
        for batch in batches:
            # not those that cannot be read, or have no label
            real = (batch["weight"] > 0) & (batch["label"] >= 0)
            inputs = batch["image"] if "image" in batch else batch["tokens"]
            states.append(np.asarray(model.features(inputs, layers, pool), np.float32)[real])
            labels.append(batch["label"][real])
    return np.concatenate(states), np.concatenate(labels)


def _standardized(train: np.ndarray, heldout: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, std = train.mean(0), train.std(0) + 1e-6
    return (train - mean) / std, (heldout - mean) / std


def _accuracy(scores: Any, labels: np.ndarray) -> float:
    return float(np.mean(np.argmax(np.asarray(scores), -1) == labels))


def nearest_neighbours(train: Features, heldout: Features) -> dict[str, float]:
    """See `probe`."""
    x, test = (
        side / (np.linalg.norm(side, axis=-1, keepdims=True) + 1e-12)
        for side in (train[0], heldout[0])
    )
    hot = jax.nn.one_hot(train[1], max(train[1].max(), heldout[1].max()) + 1)
    k = min(NEIGHBOURS, len(x))

    @jax.jit
    def scores(rows: jax.Array) -> jax.Array:
        similarities, nearest = jax.lax.top_k(rows @ x.T, k)
        return jnp.einsum("rk,rkc->rc", jnp.exp(similarities / TEMPERATURE), hot[nearest])

    parts = np.array_split(test, -(-len(test) // 1024))
    return {"accuracy": _accuracy(np.concatenate([scores(part) for part in parts]), heldout[1])}


def linear(train: Features, heldout: Features) -> dict[str, float]:
    """See `probe`."""
    x, test = _standardized(train[0], heldout[0])
    classes = int(max(train[1].max(), heldout[1].max())) + 1

    @jax.jit
    @jax.value_and_grad
    def loss(flat: jax.Array) -> jax.Array:
        """The last row of the weights are the biases."""
        weights = flat.reshape(-1, classes)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            x @ weights[:-1] + weights[-1], train[1]
        )
        return losses.mean() + DECAY / 2 * (weights[:-1] ** 2).sum()

    start = np.zeros((x.shape[1] + 1) * classes, np.float32)
    solution = optimize.minimize(
        loss, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}
    )
    weights = solution.x.reshape(-1, classes)
    return {"accuracy": _accuracy(test @ weights[:-1] + weights[-1], heldout[1])}


def few_shots(train: Features, heldout: Features) -> dict[str, float]:
    """See `probe`."""
    classes, by_shots = int(max(train[1].max(), heldout[1].max())) + 1, {}
    counts = np.bincount(train[1], minlength=classes)
    for shots in (shots for shots in SHOTS if shots <= counts[counts > 0].min()):
        accuracies = []
        for seed in range(SEEDS):
            order = np.random.default_rng(seed).permutation(len(train[1]))
            chosen = np.concatenate(
                [order[train[1][order] == label][:shots] for label in range(classes)]
            )
            x, test = _standardized(train[0][chosen], heldout[0])
            x, test = (
                np.pad(side, ((0, 0), (0, 1)), constant_values=BIAS).astype(np.float64)
                for side in (x, test)
            )
            targets = 2.0 * (train[1][chosen][:, None] == np.arange(classes)) - 1
            weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ targets)
            accuracies.append(_accuracy(test @ weights, heldout[1]))
        by_shots[f"accuracy_{shots}"] = float(np.mean(accuracies))
    return by_shots


KINDS = {"knn": nearest_neighbours, "linear": linear, "fewshot": few_shots}
