"""What every format of weights is opened as."""

import dataclasses
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax.checkpoints.assets import Files


@dataclasses.dataclass(frozen=True)
class SavedModel:
    """A model in files that are not those of a run. Its weights are read when they are asked for.

    They may be anybody's: nothing in them is run, and all of it is checked before it is used.

    Attributes:
        where: the folder or the file of the weights, for messages.
        config: of the model.
        files: what the model needs besides its parameters, by name (`Task.files`).
        read: returns the parameters, a nested dict of numpy arrays in the types of the model; it
            raises RunError if weights are missing, unexpected, of another shape or not finite.
    """

    where: str
    config: ConfigDict
    files: Files
    read: Callable[[], dict[str, Any]]
