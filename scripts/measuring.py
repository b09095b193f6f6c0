"""How the benchmark's parts measure: alternately, each timed call after an untimed one; and what they report."""

from __future__ import annotations

import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable

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
