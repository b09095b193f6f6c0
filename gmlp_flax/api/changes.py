"""A model with other classes, images or types: its config and its task."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.errors import ConfigError, decode_errors
from gmlp_flax.tasks.base import Task

Classes = int | Sequence[str]
ImageSize = int | tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Changes:
    """What `create` and `load` change in a model: their arguments of these names. `options` are
    other keys of config.model."""

    classes: Classes | None = None
    image_size: ImageSize | None = None
    dtype: Any = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def changed_task(config: ConfigDict, files: Files, changes: Changes, where: str) -> Task:
    """The task of a config with changes, with the files of its model.

    Raises:
        ConfigError: there is no such option, or a value makes no sense; it begins with `where`.
    """
    files = dict(files)
    if changes.classes is not None:
        config = as_classifier(config)
        classifier = tasks.find(config.task)
        heads = list(classifier.inheritance.heads)
        if not heads:
            raise ConfigError(
                f"{where}: a model of the task {config.task} has no classes: leave classes out"
            )
        classes_file = heads[0]
        names = class_names(changes.classes, where)
        content = json.dumps(names)
        files[classes_file] = content.encode()
    values = config.to_dict()
    options = _model_options(changes, where)
    values["model"].update(options)
    changed = config_lib.from_dict(values, where)
    resolution = config_lib.resolve(changed)
    resolved = resolution.config
    task = tasks.find(resolved.task)
    return task(resolved, files)


def as_classifier(config: ConfigDict) -> ConfigDict:
    """The config of a classifier of other classes, with the same model if the task allows it."""
    current_task = tasks.find(config.task)
    keys = dict(current_task.as_classifier)
    task = keys.pop("task", "")
    new = config_lib.changed(config, task=task)
    new.update_from_flattened_dict(keys)
    return new


def class_names(classes: Any, where: str) -> list[str]:
    """The names of classes: numbers from 0, if `classes` is how many there are.

    Raises:
        ConfigError: they are not names of classes, or two are equal; it begins with `where`.
    """
    is_scalar = not getattr(classes, "ndim", 0)
    is_count = is_scalar and hasattr(classes, "__index__")
    is_text = isinstance(classes, str)
    values: Iterable[Any] = ()
    if is_count:
        values = range(classes)
    elif isinstance(classes, Iterable) and not is_text:
        values = classes
    names = [str(value) for value in values]
    different_names = set(names)
    has_twins = len(different_names) < len(names)
    if not names or has_twins:
        raise ConfigError(
            f"{where}: classes is {classes!r}: expected a number from 1, or different names"
        )
    return names


def _model_options(changes: Changes, where: str) -> dict[str, Any]:
    """The keys of config.model that change, with their values."""
    options = dict(changes.options)
    size: Any = changes.image_size
    if hasattr(size, "__index__"):  # one number for both
        side = int(size)
        size = (side, side)
    if size is not None:
        options["image_size"] = size
    dtype = changes.dtype
    if isinstance(dtype, str):
        options["dtype"] = dtype
    elif dtype is not None:
        what = f"{where}: dtype is {dtype!r}"
        with decode_errors(what, "expected float32, bfloat16 or float64", ConfigError):
            options["dtype"] = jnp.dtype(dtype).name
    return options
