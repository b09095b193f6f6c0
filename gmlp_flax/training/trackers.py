"""TensorBoard and Weights & Biases: both optional, both imported only if a config asks for them.

The metrics of a run are in its folder. So nothing that a tracker does ends the run: it is told in one line, and the run
goes on without the tracker.
"""

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.errors import RunError, install
from gmlp_flax.io import files
from gmlp_flax.processes import distributed

Callback = Callable[[int, dict[str, float]], object]


class _TensorBoard:
    """One file of events, with the config as text."""

    def __init__(self, config: ConfigDict, folder: str, _run: str, step: int):
        import tensorboardX  # type: ignore[import-not-found]  # an extra

        # Events of steps that are taken again are not shown twice.
        self._staged = files.StagingFolder(os.path.join(folder, "tensorboard"))
        self._writer = tensorboardX.SummaryWriter(self._staged.path, purge_step=step + 1)
        self._writer.add_text("config", f"```\n{config_lib.to_json(config)}```")

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
        self._staged.close()


class _Wandb:
    """A run with the id of the run folder, so that a resumed run continues it, and no other run does."""

    def __init__(self, config: ConfigDict, folder: str, run: str, _step: int):
        import wandb  # type: ignore[import-not-found]  # an extra

        self._staged = files.StagingFolder(folder)
        self._run = wandb.init(
            project=config.log.wandb,
            name=os.path.basename(folder),
            id=run,
            resume="allow",
            dir=self._staged.path,
            config=config.to_dict(),
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()
        self._staged.close()


# By key of config.log, with the package that each needs.
TRACKERS = {"tensorboard": ("tensorboardX", _TensorBoard), "wandb": ("wandb", _Wandb)}


class Trackers:
    """The trackers that a config asks for; on the first process alone.

    Args:
        log: config.log.
        callbacks: functions (step, values) of the user's, called after the trackers; what they raise ends the run.

    Raises:
        RunError: the package of one is not installed; with the command that installs it.
    """

    def __init__(self, log: Mapping[str, Any], callbacks: Iterable[Callback] = ()):
        self._callbacks = [*callbacks] if distributed.is_first() else []
        self._wanted, self._trackers = [name for name in TRACKERS if log[name]], {}
        for name in self._wanted:
            if importlib.util.find_spec(TRACKERS[name][0]) is None:
                raise RunError(f"config.log.{name} needs a package that is not installed: {install(name)}")

    def begin(self, config: ConfigDict, folder: str, run: str, step: int) -> None:
        """Begins the trackers of the run with the id `run`, unless that happened; `step` is the last one before those
        to be logged."""
        for name in self._wanted if distributed.is_first() else ():
            with self._attempt(name):
                self._trackers[name] = TRACKERS[name][1](config, folder, run, step)
        self._wanted = []

    def log(self, step: int, group: str, values: dict[str, float]) -> None:
        """Records values as `group/name`."""
        scalars = {f"{group}/{name}": value for name, value in values.items()}
        for name, tracker in [*self._trackers.items()]:
            with self._attempt(name):
                tracker.log(step, scalars)
        for callback in self._callbacks:
            callback(step, scalars)

    def close(self) -> None:
        """Writes what is pending."""
        for name, tracker in [*self._trackers.items()]:
            with self._attempt(name):
                tracker.close()

    @contextlib.contextmanager
    def _attempt(self, name: str) -> Iterator[None]:
        """An error ends nothing but the tracker, and is told once."""
        try:
            yield
        except Exception as error:
            self._trackers.pop(name, None)
            reason = " ".join(str(error).split())[:200]
            distributed.say(f"{name}: {type(error).__name__}: {reason}; the run goes on without it")
