"""Any model as a folder of plain files, which need no gmlp_flax to be read, here or on the Hugging Face hub."""

import os
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.checkpoints.names import CHECKPOINTS, CONFIG_FILE, RUN_FILE
from gmlp_flax.config.optimizers import keeps_mean
from gmlp_flax.errors import ConfigError, RunError, install
from gmlp_flax.interop import card
from gmlp_flax.interop.formats import FORMATS
from gmlp_flax.io import files as io_files
from gmlp_flax.io import weight_files
from gmlp_flax.training import loading, pretrained

CARD = "README.md"
DTYPES = ("float32", "bfloat16")


def export(
    model: loading.Trained, out: str, *, dtype: str = "float32", format: Sequence[str] = (), license: str = ""
) -> None:
    """Writes the weights of a model, their running mean if there is one, with all that is needed to use them, to a
    folder that holds no file of these names yet.

    Args:
        model: of `load`.
        out: the folder.
        dtype: of the weights in the file, one of DTYPES; bfloat16 keeps 8 bits of each, in half the space.
        format: further files, by the names of `formats.FORMATS`.
        license: of the weights, for the card, as the hub names it, such as "apache-2.0".

    Raises:
        ConfigError: there is no such dtype or format.
        RunError, DataError: a format does not have this model, or the folder is taken or not writable.
    """
    for name, given, known in (("dtype", [dtype], DTYPES), ("format", format, FORMATS)):
        if wrong := [value for value in given if value not in known]:
            raise ConfigError(f"{name} is {wrong[0]!r}: expected one of {', '.join(known)}")
    files = model.task.assets()
    require_free(out, CARD, *files)
    for name in format:
        files[FORMATS[name].file] = FORMATS[name].write(model)
    config = model.config.copy_and_resolve_references()
    paths = {key: value for key, value in config.data.items() if isinstance(value, str) and "/" in value}
    config.data.update({key: os.path.basename(value.rstrip("/")) for key, value in paths.items()})  # nobody's business
    if keeps_mean(config.optimizer):  # what was kept of it is what is written
        config.optimizer.update(name="adamw", ema=0.0)
    files[CARD] = card.make(model, dtype, [FORMATS[name].opener for name in format], license).encode()
    write(model.weights, config, files, out, dtype)


def require_free(out: str, *more: str) -> None:
    """Raises RunError if a folder holds a run or a model already, or a file with one of `more` names."""
    entries = CONFIG_FILE, RUN_FILE, CHECKPOINTS, pretrained.WEIGHTS, *more
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
    contents = {
        **files,
        pretrained.WEIGHTS: weight_files.encode(weights),
        CONFIG_FILE: config_lib.to_json(config).encode(),
    }
    written = []
    try:
        for name, content in contents.items():
            io_files.write(path := os.path.join(out, name), content)
            written.append(path)
    except BaseException:  # the same command can be run again
        for path in written:
            io_files.remove(path)
        raise


def push(model: loading.Trained | str, repository: str, *, private: bool = False, **options: Any) -> str:
    """Uploads a model to the Hugging Face hub, to a repository that is made if it does not exist.

    Args:
        model: of `load`; or an exported folder, which is uploaded as it is, once it has been read.
        repository: "OWNER/NAME".
        private: whether a new repository is.
        options: of `export`.

    Returns:
        The address of the commit.

    Raises:
        RunError: huggingface_hub is not installed, the hub cannot be reached, or it refuses the upload.
        ConfigError, RunError, DataError: the model cannot be read or exported.
    """
    try:
        import huggingface_hub
    except ImportError:
        raise RunError(f"to push needs huggingface_hub, which is not installed: {install('weights')}") from None
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(model, str):
            loading.load(folder := pretrained.locate(model))
        else:
            export(model, folder, **options)
        try:
            api = huggingface_hub.HfApi(library_name="gmlp_flax")
            api.create_repo(repository, private=private, exist_ok=True)
            return str(api.upload_folder(repo_id=repository, folder_path=folder).commit_url)
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            advice = "check the name and the network, and log in with `hf auth login` or HF_TOKEN"
            raise RunError(f"{repository} cannot be pushed to ({reason}): {advice}") from None
