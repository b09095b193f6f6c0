"""What watches a run: the progress line, a trace of some steps, TensorBoard and Weights & Biases.

Both trackers are optional, and imported only if a config asks for them. The metrics of a run are in
its folder anyway, so no error of a tracker ends the run: the error is printed in one line, and the
run continues without the tracker.
"""

import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import tqdm
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.config import validation
from gmlp_flax.errors import RunError, install
from gmlp_flax.io import files
from gmlp_flax.io.logs import BEAT
from gmlp_flax.processes import distributed

Callback = Callable[[int, dict[str, float]], object]
PROFILE = "profile"  # folder of the trace
SLOW_STEP = 0.5  # seconds


class _Started(NamedTuple):
    """The first step that this process has finished, and when."""

    step: int
    time: float


class Progress:
    """On a terminal, one live line. Elsewhere, a plain line whenever the loss is logged, and between
    those one whenever nothing was printed for BEAT seconds. The first process shows them.

    Times are measured from the end of the first step of this process, so that compilation does not
    count.

    Args:
        first: the step from which the run starts or resumes.
        steps: the last step of the run.
        per_step: units per step.
        unit: what is counted (`Task.unit`).
        name: of the run, if several are trained together, before each line.
    """

    def __init__(self, first: int, steps: int, per_step: int, unit: str, name: str = ""):
        self._prefix = f"{name}: " if name else ""
        self.steps = steps
        self.per_step = per_step
        self.unit = unit
        self._started: _Started | None = None
        self._last_line = time.perf_counter()
        is_live = sys.stderr.isatty() and distributed.is_first() and not name
        self._bar = tqdm.tqdm(
            total=steps,
            initial=first,
            # without a postfix, which tqdm begins with a comma
            bar_format="step {n}/{total} {percentage:3.0f}%|{bar}| {desc}",
            file=sys.stderr,
            disable=not is_live,
        )

    def rate(self, step: int) -> float:
        """Units per second since the first step of this process; 0 before its end."""
        started = self._started
        if started is None or step <= started.step:
            return 0.0
        steps = step - started.step
        units = steps * self.per_step
        seconds = time.perf_counter() - started.time
        return units / seconds

    def advance(self, step: int) -> None:
        """Notes that the devices have finished a step."""
        if self._started is None:
            now = time.perf_counter()
            self._started = _Started(step, now)
        new_steps = step - self._bar.n
        self._bar.update(new_steps)

    def show_step(self, step: int) -> None:
        """Prints a plain line, if there was none for BEAT seconds. Of several runs that are trained
        together, only the lines of the loss are shown."""
        silence = time.perf_counter() - self._last_line
        shows_steps = self._bar.disable and not self._prefix
        if not shows_steps or silence < BEAT:
            return
        speed = "the first of this process"
        if self.rate(step):
            speed = self._speed(step)
        self.show(f"step {step}/{self.steps}  {speed}")

    def is_slow(self, step: int) -> bool:
        """Whether a step takes longer than SLOW_STEP, or it is not known yet how long it takes."""
        rate = self.rate(step)
        units_of_slow_step = rate * SLOW_STEP
        return units_of_slow_step < self.per_step

    def show_loss(self, step: int, loss: float) -> None:
        """Shows the newest loss."""
        speed = self._speed(step)
        text = f"loss {loss:.4f}  {speed}"
        if self._bar.disable:
            self.show(f"step {step}/{self.steps}  {text}")
        else:
            self._bar.set_description_str(text)

    def _speed(self, step: int) -> str:
        """The rate, and the time that is left."""
        rate = self.rate(step)
        steps_left = self.steps - step
        units_left = steps_left * self.per_step
        seconds_left = 0.0
        if rate:
            seconds_left = units_left / rate
        eta = tqdm.tqdm.format_interval(seconds_left)
        return f"{rate:,.0f} {self.unit}/s  ETA {eta}"

    def show(self, text: str) -> None:
        """Prints a line above the live one."""
        self._last_line = time.perf_counter()
        text = f"{self._prefix}{text}"
        if self._bar.disable:
            distributed.say(text)
        else:
            self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        self._bar.close()


class Profile:
    """Writes a trace of the steps in `config.profile.steps` to the run folder, for XProf,
    TensorBoard and Perfetto.

    Only the first process writes one: all run the same program, and its trace shows how long it
    waits for the others.
    """

    def __init__(self, config: ConfigDict, workdir: str):
        self._steps = range(0)
        steps = validation.profile_steps(config.profile.steps, config.steps)
        if distributed.is_first():
            self._steps = steps
        self._folder = os.path.join(workdir, PROFILE)
        self._tracing = False

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


class _TensorBoard:
    """One file of events, with the config as text."""

    def __init__(self, config: ConfigDict, folder: str, _run: str, step: int):
        import tensorboardX  # type: ignore[import-not-found]  # an extra

        events = os.path.join(folder, "tensorboard")
        self._staged = files.StagingFolder(events)
        # Events of steps that are taken again are not shown twice.
        next_step = step + 1
        self._writer = tensorboardX.SummaryWriter(self._staged.path, purge_step=next_step)
        text = config_lib.to_json(config)
        self._writer.add_text("config", f"```\n{text}```")

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
        self._staged.close()


class _Wandb:
    """A run with the id of the run folder, so that a resumed run continues it, and no other run
    does."""

    def __init__(self, config: ConfigDict, folder: str, run: str, _step: int):
        import wandb  # type: ignore[import-not-found]  # an extra

        self._staged = files.StagingFolder(folder)
        name = os.path.basename(folder)
        values = config.to_dict()
        self._run = wandb.init(
            project=config.log.wandb,
            name=name,
            id=run,
            resume="allow",
            dir=self._staged.path,
            config=values,
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()
        self._staged.close()


class _Tracker(NamedTuple):
    """A kind of tracker: the package that it needs, and its class."""

    package: str
    make: Callable[[ConfigDict, str, str, int], Any]


TRACKERS = {  # by key of config.log
    "tensorboard": _Tracker("tensorboardX", _TensorBoard),
    "wandb": _Tracker("wandb", _Wandb),
}


class Trackers:
    """The trackers that a config asks for, on the first process alone.

    Args:
        log: config.log.
        callbacks: the user's functions (step, values), called after the trackers. Their errors end
            the run.

    Raises:
        RunError: the package of a tracker is not installed. The message has the command that
            installs it.
    """

    def __init__(self, log: Mapping[str, Any], callbacks: Iterable[Callback] = ()):
        self._callbacks = list(callbacks) if distributed.is_first() else []
        self._to_begin = [name for name in TRACKERS if log[name]]
        self._trackers = {}
        for name in self._to_begin:
            package = TRACKERS[name].package
            if importlib.util.find_spec(package) is None:
                command = install(name)
                raise RunError(
                    f"config.log.{name} needs a package that is not installed: {command}"
                )

    def begin(self, config: ConfigDict, folder: str, run: str, step: int) -> None:
        """Begins the trackers of the run with the id `run`, unless that happened; `step` is the
        last one before those to be logged."""
        if distributed.is_first():
            for name in self._to_begin:
                kind = TRACKERS[name]
                with self._attempt(name):
                    self._trackers[name] = kind.make(config, folder, run, step)
        self._to_begin = []

    def log(self, step: int, group: str, values: dict[str, float]) -> None:
        """Records values as `group/name`."""
        scalars = {}
        for name, value in values.items():
            scalars[f"{group}/{name}"] = value
        trackers = list(self._trackers.items())  # a failing one is removed
        for name, tracker in trackers:
            with self._attempt(name):
                tracker.log(step, scalars)
        for callback in self._callbacks:
            callback(step, scalars)

    def close(self) -> None:
        """Writes what is pending."""
        trackers = list(self._trackers.items())  # a failing one is removed
        for name, tracker in trackers:
            with self._attempt(name):
                tracker.close()

    @contextlib.contextmanager
    def _attempt(self, name: str) -> Iterator[None]:
        """An error removes the tracker, and is reported in one line."""
        try:
            yield
        except Exception as error:
            self._trackers.pop(name, None)
            kind = type(error).__name__
            words = str(error).split()
            one_line = " ".join(words)
            reason = one_line[:200]
            distributed.say(f"{name}: {kind}: {reason}; the run continues without it")
