"""A run whose checkpoints are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints import CONFIG_FILE
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.checkpoints.reading import Damaged
from gmlp_flax.checkpoints.run_folder import read_identity
from gmlp_flax.io import files as io_files
from gmlp_flax.training.partition import Partition

if TYPE_CHECKING:
    from gmlp_flax.checkpoints.checkpoint import Checkpoints


class SavedStep(NamedTuple):
    """A checkpoint of a run.

    Attributes:
        step: its number.
        where: its folder, for messages.
        files: what the model needs besides its parameters, by name, as the checkpoint has them.
    """

    step: int
    where: str
    files: Files


class SavedRun(NamedTuple):
    """A run folder that is read.

    Attributes:
        folder: its path.
        config: of the run.
        id: of the run, which its checkpoints repeat; "" for a run without one.
    """

    folder: str
    config: ConfigDict
    id: str

    @classmethod
    def open(cls, folder: str) -> SavedRun:
        """Raises ConfigError if config.json is damaged."""
        config_path = io_files.join(folder, CONFIG_FILE)
        config = config_lib.load(config_path)
        identity = read_identity(folder)
        run = identity.get("id", "")
        return cls(folder, config, run)

    def find(self, checkpoint: str) -> SavedStep:
        """The checkpoint "latest", "best" or of a step. Raises RunError if there is no such
        checkpoint, or its files are damaged."""
        with self._checkpoints() as checkpoints:
            step = checkpoints.pick(checkpoint)
            where = f"{checkpoints.folder}/{step}"
            with _naming_others(checkpoints, step):
                files = checkpoints.read_files(step)
            return SavedStep(step, where, files)

    def read(self, part: str, step: int, partition: Partition) -> Any:
        """Reads a part of the state of a step, "params" or "ema", onto the devices. Raises Damaged
        if it cannot be read."""
        with self._checkpoints() as checkpoints, _naming_others(checkpoints, step):
            shapes = checkpoints.shapes(step)
            if part not in shapes:
                raise Damaged(f"{checkpoints.folder}/{step} has no {part}")
            shapes_of_part = shapes[part]
            template = partition.describe(shapes_of_part)
            state = checkpoints.restore(step, {part: template})
            return state[part]

    def _checkpoints(self) -> contextlib.closing[Checkpoints]:
        # Imported here because models that are not runs do not need Orbax.
        from gmlp_flax.training.checkpoints import open_checkpoints

        checkpoints = open_checkpoints(self.config, self.folder, read_only=True, run=self.id)
        return contextlib.closing(checkpoints)


@contextlib.contextmanager
def _naming_others(checkpoints: Checkpoints, step: int) -> Iterator[None]:
    """Adds the other checkpoints of the run to the error for a damaged one."""
    try:
        yield
    except Damaged as error:
        others = [str(other) for other in checkpoints.steps() if other != step]
        advice = "it is the only one"
        if others:
            steps = ", ".join(others)
            advice = f"the run also has checkpoint {steps}"
        raise Damaged(f"{error}; {advice}") from None
