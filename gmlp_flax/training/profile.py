"""A trace of some training steps, as XProf, TensorBoard and Perfetto read it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.training import distributed
from gmlp_flax.training.errors import RunError

FOLDER = "profile"


class Profile:
    """Traces the steps that `config.profile.steps` names into a run's folder.

    One process writes: all run the same program, and its trace shows how long it waits for the others.

    Raises:
        RunError: steps are named, and the profiler would end the process here.
    """

    def __init__(self, config: ConfigDict, workdir: str):
        if config.profile.steps:
            _check_profiler()
        self._steps = config_lib.profiled_steps(config) if distributed.is_first() else range(0)
        self._folder, self._tracing = os.path.join(workdir, FOLDER), False

    def step(self, number: int, function: Callable, *arguments: Any) -> Any:
        """Calls a step's program; of the last step that is traced, waits for its result."""
        if number not in self._steps:
            return function(*arguments)
        if not self._tracing:
            jax.profiler.start_trace(self._folder)
            self._tracing = True
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            result = function(*arguments)
        if number == self._steps[-1]:
            jax.block_until_ready(result)
            self.close()
        return result

    def close(self) -> None:
        """Writes the trace, also where the run ends before the last of the steps."""
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False


def _check_profiler() -> None:
    """Refuses where JAX tried libtpu, found no TPU and went on: a libtpu newer than jaxlib then ends the process."""
    if not jax.config.jax_platforms and jax.default_backend() != "tpu" and importlib.util.find_spec("libtpu"):
        raise RunError(
            "config.profile.steps: libtpu, which is installed, can crash the profiler of a machine without a TPU: "
            f"set JAX_PLATFORMS={'cuda' if jax.default_backend() == 'gpu' else 'cpu'} in the environment"
        )
