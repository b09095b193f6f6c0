"""What a training step costs over n: files of the measured columns of `gmlp reproduce alternatives`, powers of n that
are fitted to them, and how they are shown."""

import math
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.drawing import Look
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.io import files, json_files
from gmlp_flax.reports.scaling import PowerLaw, power_law
from gmlp_flax.reports.series import looks, over_seeds
from gmlp_flax.reports.table import Cell, Spread

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
    def per_thousand(self) -> Spread | None:
        """Milliseconds for 1,000 tokens, over repeats."""
        tokens = self.batch * self.tokens
        return Spread.median(1e6 * seconds / tokens for seconds in self.seconds) if self.seconds else None

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.batch * self.tokens / statistics.median(self.seconds)


Costs = Mapping[str, Mapping[int, Cost]]  # row -> tokens -> step


def path(folder: str, row: str, tokens: int) -> str:
    """The file of a row at a number of tokens."""
    return os.path.join(folder, "costs", f"{row}-{tokens}.json")


def costs(folder: str, rows: Sequence[str]) -> dict[str, dict[int, Cost]]:
    """What `gmlp benchmark mixers` measured. Raises RunError: a file is damaged."""
    by_row: dict[str, dict[int, Cost]] = {}
    for name in files.listdir(os.path.join(folder, "costs")):
        if (match := re.fullmatch(r"(\w+)-(\d+)\.json", name)) and match[1] in rows:
            try:
                entries: Any = json_files.read(os.path.join(folder, "costs", name), list)
            except DataError as error:
                raise RunError(f"{error}: remove the file, and the same command measures it again") from None
            figures = {entry["figure"]: entry for entry in entries}
            size, timed = figures["bytes"], figures.get("seconds", {"values": ()})
            cost = Cost(size["tokens"], size["batch"], tuple(timed["values"]), size["median"])
            by_row.setdefault(match[1], {})[int(match[2])] = cost
    return {row: dict(sorted(by_row[row].items())) for row in rows if row in by_row}


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


def columns(costs: Costs) -> dict[str, Mapping[str, Cell]]:
    """Title -> row -> cell: time and memory at the shortest and at the longest length that was measured, and how they
    grow."""
    titles: dict[str, Mapping[str, Cell]] = {}
    steps = [cost for by_length in costs.values() for cost in by_length.values()]
    for n in _ends([cost.tokens for cost in steps if cost.seconds]):
        titles[f"ms per 1,000 tokens, n = {n:,}"] = {
            row: costs[row][n].per_thousand for row in costs if n in costs[row]
        }
    for n in _ends([cost.tokens for cost in steps]):
        titles[f"MB of a step, n = {n:,}"] = {row: costs[row][n].size / 1e6 for row in costs if n in costs[row]}
    for title, memory in (("time grows as n^", False), ("memory grows as n^", True)):
        titles[title] = {row: law.exponent for row, steps in costs.items() if (law := growth(steps, memory))}
    return titles


def _ends(values: Sequence[int]) -> list[int]:
    """The smallest and the largest, which may be one."""
    return sorted({min(values), max(values)}) if values else []


def notes(costs: Costs) -> Iterator[str]:
    """What the costs are, and the fitted powers with their intervals."""
    if costs:
        yield "Costs: a training step of the small shapes, of 2,048 tokens or two sequences; on a CPU, processor time."
    laws = {row: (growth(steps), growth(steps, memory=True)) for row, steps in costs.items()}
    fits = [
        f"{row} {time.exponent:.2f} ({time.interval()}) and {size.exponent:.2f}"
        for row, (time, size) in laws.items()
        if time and size
    ]
    if fits:
        fitted = f"fitted from {FITTED_FROM:,} tokens on, 95 % interval"
        yield f"Time and memory of a sequence grow as n to a power ({fitted}): {'; '.join(fits)}."
    steps = [(row, cost) for row, by_length in costs.items() for cost in by_length.values()]
    if untimed := sorted({f"{row} at {cost.tokens:,}" for row, cost in steps if not cost.seconds}):
        yield f"Compiled but not run, for want of memory: {', '.join(untimed)}."


def chart(costs: Costs, rows: Sequence[str]) -> Chart | None:
    """Time and memory per 1,000 tokens over n, with the fitted powers; None for one length. `rows` choose the looks."""
    if len({n for by_length in costs.values() for n in by_length}) < 2:
        return None
    powers = [law.exponent for by_length in costs.values() if (law := growth(by_length))]
    title = "Time per token over n"
    if powers:
        title = f"A sequence's time grows as n^{min(powers):.2f} to n^{max(powers):.2f}"
    n, look_of = Scale("n", log=True), looks(rows)

    def panel(title: str, y: str, memory: bool) -> Panel:
        lines = [_line(row, look_of[row], by_length, memory) for row, by_length in costs.items()]
        return Panel(title, n, Scale(y, log=True), [line for line in lines if len(line.x)])

    time = panel(title, "ms per 1,000 tokens", memory=False)
    memory = panel("Memory of a training step", "MB per 1,000 tokens", memory=True)
    return Chart([time, memory], f"Dashed: powers of n fitted from {FITTED_FROM:,} tokens on." if powers else "")


def _line(row: str, look: Look, by_length: Mapping[int, Cost], memory: bool) -> Series:
    """A row's line; if a power was fitted, it is drawn through the lengths that it was fitted to."""
    y = {cost.tokens: cost.per_thousand for cost in by_length.values() if cost.per_thousand}
    if memory:
        sizes = {cost.tokens: cost.size / (1e3 * cost.batch * cost.tokens) for cost in by_length.values()}
        y = {n: Spread(size, (size,)) for n, size in sizes.items()}
    law, fit = growth(by_length, memory), []
    if law:
        # The law is of a sequence, in bytes or in seconds: a thousand tokens are 1,000 / n of it.
        scale = 1e-3 if memory else 1e6
        fit = [scale / n * law(n) if n >= FITTED_FROM else spread.centre for n, spread in y.items()]
    return over_seeds(row, look, list(y), list(y.values()), fit=fit)
