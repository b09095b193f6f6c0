"""Any run's weights as a folder of plain files, which needs no gmlp_flax to be read; and such a folder as a run folder.

model.safetensors   the parameters, float32, by their paths, such as encoder/blocks/proj_in/kernel. The first axis of
                    what lies under encoder/ is the layer. y = x @ kernel + bias.
config.json         the run's config
tokenizer.model, classes.json, ...  what predictions need besides
README.md           what the model is
"""

import os
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints import run_folder
from gmlp_flax.checkpoints.names import CONFIG_FILE
from gmlp_flax.config.optimizers import keeps_mean
from gmlp_flax.errors import RunError
from gmlp_flax.interop import converted
from gmlp_flax.io import files, weight_files
from gmlp_flax.models import parameters
from gmlp_flax.training import loading

WEIGHTS, CARD = "model.safetensors", "README.md"


def export(workdir: str, which: str, out: str) -> None:
    """Writes the weights of a run's checkpoint ("latest", "best", or a step), their running mean if there is one, with
    all that is needed to use them, to a folder that holds no file of these names yet.

    Raises:
        ConfigError, RunError, DataError: there is no such run or checkpoint, or the folder is taken or not writable.
    """
    converted.require_free(out, WEIGHTS, CARD)
    trained = loading.load(workdir, which)
    assets = trained.task.assets()
    converted.require_free(out, *assets)
    flat: dict[str, Any] = traverse_util.flatten_dict(jax.device_get(trained.weights), sep="/")
    weight_files.write(os.path.join(out, WEIGHTS), {name: np.ascontiguousarray(leaf) for name, leaf in flat.items()})
    config = trained.config.copy_and_resolve_references()
    if keeps_mean(config.optimizer):  # what was kept of it is what is written
        config.optimizer.update(name="adamw", ema=0.0)
    described = {CONFIG_FILE: config_lib.to_json(config).encode(), CARD: _card(trained).encode()}
    run_folder.write_files(out, assets | described, replace=True)


def convert(folder: str, out: str) -> None:
    """Makes a run folder `out`, with one checkpoint at step 0, of what `export` has written, which may be anybody's.

    Raises:
        ConfigError, RunError, DataError: the folder is none of `export`'s, or has weights of another model; or `out`
            holds a run; or a file cannot be read or written.
    """
    converted.require_free(out)
    folder = files.absolute(folder)
    where, described = os.path.join(folder, WEIGHTS), os.path.join(folder, CONFIG_FILE)
    if not files.exists(described):
        raise RunError(f"{folder} has no {CONFIG_FILE}: expected a folder that `gmlp export --out=FOLDER` has written")
    config, state = config_lib.load(described), weight_files.read(where)
    kind = tasks.find(config.task)  # it makes anew what is missing, from the data that the config names
    needed = (*kind.shared_assets, *kind.heads)
    if missing := [name for name in needed if not files.exists(os.path.join(folder, name))]:
        raise RunError(f"{folder} has no {missing[0]}, which the weights were trained with: export the run again")
    task = tasks.create(config, folder)
    like: dict[str, Any] = traverse_util.flatten_dict(task.shapes(), sep="/")
    weight_files.require_all(state, {name: leaf.shape for name, leaf in like.items()}, where)
    params = {name: state[name].astype(leaf.dtype) for name, leaf in like.items()}
    converted.write(traverse_util.unflatten_dict(params, sep="/"), config, task.assets(), out)


def _card(trained: loading.Trained) -> str:
    """README.md, for whoever gets the folder."""
    config = trained.config
    count = parameters.count(trained.params)
    return f"""# {config.model.block}, {config.task}

{count:,} parameters, trained for {trained.step:,} steps. `{WEIGHTS}` has them by name, float32; the first axis
under `encoder/` is the layer, and a dense layer is `x @ kernel + bias`. `{CONFIG_FILE}` has every setting.

    import safetensors.numpy
    weights = safetensors.numpy.load_file("{WEIGHTS}")

With gmlp_flax, as a run folder to predict with and to finetune from:

    gmlp import --model=exported --checkpoint=THIS_FOLDER --out=runs/model
    gmlp predict --workdir=runs/model
"""
