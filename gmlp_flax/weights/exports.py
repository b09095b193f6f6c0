"""Exported folders: plain files that hold a trained model, as `gmlp export` writes them, or the
models that come with gmlp_flax.

model.safetensors   the parameters, float32 or bfloat16, by their paths, such as
                    encoder/blocks/proj_in/kernel. The first axis of what lies under encoder/ is the
                    layer. y = x @ kernel + bias.
config.json         the run's config
tokenizer.model, classes.json, ...  other files that predictions need
"""

import importlib.resources
from pathlib import Path
from typing import Any

from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints import CONFIG_FILE
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE
from gmlp_flax.errors import RunError
from gmlp_flax.io import files as io_files
from gmlp_flax.io import weight_files
from gmlp_flax.tasks.base import Task
from gmlp_flax.tasks.text import NO_TOKENIZER
from gmlp_flax.weights.saved import SavedModel

WEIGHTS = "model.safetensors"
# It has a folder for each model that comes with us.
SHIPPED = Path(str(importlib.resources.files("gmlp_flax") / "pretrained"))


def shipped() -> dict[str, str]:
    """The models that come with gmlp_flax: name -> folder."""
    folders = {}
    for path in sorted(SHIPPED.glob(f"*/{WEIGHTS}")):
        folder = path.parent
        folders[folder.name] = str(folder)
    return folders


def open_export(folder: str) -> SavedModel:
    """The model in an exported folder.

    Raises:
        UserError: the config or a file is missing, or cannot be read.
    """
    config = config_lib.load(io_files.join(folder, CONFIG_FILE))
    files = read_files(folder, config)

    def read() -> dict[str, Any]:
        resolved = config_lib.resolve(config).config
        kind = tasks.find(config.task)
        task = kind(resolved, files)
        path = io_files.join(folder, WEIGHTS)
        return read_parameters(path, task)

    return SavedModel(folder, config, files, read)


def read_files(folder: str, config: ConfigDict) -> Files:
    """The files of an exported folder besides its weights, which a model with this config needs; no
    path in the config is followed.

    Raises:
        RunError, DataError: a file is missing, or cannot be read.
    """
    inheritance = tasks.find(config.task).inheritance
    required = set(inheritance.required)
    if config.data.get("tokenizer") == NO_TOKENIZER:
        required.discard(TOKENIZER_FILE)
    files = {}
    for name in inheritance.files:
        path = io_files.join(folder, name)
        if io_files.exists(path):
            files[name] = io_files.read_small(path)
        elif name in required:
            raise RunError(
                f"{folder} has no {name}, which the weights were trained with: export the run again"
            )
    return files


def read_parameters(path: str, task: Task) -> dict[str, Any]:
    """The parameters in a file of exported weights, for a task: a nested dict of numpy arrays in the
    task's types.

    Raises:
        RunError: weights are missing, unexpected, of another shape or not finite, or the file is
            damaged.
    """
    wanted: dict[str, Any] = traverse_util.flatten_dict(task.shapes(), sep="/")
    shapes = {name: leaf.shape for name, leaf in wanted.items()}
    state = weight_files.read(path)
    weight_files.require_all(state, shapes, path)
    params = {}
    for name, leaf in wanted.items():
        stored = state[name]
        params[name] = stored.astype(leaf.dtype)
    return traverse_util.unflatten_dict(params, sep="/")
