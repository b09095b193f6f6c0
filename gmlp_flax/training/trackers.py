"""TensorBoard and Weights & Biases: both optional, both imported only if a config asks for them."""

from __future__ import annotations

import os
from typing import Protocol

from ml_collections import ConfigDict

from gmlp_flax.errors import RunError, install


class Tracker(Protocol):
    """A service that records scalars by step."""

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None:
        """Writes what is pending."""


class _TensorBoard:
    def __init__(self, folder: str):
        import tensorboardX  # type: ignore[import-not-found]  # an extra

        self._writer = tensorboardX.SummaryWriter(os.path.join(folder, "tensorboard"))

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, folder: str, config: ConfigDict):
        import wandb  # type: ignore[import-not-found]  # an extra

        # The folder's name is the run's id, so that a resumed run continues the old one.
        name = os.path.basename(folder)
        self._run = wandb.init(
            project=config.log.wandb, name=name, id=name, resume="allow", dir=folder, config=config.to_dict()
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


def make(config: ConfigDict, folder: str) -> list[Tracker]:
    """The trackers that config.log asks for.

    Raises:
        RunError: the package of one of them is not installed.
    """
    trackers: list[Tracker] = []
    for wanted, extra, start in (
        (config.log.tensorboard, "tensorboard", lambda: _TensorBoard(folder)),
        (config.log.wandb, "wandb", lambda: _Wandb(folder, config)),
    ):
        if wanted:
            try:
                trackers.append(start())
            except ImportError:
                raise RunError(f"config.log.{extra} needs a package that is not installed: {install(extra)}") from None
    return trackers
