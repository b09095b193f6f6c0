"""Run folders that are made from somebody else's weights: one checkpoint, at step 0."""

import contextlib
import os
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints import run_folder
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.checkpoints.names import CHECKPOINTS, CONFIG_FILE, RUN_FILE
from gmlp_flax.errors import RunError
from gmlp_flax.io import files as io_files
from gmlp_flax.training import loading


def require_free(out: str, *more: str) -> None:
    """Raises RunError if a folder holds a run already, or a file with one of `more` names."""
    entries = CONFIG_FILE, RUN_FILE, CHECKPOINTS, *more
    if taken := [entry for entry in entries if io_files.exists(os.path.join(out, entry))]:
        raise RunError(f"--out={out} holds {taken[0]} already, which would be overwritten: give another folder")


def write(params: Any, config: ConfigDict, files: Files, out: str) -> None:
    """Writes parameters, a nested dict of arrays, with the config of the model and the files that predictions need
    beside them (`Task.assets`), as the run folder `out`.

    Raises:
        RunError: a parameter is not finite, or the folder holds a run or one of the files; nothing is written then.
        RunError, DataError: the folder or a file cannot be written to; what was written is deleted.
    """
    require_free(out, *files)  # before the parameters are looked at
    flat: dict[str, Any] = traverse_util.flatten_dict(params, sep="/")
    if broken := [name for name, leaf in flat.items() if not np.isfinite(np.asarray(leaf, np.float64)).all()]:
        raise RunError(
            f"{broken[0]} has numbers that are not finite ({len(broken)} such parameters): give other weights"
        )
    with run_folder.hold(io_files.absolute(out)):
        require_free(out, *files)  # another command may have filled it meanwhile
        try:
            own = run_folder.make_identity(out)
            run_folder.write_files(out, files, replace=True)
            checkpoints = loading.open_checkpoints(config, io_files.absolute(out), files=files, run=own)
            checkpoints.save(0, {"params": jax.device_put(params)}, None)
            checkpoints.wait()
            checkpoints.close()
            run_folder.write_files(out, {CONFIG_FILE: config_lib.to_json(config).encode()}, replace=True)
        except BaseException:  # the same command can be run again
            for name in (RUN_FILE, CHECKPOINTS, *files):
                with contextlib.suppress(RunError):
                    io_files.remove_all(os.path.join(out, name))
            raise
