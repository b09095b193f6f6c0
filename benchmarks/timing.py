"""Timing and reporting for the benchmark's parts, and the training step that most of them
measure."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import tasks
from gmlp_flax.errors import RunError
from gmlp_flax.planning import dry_run
from gmlp_flax.tasks.base import Task
from gmlp_flax.training import step
from gmlp_flax.training.partition import Partition

Row = dict[str, Any]
MOST_SPREAD = 1 / 3  # of a row's repeats, relative to the smallest; beyond it there is no verdict


def measure(
    candidates: dict[str, Callable], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each call, by candidate. The candidates take turns; each timed call follows an
    untimed one."""
    seconds = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, call in candidates.items():
            call()
            start = clock()
            call()
            seconds[name].append(clock() - start)
    return seconds


def row(name: str, values: list[float], unit: str, goal: str = "") -> Row:
    """One row of the table: median, range, and whether the goal was reached.

    Args:
        name: what was measured.
        values: of the repeats.
        unit: theirs.
        goal: ">= NUMBER" or "<= NUMBER"; empty for none.
    """
    median = statistics.median(values)
    return {
        "name": name,
        "median": median,
        "min": min(values),
        "max": max(values),
        "unit": unit,
        "goal": goal,
        "verdict": _verdict(values, goal),
    }


def _verdict(values: list[float], goal: str) -> str:
    """ "reached", "missed", or why that cannot be said; empty without a goal."""
    if not goal:
        return ""
    spread = max(values) / min(values) - 1
    if spread > MOST_SPREAD:
        percent = 100 * spread
        return f"no verdict, the repeats differ by {percent:.0f} %"
    return "reached" if reaches(statistics.median(values), goal) else "missed"


def reaches(value: float, goal: str) -> bool:
    """Whether a value reaches a goal, ">= NUMBER" or "<= NUMBER"."""
    comparison, limit = goal.split()
    return value >= float(limit) if comparison == ">=" else value <= float(limit)


def ratios(top: list[float], bottom: list[float]) -> list[float]:
    """Quotients of measurements that took turns."""
    return [a / b for a, b in zip(top, bottom, strict=True)]


def per_second(count: float, seconds: list[float]) -> list[float]:
    """The rate of each measurement, of `count` things."""
    return [count / value for value in seconds]


def in_milliseconds(seconds: list[float]) -> list[float]:
    """Times in milliseconds."""
    return [1000 * value for value in seconds]


class Worker:
    """Calls in a separate process: in the same process, torch's waiting threads cost JAX a third of
    its speed.

    Raises:
        RunError: also from the calls: the process has died; its last words are on standard error.
    """

    def __init__(self, make: Callable[[], dict[str, Callable]]):
        context = multiprocessing.get_context("spawn")
        self._pipe, pipe_of_process = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, pipe_of_process), daemon=True)
        self._process.start()
        pipe_of_process.close()
        function = getattr(make, "func", make)  # the function of a partial
        self._what = function.__name__
        self.calls = {name: functools.partial(self._call, name) for name in self._receive()}

    def _call(self, name: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # _receive reports it
            self._pipe.send(name)
        self._receive()

    def _receive(self) -> Any:
        # Children of a process that has died may hold the other ends of all its pipes.
        while self._process.is_alive() and not self._pipe.poll(0.5):
            pass
        with contextlib.suppress(EOFError, ConnectionResetError):
            if self._pipe.poll():
                return self._pipe.recv()
        self._process.join()
        code = self._process.exitcode or 0
        ended = f"exit code {code}"
        if code < 0:
            ended = f"signal {signal.Signals(-code).name}"
        raise RunError(
            f"the process that measures {self._what} has died ({ended}): what it wrote stands above"
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()


def _serve(make: Callable[[], dict[str, Callable]], pipe) -> None:
    calls = make()
    pipe.send(list(calls))
    while True:
        call = calls[pipe.recv()]
        call()
        pipe.send(None)


def example_batch(task: Task, partition: Partition) -> dict[str, jax.Array]:
    """A batch of a task's shapes, with random integers that are small enough for any vocabulary or
    label set."""
    rng = np.random.default_rng(0)
    shapes = dry_run.batch_shapes(task, task.config.batch_size, partition.over_batch)
    batch = {}
    for name, x in shapes.items():
        numbers = rng.integers(5, 200, x.shape, x.dtype)
        batch[name] = jax.device_put(numbers, x.sharding)
    return batch


def step_call(options: ConfigDict) -> Callable[[], None]:
    """A call that makes a training step of a config on one batch, and waits for it."""
    task = tasks.find(options.task)(options)
    partition = Partition.make()
    training = step.Training(task, partition)
    state = [training.init(jax.random.key(0))]
    batch = example_batch(task, partition)

    def run() -> None:
        state[0], window = training.step(state[0], batch)
        jax.block_until_ready((state[0], window))

    return run
