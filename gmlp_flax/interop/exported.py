"""Any run's weights as a folder of plain files, which need no gmlp_flax to be read (see `training.pretrained`)."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints import run_folder
from gmlp_flax.checkpoints.names import CONFIG_FILE
from gmlp_flax.config.optimizers import keeps_mean
from gmlp_flax.errors import ConfigError
from gmlp_flax.interop import converted
from gmlp_flax.io import weight_files
from gmlp_flax.models import parameters
from gmlp_flax.training import loading
from gmlp_flax.training.pretrained import WEIGHTS

CARD = "README.md"
DTYPES = ("float32", "bfloat16")


def export(workdir: str, which: str, out: str, dtype: str = "float32") -> None:
    """Writes the weights of a run's checkpoint ("latest", "best", or a step), their running mean if there is one, with
    all that is needed to use them, to a folder that holds no file of these names yet.

    Args:
        workdir: the run folder, or what else `loading.load` takes.
        which: the checkpoint.
        out: the folder.
        dtype: of the weights in the file, one of DTYPES; bfloat16 keeps 8 bits of each, in half the space.

    Raises:
        ConfigError, RunError, DataError: there is no such run or checkpoint, or the folder is taken or not writable.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}: expected {' or '.join(DTYPES)}")
    converted.require_free(out, WEIGHTS, CARD)
    trained = loading.load(workdir, which)
    assets = trained.task.assets()
    converted.require_free(out, *assets)
    flat: dict[str, Any] = traverse_util.flatten_dict(jax.device_get(trained.weights), sep="/")
    weights = {name: np.ascontiguousarray(leaf, jnp.dtype(dtype)) for name, leaf in flat.items()}
    weight_files.write(os.path.join(out, WEIGHTS), weights)
    config = trained.config.copy_and_resolve_references()
    if keeps_mean(config.optimizer):  # what was kept of it is what is written
        config.optimizer.update(name="adamw", ema=0.0)
    described = {CONFIG_FILE: config_lib.to_json(config).encode(), CARD: _card(trained, dtype).encode()}
    run_folder.write_files(out, assets | described, replace=True)


def _card(trained: loading.Trained, dtype: str) -> str:
    """README.md, for whoever gets the folder."""
    config = trained.config
    count = parameters.count(trained.params)
    return f"""# {config.model.block}, {config.task}

{count:,} parameters, trained for {trained.step:,} steps. `{WEIGHTS}` has them by name, {dtype}; the first axis
under `encoder/` is the layer, and a dense layer is `x @ kernel + bias`. `{CONFIG_FILE}` has every setting.

    import safetensors.numpy{", ml_dtypes" * (dtype == "bfloat16")}
    weights = safetensors.numpy.load_file("{WEIGHTS}")

With gmlp_flax, to predict with and, by `--config.init_from=THIS_FOLDER`, to finetune from:

    gmlp predict --workdir=THIS_FOLDER
"""
