"""Runs in Python: a model is trained, scored, and probed."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.api import data as data_lib
from gmlp_flax.api.model import Model, require_counts, require_model
from gmlp_flax.checkpoints.assets import Files, require_same
from gmlp_flax.errors import ConfigError
from gmlp_flax.io import files as io_files
from gmlp_flax.planning import meshes
from gmlp_flax.training import loading, loop
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition


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
        config.update_from_flattened_dict(data_lib.store(data, config, io_files.join(workdir, "data")))
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
            config.update_from_flattened_dict(data_lib.store({"heldout": data}, config, folder, [*model.classes]))
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
