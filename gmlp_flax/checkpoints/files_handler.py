"""Files beside the arrays of a checkpoint, written and read by Orbax."""

import dataclasses
import os
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint import future

from gmlp_flax.checkpoints.assets import Files, read
from gmlp_flax.processes import distributed


class FilesHandler(ocp.AsyncCheckpointHandler):
    """Makes Orbax write files into a checkpoint, unchanged."""

    def save(self, directory: Any, args: "SaveFiles") -> None:
        """Writes the files, on the first process."""
        if distributed.is_first():
            for name, content in args.files.items():
                (directory / name).write_bytes(content)

    async def async_save(self, directory: Any, args: "SaveFiles") -> list[future.Future]:
        """Writes the files in the background, once Orbax has made the directory."""
        writing = self._save_later(directory, args)
        return [future.CommitFutureAwaitingContractedSignals(writing, name="save_files")]

    async def _save_later(self, directory: Any, args: "SaveFiles") -> None:
        self.save(directory, args)

    def restore(self, directory: Any, args: "SaveFiles") -> Files:
        """The files of these names."""
        return read(os.fspath(directory), args.files)


@ocp.args.register_with_handler(FilesHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class SaveFiles(ocp.args.CheckpointArgs):
    """What `FilesHandler` writes."""

    files: Files
