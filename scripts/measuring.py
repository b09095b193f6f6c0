"""How the benchmark's parts measure: alternately, each timed call after an untimed one; what they report; and the
training step, which most of them measure.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from gmlp_flax.training import dry_run, optimizer, partition, step

CONFIGS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "configs")

Row = dict[str, object]


def measure(
    candidates: dict[str, Callable], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each call, the candidates in turn. Each timed call follows one that is not, as steps follow steps."""
    seconds = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, call in candidates.items():
            call()
            begin = clock()
            call()
            seconds[name].append(clock() - begin)
    return seconds


def row(name: str, values: list[float], unit: str, goal: str = "") -> Row:
    """One line of the table: median and range."""
    return {
        "name": name, "median": statistics.median(values), "min": min(values), "max": max(values), "unit": unit,
        "goal": goal,
    }


def ratios(top: list[float], bottom: list[float]) -> list[float]:
    """Of measurements taken in turn."""
    return [a / b for a, b in zip(top, bottom, strict=True)]


class Worker:
    """Calls made in a process of their own: torch's threads, waiting, take a third of JAX's speed in the same one."""

    def __init__(self, make: Callable[[], dict[str, Callable]]):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, theirs), daemon=True)
        self._process.start()
        self.calls = {name: functools.partial(self._call, name) for name in self._pipe.recv()}

    def _call(self, name: str) -> None:
        self._pipe.send(name)
        self._pipe.recv()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()


def _serve(make: Callable[[], dict[str, Callable]], pipe) -> None:
    calls = make()
    pipe.send(list(calls))
    while True:
        calls[pipe.recv()]()
        pipe.send(None)


def example_batch(options: ConfigDict, mesh: Mesh) -> dict[str, jax.Array]:
    """A batch with the shapes of a config's, its integers random and small enough for any vocabulary or label."""
    rng, shapes = np.random.default_rng(0), dry_run.batch_shapes(options, mesh)
    return {name: jax.device_put(rng.integers(5, 200, x.shape, x.dtype), x.sharding) for name, x in shapes.items()}


def step_call(options: ConfigDict, mesh: Mesh | None = None, steps: int = 1) -> Callable[[], None]:
    """So many training steps of a config, on one batch again and again: dispatched at once, then awaited."""
    task, mesh = dry_run.dataless_task(options), mesh or partition.make_mesh()
    params = jax.jit(task.init)(jax.random.key(0))
    transformation = optimizer.make(options, params)
    kept = jax.tree.map(lambda x: x.sharding, step.describe_state(task, transformation, options, mesh))
    initial = functools.partial(step.init_state, task, transformation, options)
    state = [jax.jit(initial, out_shardings=kept)(params)]  # else the second step compiles again
    train_step = step.make_train_step(task, transformation, mesh, options)
    batch = example_batch(options, mesh)

    def run() -> None:
        for _ in range(steps):
            state[0], window = train_step(state[0], batch)
        jax.block_until_ready((state[0], window))

    return run
