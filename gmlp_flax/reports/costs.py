"""The costs of training steps of the token mixers: time and memory, and how they grow with the
number of tokens. `gmlp benchmark mixers` measures them."""

import math
import os
import re
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.looks import Look
from gmlp_flax.errors import RunError, decode_errors
from gmlp_flax.io import files, json_files
from gmlp_flax.reports.report import looks, over_seeds
from gmlp_flax.reports.scaling import PowerLaw, power_law
from gmlp_flax.reports.table import Cells, Spread
from gmlp_flax.sweeps import points

FITTED_FROM = 1024  # tokens: with fewer, most of a step is spent on what does not grow with n


class Cost(NamedTuple):
    """A training step of a row.

    Attributes:
        tokens: tokens in a sequence.
        batch: sequences in a step.
        seconds: the time of each repeat; empty if the step was only compiled.
        size: bytes of its program: arguments and temporaries.
    """

    tokens: int
    batch: int
    seconds: tuple[float, ...]
    size: float

    @property
    def per_thousand(self) -> Spread | None:
        """Milliseconds for 1,000 tokens, over repeats; None if the step was only compiled."""
        if not self.seconds:
            return None
        tokens = self.batch * self.tokens
        times = [1e6 * seconds / tokens for seconds in self.seconds]
        return Spread.median(times)

    @property
    def per_sequence(self) -> Spread:
        """Milliseconds for one sequence, over repeats."""
        times = [1e3 * seconds / self.batch for seconds in self.seconds]
        return Spread.median(times)

    @property
    def speed(self) -> float:
        """Tokens per second."""
        tokens = self.batch * self.tokens
        seconds = statistics.median(self.seconds)
        return tokens / seconds


Costs = Mapping[str, Mapping[int, Cost]]  # row -> tokens -> step


def cost_path(
    folder: str,
    row: str,
    tokens: int,
) -> str:
    """The file of a row at a number of tokens."""
    name = points.folder_name(f"{row}-{tokens}.json")
    return os.path.join(folder, "costs", name)


def read_costs(folder: str, rows: Sequence[str]) -> dict[str, dict[int, Cost]]:
    """The measurements of `gmlp benchmark mixers` for the rows, in their order; the shortest
    sequences first.

    Raises:
        DataError, RunError: a file is damaged.
    """
    folder = os.path.join(folder, "costs")
    row_of = {points.folder_name(row): row for row in rows}
    measured: dict[str, dict[int, Cost]] = {}
    for name in files.listdir(folder):
        match = re.fullmatch(r"(?P<row>.+)-(?P<tokens>\d+)\.json", name)
        if match is None:
            continue
        row = row_of.get(match["row"])
        if row is None:
            continue
        tokens = int(match["tokens"])
        path = os.path.join(folder, name)
        by_length = measured.setdefault(row, {})
        by_length[tokens] = _read(path)
    costs = {}
    for row in rows:
        if row in measured:
            by_length = measured[row]
            shortest_first = sorted(by_length.items())
            costs[row] = dict(shortest_first)
    return costs


def _read(path: str) -> Cost:
    """The measured step in a file; raises DataError or RunError if it is damaged."""
    advice = "remove it, and the same command measures it again"
    with decode_errors(f"{path} is damaged", advice, RunError):
        figures: dict[str, Any] = {}
        for entry in json_files.read(path, list):
            name = entry["figure"]
            figures[name] = entry
        memory = figures["bytes"]
        times = figures.get("seconds", {"values": ()})
        return Cost(
            memory["tokens"],
            memory["batch"],
            tuple(times["values"]),
            memory["median"],
        )


def growth(by_length: Mapping[int, Cost], memory: bool = False) -> PowerLaw | None:
    """The power of n with which a sequence's time, or its memory, grows, fitted to all lengths from
    FITTED_FROM on; None for fewer than two."""
    tokens = []
    amounts = []
    for cost in by_length.values():
        if cost.tokens < FITTED_FROM:
            continue
        if memory:
            amount = cost.size
        elif cost.seconds:
            amount = statistics.median(cost.seconds)
        else:
            continue
        tokens.append(cost.tokens)
        amounts.append(amount / cost.batch)
    if len(tokens) < 2:
        return None
    return power_law(tokens, amounts)


def nearest(
    costs: Costs,
    rows: Iterable[str],
    tokens: int,
) -> dict[str, Cost]:
    """The timed step of each row whose length is nearest to a number of tokens, by their ratio, and
    at most a factor of two away. Only speeds at one length compare: if rows differ in it, the rows
    with the shortest one are returned."""

    def distance(cost: Cost) -> float:
        """How far its length is from the number of tokens, in factors of two."""
        ratio = cost.tokens / tokens
        return abs(math.log2(ratio))

    steps = {}
    lengths = []
    for row in rows:
        by_length = costs.get(row, {})
        timed = [cost for cost in by_length.values() if cost.seconds]
        closest = min(timed, key=distance, default=None)  # the shorter of two
        if closest and distance(closest) <= 1:
            steps[row] = closest
            lengths.append(closest.tokens)
    shortest = min(lengths, default=0)
    return {row: step for row, step in steps.items() if step.tokens == shortest}


# Tables, notes and charts.


def cost_cells(costs: Costs) -> dict[str, Cells]:
    """Row -> its cells: time and memory at the shortest and at the longest length that was
    measured of any row, and how they grow."""
    lengths = set()
    timed_lengths = set()
    for cost in _all_steps(costs):
        lengths.add(cost.tokens)
        if cost.seconds:
            timed_lengths.add(cost.tokens)
    cells: dict[str, Cells] = {}
    for row, by_length in costs.items():
        row_cells: Cells = {}
        for n in _ends(timed_lengths):
            title = f"ms per 1,000 tokens, n = {n:,}"
            step = by_length.get(n)
            row_cells[title] = step.per_thousand if step else None
        for n in _ends(lengths):
            title = f"MB of a step, n = {n:,}"
            step = by_length.get(n)
            row_cells[title] = step.size / 1e6 if step else None
        time = growth(by_length)
        memory = growth(by_length, memory=True)
        row_cells["time grows as n^"] = time.exponent if time else None
        row_cells["95 % interval"] = time.interval() if time else None
        row_cells["memory grows as n^"] = memory.exponent if memory else None
        cells[row] = row_cells
    return cells


def _all_steps(costs: Costs) -> Iterator[Cost]:
    """The steps of all rows."""
    for by_length in costs.values():
        yield from by_length.values()


def _ends(values: Collection[int]) -> list[int]:
    """The smallest and the largest, which may be the same."""
    if not values:
        return []
    smallest = min(values)
    largest = max(values)
    return sorted({smallest, largest})


def cost_notes(costs: Costs) -> Iterator[str]:
    """Explains the costs, and names the steps that were not run."""
    if costs:
        yield (
            "Costs: a training step of the small shapes, of 2,048 tokens or two sequences; on a "
            "CPU, processor time."
        )
    laws = [growth(by_length) for by_length in costs.values()]
    if any(laws):
        yield (
            "Powers of n are those of a sequence's time and memory, fitted from "
            f"{FITTED_FROM:,} tokens on."
        )
    untimed = set()
    for row, by_length in costs.items():
        for cost in by_length.values():
            if not cost.seconds:
                untimed.add(f"{row} at {cost.tokens:,}")
    if untimed:
        steps = ", ".join(sorted(untimed))
        yield f"Compiled but not run, for want of memory: {steps}."


def cost_chart(costs: Costs, rows: Sequence[str]) -> Chart | None:
    """The time of a sequence over n, with the fitted powers; for one length, memory over time; None
    if no step was run. `rows` choose the looks."""
    look_of = looks(rows)
    lengths = set()
    series = []
    for row, by_length in costs.items():
        line = _times(row, look_of[row], by_length)
        series.append(line)
        lengths.update(line.x)
    if not lengths:
        return None
    if len(lengths) == 1:
        [length] = lengths
        return _chart_at(length, costs, look_of)
    panel = Panel(
        "Time over n",
        Scale("n", log=True),
        Scale("ms of a sequence in training", log=True),
        series,
    )
    return Chart([panel], f"Dashed: powers of n fitted from {FITTED_FROM:,} tokens on.")


def _chart_at(length: int, costs: Costs, look_of: Mapping[str, Look]) -> Chart:
    """The memory of a step over the time of a sequence, at the one length that was timed."""
    series = []
    for row, by_length in costs.items():
        cost = by_length.get(length)
        if cost is None or not cost.seconds:
            continue
        time = cost.per_sequence
        size = cost.size / 1e6
        look = look_of[row]
        point = Series(row, look, [time.centre], [size], labels=[row], joined=False)
        series.append(point)
    panel = Panel(
        f"Memory over time, n = {length:,}",
        Scale("ms of a sequence in training", log=True),
        Scale("MB of a step", log=True),
        series,
    )
    return Chart([panel], f"Only steps of {length:,} tokens were timed.")


def _times(
    row: str,
    look: Look,
    by_length: Mapping[int, Cost],
) -> Series:
    """The time of a row's sequence over n, with the fitted power if there is one."""
    law = growth(by_length)
    lengths = []
    times = []
    fit = []
    for n, cost in by_length.items():
        if not cost.seconds:
            continue
        lengths.append(n)
        times.append(cost.per_sequence)
        if law is not None:
            seconds = law(n)
            fit.append(1e3 * seconds)
    return over_seeds(row, look, lengths, times, fit=fit)
