"""Folders of weights in our names: those of our runs, and somebody else's. `training.pretrained` reads them."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.checkpoints.names import CHECKPOINTS, CONFIG_FILE, RUN_FILE
from gmlp_flax.errors import RunError
from gmlp_flax.io import files as io_files
from gmlp_flax.io import weight_files
from gmlp_flax.training.pretrained import WEIGHTS


def require_free(out: str, *more: str) -> None:
    """Raises RunError if a folder holds a run or a model already, or a file with one of `more` names."""
    entries = CONFIG_FILE, RUN_FILE, CHECKPOINTS, WEIGHTS, *more
    if taken := [entry for entry in entries if io_files.exists(os.path.join(out, entry))]:
        raise RunError(f"--out={out} holds {taken[0]} already, which would be overwritten: give another folder")


def write(params: Any, config: ConfigDict, files: Files, out: str, dtype: str = "float32") -> None:
    """Writes parameters, a nested dict of arrays, with the config of the model and the files that predictions need
    beside them (`Task.assets`), to the folder `out`; `dtype` is of the weights there.

    Raises:
        RunError: a parameter is not finite, or the folder holds a model or one of the files; nothing is written then.
        RunError, DataError: the folder or a file cannot be written to; what was written is deleted.
    """
    require_free(out, *files)
    flat: dict[str, Any] = traverse_util.flatten_dict(jax.device_get(params), sep="/")
    weights = {name: np.ascontiguousarray(leaf, jnp.dtype(dtype)) for name, leaf in flat.items()}
    if broken := [name for name, leaf in weights.items() if not np.isfinite(leaf).all()]:
        raise RunError(
            f"{broken[0]} has numbers that are not finite ({len(broken)} such parameters): give other weights"
        )
    contents = {**files, WEIGHTS: weight_files.encode(weights), CONFIG_FILE: config_lib.to_json(config).encode()}
    written = []
    try:
        for name, content in contents.items():
            io_files.write(path := os.path.join(out, name), content)
            written.append(path)
    except BaseException:  # the same command can be run again
        for path in written:
            io_files.remove(path)
        raise
