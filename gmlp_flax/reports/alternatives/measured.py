"""The measured columns of `gmlp reproduce alternatives`: their files, and what they say of each row."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from gmlp_flax.errors import DataError, RunError
from gmlp_flax.io import json_files, run_files
from gmlp_flax.reports.scaling import PowerLaw, power_law

Made = TypeVar("Made")
FITTED_FROM = 1024  # tokens: below, what does not grow with n takes most of a step


class Cost(NamedTuple):
    """A training step of a row at a number of tokens.

    Attributes:
        tokens: in a sequence.
        batch: sequences in a step.
        seconds: of each measured step; empty if it was compiled only.
        size: bytes of the step's program: its arguments and temporaries.
        flops: operations of one sequence's forward pass.
    """

    tokens: int
    batch: int
    seconds: tuple[float, ...]
    size: float
    flops: float

    @property
    def per_thousand(self) -> tuple[float, ...]:
        """Milliseconds per 1,000 tokens, of each measured step."""
        return tuple(1e6 * seconds / (self.batch * self.tokens) for seconds in self.seconds)

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.batch * self.tokens / statistics.median(self.seconds)


class Compiled(NamedTuple):
    """A training step compiled for one TPU chip that is not here: bytes at its peak, whether that fits, seconds at
    least, and the number of its tokens."""

    peak: int
    fits: bool
    seconds: float
    tokens: int


Costs = Mapping[str, Mapping[int, Cost]]


def path(folder: str, column: str, row: str, tokens: int = 0) -> str:
    """The file of a measured column for a row, and for a number of tokens if it has one file for each."""
    return os.path.join(folder, column, f"{row}{f'-{tokens}' if tokens else ''}.json")


def costs(folder: str, rows: Sequence[str]) -> dict[str, dict[int, Cost]]:
    """Row -> tokens -> what `gmlp benchmark mixers` measured; without rows that have none.

    Raises:
        RunError: a file is damaged.
    """
    return _by_length(folder, "costs", rows, list, _cost)


def compiled(folder: str, rows: Sequence[str]) -> dict[str, dict[int, Compiled]]:
    """Row -> tokens in a sequence -> its step on a TPU chip, from `gmlp plan`. Raises RunError: a file is damaged."""
    return _by_length(
        folder,
        "tpu",
        rows,
        dict,
        lambda plan: Compiled(plan["per_chip_bytes"]["peak"], plan["fits"], plan["step_seconds"], plan["tokens"]),
    )


def lengths(folder: str, rows: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Row -> what `analysis.lengths.score` found. Raises RunError: a file is damaged."""
    places = {row: path(folder, "lengths", row) for row in rows}
    return {row: _read(place, dict, _scores) for row, place in places.items() if run_files.exists(place)}


def _cost(entries: Sequence[Mapping[str, Any]]) -> Cost:
    by_figure = {entry["figure"]: entry for entry in entries}
    one, timed = by_figure["bytes"], by_figure.get("seconds", {"values": ()})
    return Cost(one["tokens"], one["batch"], tuple(timed["values"]), one["median"], by_figure["flops"]["median"])


def _scores(found: dict[str, Any]) -> dict[str, Any]:
    return {key: found[key] for key in ("length", "takes", "perplexity")}


def growth(by_length: Mapping[int, Cost], memory: bool = False) -> PowerLaw | None:
    """The power of n with which a sequence's time, or its memory, grows, fitted to all lengths from FITTED_FROM on;
    None for fewer than two."""
    points = [
        (cost.tokens, cost.size / cost.batch if memory else statistics.median(cost.seconds) / cost.batch)
        for cost in by_length.values()
        if cost.tokens >= FITTED_FROM and (memory or cost.seconds)
    ]
    return power_law(*zip(*points, strict=True)) if len(points) > 1 else None


def interval(law: PowerLaw) -> str:
    """The exponent's interval in words."""
    return "two lengths, no interval" if math.isinf(law.low) else f"{law.low:.2f} to {law.high:.2f}"


def nearest(by_length: Mapping[int, Cost], tokens: int) -> Cost | None:
    """The measured step whose length is nearest to a number of tokens, by their ratio; None if nothing was timed, or if
    the nearest is more than twice as long or short."""
    timed = [cost for cost in by_length.values() if cost.seconds]
    best = min(timed, key=lambda cost: abs(math.log(cost.tokens / tokens)), default=None)
    return best if best and abs(math.log2(best.tokens / tokens)) <= 1 else None


def _by_length(
    folder: str, column: str, rows: Sequence[str], kind: type, make: Callable[[Any], Made]
) -> dict[str, dict[int, Made]]:
    """Row -> tokens -> what `make` makes of a file's JSON, in the order of the tokens; without rows that have none."""
    found: dict[str, dict[int, Made]] = {}
    for name in run_files.names(os.path.join(folder, column)):
        row, _, tokens = name.removesuffix(".json").rpartition("-")
        if row in rows and tokens.isdigit():
            found.setdefault(row, {})[int(tokens)] = _read(os.path.join(folder, column, name), kind, make)
    return {row: dict(sorted(found[row].items())) for row in rows if row in found}


def _read(place: str, kind: type, make: Callable[[Any], Made]) -> Made:
    again = "remove the file, and the same command measures it again"
    try:
        return make(json_files.read(place, kind))
    except DataError as error:
        raise RunError(f"{error}: {again}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{place} is none of our files ({type(error).__name__}: {error}): {again}") from None
