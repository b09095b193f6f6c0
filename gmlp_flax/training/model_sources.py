"""Where a trained model is, by the name that a user gives it: a path, a model that comes with
gmlp_flax, or a repository on the Hugging Face hub."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from gmlp_flax.checkpoints import CHECKPOINTS, CONFIG_FILE
from gmlp_flax.io import files as io_files
from gmlp_flax.io import hub, json_files, weight_files
from gmlp_flax.weights import exports


@dataclasses.dataclass(frozen=True)
class Source:
    """What a name leads to, before anything but config.json is read.

    Attributes:
        name: from the user.
        folder: its absolute path; for the hub, that of the cache.
        file: the name of a file of weights in the folder, if the user named one; else "".
        step: of RUN/checkpoints/STEP; else "".
        repository: on the hub; else "".
        described: the content of config.json; empty without one.
    """

    name: str
    folder: str
    file: str = ""
    step: str = ""
    repository: str = ""
    described: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def path(self, name: str) -> str:
        """Where a file of the folder is, or would be."""
        return io_files.join(self.folder, name)

    def has(self, name: str) -> bool:
        """Whether the folder has a file."""
        path = self.path(name)
        return io_files.exists(path)


def find(name: str) -> Source:
    """What a name leads to: a path, one of `exports.shipped`, or "hf-hub:OWNER/NAME", whose
    config.json is downloaded, or taken from the hub's cache.

    Raises:
        RunError: the repository cannot be downloaded.
        DataError: config.json is damaged.
    """
    repository = hub.repository_of(name)
    if repository:
        config_path = hub.fetch(repository, CONFIG_FILE)
        source = Source(name, os.path.dirname(config_path), repository=repository)
    else:
        source = _find_path(name)
    if not source.has(CONFIG_FILE):
        return source
    config_path = source.path(CONFIG_FILE)
    described = json_files.read(config_path, dict)
    return dataclasses.replace(source, described=described)


def _find_path(name: str) -> Source:
    """What the name of a path or of a shipped model leads to, without config.json."""
    shipped = exports.shipped()
    path = name
    is_shipped = name in shipped and not io_files.exists(name)
    if is_shipped:
        path = shipped[name]
    path = io_files.absolute(path)
    folder, last = os.path.split(path)
    is_weights = weight_files.is_weight_file(path) and not io_files.is_folder(path)
    if is_weights:
        return Source(name, folder, file=last)
    run_folder, folder_name = os.path.split(folder)
    is_checkpoint = folder_name == CHECKPOINTS and last.isdigit()
    if is_checkpoint:
        return Source(name, run_folder, step=last)
    return Source(name, path)
