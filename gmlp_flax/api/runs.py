"""Runs in Python: a model is trained, and scored."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.api import examples
from gmlp_flax.errors import ConfigError
from gmlp_flax.io import files as io_files
from gmlp_flax.planning import meshes
from gmlp_flax.tasks.data.base import RunFiles
from gmlp_flax.training import loop, pretrained, scoring
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.model import Model, require_counts, require_tokenizer
from gmlp_flax.training.pretrained import Pretrained

Callback = Callable[[int, dict[str, float]], object]


def train(
    config: str | ConfigDict,
    workdir: str | os.PathLike[str],
    *,
    init: Model | None = None,
    data: Any = None,
    optimizer: optax.GradientTransformation | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Trains a model, as `gmlp train` does, or resumes an interrupted run.

        data = {"train": ..., "test": ...}
        result = gmlp_flax.train("finetune_image:gmlp_s", "runs/flowers", init=model, data=data)
        model = gmlp_flax.load("runs/flowers")

    Args:
        config: a config file, as `gmlp train --config` takes it, or a config.
        workdir: the run folder.
        init: a model that the run starts from: its architecture, its tokenizer and its parameters,
            resized for other image sizes and with a new head for other classes, as with
            config.init_from.
        data: what config.data.train takes; or a `datasets.Dataset`, a Grain dataset, a dict or a
            tuple (inputs, labels) of arrays, or an iterable of examples: dicts, (input, label), or
            texts alone. A dict with the keys "train" and "heldout", "validation" or "test" has one
            of these for each split; the first of the last three is held out, and a line names what
            is not read. Data that are not a path are written to workdir/data.
        optimizer: replaces the config's, and has its own learning rate.
        callbacks: functions (step, values), or one, called with each line of the log and each
            evaluation; values have names such as "train/loss" and "eval/top1". An exception that
            they raise ends the run.
        options: keys of the config with other values, such as {"steps": 100,
            "optimizer.learning_rate": 1e-3}.

    Returns:
        The content of result.json, or None if a signal stopped the run before its last step.

    Raises:
        UserError: the run cannot start or resume. The message is one line.
    """
    _require_optax(optimizer)
    workdir = io_files.user_path(workdir)
    options = options or {}
    start = _start_from(init)
    opened = open_config(config, init, options)
    if data is not None:
        target = io_files.join(workdir, "data")
        keys = examples.store(data, opened, target)
        opened.update_from_flattened_dict(keys)
    train_options = loop.TrainOptions(
        explicit_keys=options.keys(),
        choose_mesh=meshes.choose_here,
        resume_command="the same call of train",
        optimizer=optimizer,
        callbacks=[callbacks] if callable(callbacks) else callbacks,
    )
    return loop.train(opened, workdir, train_options, start)


def _require_optax(optimizer: Any) -> None:
    """Raises ConfigError if an optimizer is given that is not optax's."""
    if optimizer is not None and not hasattr(optimizer, "update"):
        raise ConfigError(
            f"optimizer is {optimizer!r:.80}: expected optax's, such as optax.sgd(0.1)"
        )


def _start_from(init: Model | None) -> Pretrained | None:
    """The model that a run starts from, opened."""
    if init is None:
        return None
    require_tokenizer(init)
    return pretrained.open_model(init)


def open_config(
    config: str | ConfigDict, init: Model | None, options: Mapping[str, Any]
) -> ConfigDict:
    """The config of a run, to be resolved: as the arguments of `train` say.

    Raises:
        ConfigError: there is no such config or option, or a value has another type.
    """
    opened = config_lib.open_config(config) if isinstance(config, str) else config
    if not isinstance(opened, ConfigDict):
        raise ConfigError(
            f"config is {opened!r:.80}: expected a config file as text, or a ConfigDict, as "
            "gmlp_flax.config.default makes"
        )
    if init is None:
        new = config_lib.mutable_copy(opened)
    else:
        new = config_lib.with_model_of(opened, init.config)
    for name, value in options.items():
        config_lib.set_value(new, name, value, "options")
    return new


def evaluate(
    model: Model, data: Any = None, *, batch_size: int | None = None, slices: bool = False
) -> dict[str, float]:
    """The metrics of a model on held-out data, each example counted once.

    Args:
        model: made or loaded.
        data: of one split, as in `train`, or what config.data.heldout takes; None: the held-out
            data of its own run.
        batch_size: examples at once; None: as in its run.
        slices: whether to score a language model also on the tokens that repeat a bigram of their
            window, and on all others: metrics named recall_... and other_... (`gmlp evaluate
            --slices`).

    Raises:
        UserError: the data cannot be read, or do not suit the model.
    """
    require_tokenizer(model)
    config = config_lib.mutable_copy(model.config)
    if batch_size is not None:
        require_counts(batch_size=batch_size)
        config.eval.batch_size = batch_size
    if slices:
        scoring.add_slices(config)
    with tempfile.TemporaryDirectory() as folder:
        if data is not None:
            target = os.path.join(folder, "data")
            keys = examples.store({"heldout": data}, config, target, model.classes)
            config.update_from_flattened_dict(keys)
        resolution = config_lib.resolve(config)
        return _score(model, resolution.config)


def _score(model: Model, config: ConfigDict) -> dict[str, float]:
    """The metrics of a model on the held-out data of a resolved config."""
    kind = tasks.find(config.task)
    files = model.task.files
    run_files = RunFiles(local=files)
    heldout = kind.Data(config, run_files)
    task = kind(config, files)
    evaluator = Evaluator(task, heldout, model.partition)
    metrics, _ = evaluator(model.params)
    return metrics
