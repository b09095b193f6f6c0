"""Files of the measured columns of `gmlp reproduce alternatives`, and what a training step costs over n."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gmlp_flax.errors import DataError, RunError
from gmlp_flax.io import files, json_files
from gmlp_flax.reports.scaling import PowerLaw, power_law

FITTED_FROM = 1024  # tokens: below, what does not grow with n takes most of a step


class Cost(NamedTuple):
    """A training step of a row.

    Attributes:
        tokens: in a sequence.
        batch: sequences in a step.
        seconds: of each repeat; empty if the step was compiled only.
        size: bytes of its program: arguments and temporaries.
    """

    tokens: int
    batch: int
    seconds: tuple[float, ...]
    size: float

    @property
    def per_thousand(self) -> list[float]:
        """Milliseconds for 1,000 tokens, of each repeat."""
        return [1e6 * seconds / (self.batch * self.tokens) for seconds in self.seconds]

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.batch * self.tokens / statistics.median(self.seconds)


Costs = Mapping[str, Mapping[int, Cost]]  # row -> tokens -> step


def path(folder: str, column: str, row: str, tokens: int = 0) -> str:
    """The file of a column for a row, and for a number of tokens if it has one file for each."""
    return os.path.join(folder, column, f"{row}{f'-{tokens}' if tokens else ''}.json")


def measurements(folder: str, column: str, rows: Sequence[str], kind: type = dict) -> dict[str, dict[int, Any]]:
    """Row -> tokens -> the JSON of a column's file; 0 tokens if its name has none. Without rows that have no file.

    Raises:
        RunError: a file is damaged.
    """
    by_row: dict[str, dict[int, Any]] = {}
    for name in files.listdir(os.path.join(folder, column)):
        match = re.fullmatch(r"(\w+)(?:-(\d+))?\.json", name)
        if match and match[1] in rows:
            file = os.path.join(folder, column, name)
            try:
                by_row.setdefault(match[1], {})[int(match[2] or 0)] = json_files.read(file, kind)
            except DataError as error:
                raise RunError(f"{error}: remove the file, and the same command measures it again") from None
    return {row: dict(sorted(by_row[row].items())) for row in rows if row in by_row}


def costs(folder: str, rows: Sequence[str]) -> dict[str, dict[int, Cost]]:
    """What `gmlp benchmark mixers` measured. Raises RunError: a file is damaged."""
    files = measurements(folder, "costs", rows, list)
    return {row: {n: _cost(entries) for n, entries in by_length.items()} for row, by_length in files.items()}


def _cost(entries: Sequence[Mapping[str, Any]]) -> Cost:
    figures = {entry["figure"]: entry for entry in entries}
    size, timed = figures["bytes"], figures.get("seconds", {"values": ()})
    return Cost(size["tokens"], size["batch"], tuple(timed["values"]), size["median"])


def growth(by_length: Mapping[int, Cost], memory: bool = False) -> PowerLaw | None:
    """The power of n with which a sequence's time, or its memory, grows, fitted to all lengths from FITTED_FROM on;
    None for fewer than two."""
    points = [
        (cost.tokens, cost.size / cost.batch if memory else statistics.median(cost.seconds) / cost.batch)
        for cost in by_length.values()
        if cost.tokens >= FITTED_FROM and (memory or cost.seconds)
    ]
    return power_law(*zip(*points, strict=True)) if len(points) > 1 else None


def nearest(by_length: Mapping[int, Cost], tokens: int) -> Cost | None:
    """The timed step whose length is nearest to a number of tokens, by their ratio; None if it is further than a factor
    of two away."""
    timed = [cost for cost in by_length.values() if cost.seconds]
    best = min(timed, key=lambda cost: abs(math.log(cost.tokens / tokens)), default=None)
    return best if best and abs(math.log2(best.tokens / tokens)) <= 1 else None
