"""State dicts as torch's packages name them, made of our parameters."""

import os

import numpy as np
import safetensors.numpy
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax.interop import exported, timm


def to_torch(params: dict, rows: list[timm.Row]) -> dict[str, np.ndarray]:
    """Our parameters under torch's names and in its layouts: the exact inverse of
    `timm.from_torch`."""
    flat = {
        path: np.asarray(leaf) for path, leaf in traverse_util.flatten_dict(params, sep="/").items()
    }
    return {name: np.ascontiguousarray(view) for name, view in timm.torch_views(flat, rows).items()}


def write(path: str | os.PathLike, state: dict[str, np.ndarray]) -> None:
    """Writes a .safetensors file."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(safetensors.numpy.save(state))


def write_timm(state: dict[str, np.ndarray], config: ConfigDict, name: str, out: str) -> None:
    """A state dict of timm's as a folder of a model, whose config keeps the paths of data."""
    task, params = timm.read(state, config, name, "FILE")
    exported.write(params, task.config, task.assets() | dict(task.inherited), out)
