"""Trained models as plain files: exported folders, on a disk, in this package, or on the Hugging Face hub.

model.safetensors   the parameters, float32 or bfloat16, by their paths, such as encoder/blocks/proj_in/kernel. The
                    first axis of what lies under encoder/ is the layer. y = x @ kernel + bias.
config.json         the run's config
tokenizer.model, classes.json, ...  what predictions need besides

They may be anybody's: nothing in them is run, and all of it is checked before it is used.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints.names import CHECKPOINTS, CONFIG_FILE
from gmlp_flax.errors import RunError
from gmlp_flax.io import files, weight_files
from gmlp_flax.tasks.base import Task

WEIGHTS = "model.safetensors"
SHIPPED = Path(__file__).parents[1] / "pretrained"  # with a folder for each model that comes with gmlp_flax


def shipped() -> dict[str, str]:
    """The models that come with gmlp_flax: name -> folder."""
    return {path.parent.name: str(path.parent) for path in sorted(SHIPPED.glob(f"*/{WEIGHTS}"))}


def locate(name: str | os.PathLike[str]) -> str:
    """The folder of a run or of a model, its absolute path.

    Args:
        name: a path; else one of `shipped`; or "hf-hub:OWNER/NAME", an exported model that is downloaded, or taken from
            the hub's cache.

    Raises:
        RunError: the repository cannot be downloaded.
        ConfigError: it is none of an exported model, or its config cannot be read.
    """
    name = os.fspath(name)
    if not name.startswith(weight_files.HUB):
        return files.absolute(name if files.exists(name) else shipped().get(name, name))
    repository = name.removeprefix(weight_files.HUB)
    described = weight_files.fetch(repository, CONFIG_FILE)
    kind, commit = tasks.find(config_lib.load(described).task), weight_files.commit_of(described)
    weight_files.fetch(repository, WEIGHTS, commit)
    for asset in (*kind.shared_assets, *kind.heads, *kind.optional_assets):
        weight_files.fetch(repository, asset, commit, optional=True)
    return os.path.dirname(described)


def is_exported(folder: str) -> bool:
    """Whether a folder holds exported weights, and no checkpoints of a run."""
    return files.exists(os.path.join(folder, WEIGHTS)) and not files.exists(os.path.join(folder, CHECKPOINTS))


def open_task(folder: str, config: ConfigDict | None = None) -> Task:
    """The task of an exported folder, with the files that it needs from there. `config` replaces the folder's own.

    Raises:
        ConfigError, RunError, DataError: the config or a file is missing, or cannot be read.
    """
    if config is None:
        if not files.exists(described := os.path.join(folder, CONFIG_FILE)):
            raise RunError(f"{folder} has no {CONFIG_FILE}: expected a folder that `gmlp export` has written")
        config = config_lib.load(described)
    if "tokenizer" in config.data:
        config.data.tokenizer = ""  # a path on another machine; the folder has the file
    kind = tasks.find(config.task)  # it makes anew what is missing, from the data that the config names
    needed = (*kind.shared_assets, *kind.heads)
    if missing := [name for name in needed if not files.exists(os.path.join(folder, name))]:
        raise RunError(f"{folder} has no {missing[0]}, which the weights were trained with: export the run again")
    return tasks.create(config, folder)


def read_parameters(task: Task, folder: str) -> dict[str, Any]:
    """The parameters of an exported folder, for its task: a nested dict of numpy arrays, in the task's types.

    Raises:
        RunError: there are weights missing, unexpected, of another shape, or not finite, or the file is damaged.
    """
    where = os.path.join(folder, WEIGHTS)
    state = weight_files.read(where)
    like: dict[str, Any] = traverse_util.flatten_dict(task.shapes(), sep="/")
    weight_files.require_all(state, {name: leaf.shape for name, leaf in like.items()}, where)
    params = {name: state[name].astype(leaf.dtype) for name, leaf in like.items()}
    if broken := [name for name, leaf in params.items() if not np.isfinite(leaf).all()]:
        raise RunError(f"{where}: {broken[0]} has numbers that are not finite ({len(broken)} such parameters)")
    return traverse_util.unflatten_dict(params, sep="/")
