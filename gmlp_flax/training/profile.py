"""A trace of some training steps, for XProf, TensorBoard and Perfetto."""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from gmlp_flax.config import parsing
from gmlp_flax.errors import RunError
from gmlp_flax.io import files
from gmlp_flax.processes import distributed

FOLDER = "profile"


class Profile:
    """Writes a trace of the steps in `config.profile.steps` to the run folder.

    Only the first process writes one: all run the same program, and its trace shows how long it waits for the others.

    Raises:
        RunError: steps are given, but the profiler would crash on this machine.
    """

    def __init__(self, config: ConfigDict, workdir: str):
        if config.profile.steps:
            _check_profiler()
        asked = parsing.profile_steps(config.profile.steps, config.steps)
        self._steps = asked if distributed.is_first() else range(0)
        self._folder, self._tracing = os.path.join(workdir, FOLDER), False

    def step(self, number: int, function: Callable, *arguments: Any) -> Any:
        """Calls the program of a step. Waits for its result if this is the last traced step."""
        if number not in self._steps:
            return function(*arguments)
        if not self._tracing:
            self._staged = files.StagingFolder(self._folder)
            jax.profiler.start_trace(self._staged.path)
            self._tracing = True
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            result = function(*arguments)
        if number == self._steps[-1]:
            jax.block_until_ready(result)
            self.close()
        return result

    def close(self) -> None:
        """Writes the trace, even if the run ends before the last step to trace."""
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False
            self._staged.close()


def _check_profiler() -> None:
    """Refuses if JAX tried libtpu, found no TPU and continued: a libtpu newer than jaxlib then ends the process."""
    platforms = jax.config.jax_platforms  # type: ignore[attr-defined] - JAX declares no types for its options
    if not platforms and jax.default_backend() != "tpu" and importlib.util.find_spec("libtpu"):
        raise RunError(
            "config.profile.steps: libtpu, which is installed, can crash the profiler of a machine without a TPU: "
            f"set JAX_PLATFORMS={'cuda' if jax.default_backend() == 'gpu' else 'cpu'} in the environment"
        )
