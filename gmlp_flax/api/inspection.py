"""What a run would read, before it is trained."""

import os
import tempfile
from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.api import examples, runs
from gmlp_flax.data.summary import Inspection
from gmlp_flax.tasks.data.base import RunFiles, TaskData
from gmlp_flax.training import warm_start


def inspect(
    data: Any, config: str | ConfigDict, *, options: Mapping[str, Any] | None = None
) -> Inspection:
    """What was read from data: their form, files, classes with counts, columns, tokens, and some
    examples of both roles. It is shown as text in a terminal, and as tables in a notebook.

        gmlp_flax.inspect("photos/", "own_images")

    Args:
        data: as `train` takes them.
        config: as `train` takes it.
        options: keys of the config with other values.

    Raises:
        UserError: the data cannot be read, or do not suit the config. The message is one line.
    """
    options = options or {}
    opened = runs.open_config(config, None, options)
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "data")
        keys = examples.store(data, opened, target)
        opened.update_from_flattened_dict(keys)
        explicit_keys = options.keys()
        task_data = read(opened, explicit=explicit_keys)
        return task_data.inspect()


def read(config: ConfigDict, workdir: str = "", explicit: Collection[str] = ()) -> TaskData:
    """The data of a run, as far as they are read before it begins.

    Args:
        config: of the run.
        workdir: the run folder, if there is one.
        explicit: the keys of the config that the user set.

    Raises:
        UserError: the config or what the run starts from cannot be read.
    """

    def read_start(config: ConfigDict) -> config_lib.Start | None:
        return warm_start.read_start(config, workdir)

    resolution = config_lib.resolve(config, read_start, explicit=explicit)
    resolved = resolution.config
    task = tasks.find(resolved.task)
    run_files = RunFiles(workdir, inherited=resolution.files)
    return task.Data(resolved, run_files)
