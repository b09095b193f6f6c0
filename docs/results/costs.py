"""What a training step of every row of the alternatives costs.

    python -m docs.results.costs runs/reproduce/alternatives-cpu

reads the measurements of `gmlp reproduce alternatives --columns=costs` and writes
alternatives-costs.csv, from which the table of which-mixer.md is made.
"""

import csv
import sys
from collections.abc import Mapping

from docs import generate
from docs.results import longer
from gmlp_flax.paper.alternatives import ROWS
from gmlp_flax.reports import costs as costs_lib
from gmlp_flax.reports.costs import Cost

FILE = "alternatives-costs.csv"
TITLES = ("row", "tokens", "batch", "median_seconds", "lowest", "highest", "bytes")
TIMES = (128, 1024, 8192)  # tokens of the columns
MEMORY = (1024, 8192)


def write(folder: str) -> None:
    """Writes the file from a folder of measurements."""
    measured = costs_lib.read_costs(folder, ROWS)
    with (generate.DATA / FILE).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(TITLES)
        for row, by_length in measured.items():
            for tokens, cost in by_length.items():
                times = _seconds(cost)
                size = int(cost.size)
                writer.writerow([row, tokens, cost.batch, *times, size])


def _seconds(cost: Cost) -> list[str]:
    """The median, lowest and highest time of a step; empty if it was only compiled."""
    if not cost.seconds:
        return ["", "", ""]
    milliseconds = cost.per_sequence.centre * cost.batch
    median = milliseconds / 1e3
    times = (median, min(cost.seconds), max(cost.seconds))
    return [f"{seconds:.4f}" for seconds in times]


def section() -> str:
    """The table of the page, the row that takes the least time for long sequences first."""
    costs = generate.costs()
    titles = ["row", "what mixes tokens"]
    titles += [f"ms, n = {tokens:,}" for tokens in TIMES]
    titles.append("time grows as")
    titles += [f"MB, n = {tokens:,}" for tokens in MEMORY]
    titles.append("memory grows as")

    def time_of_longest(row: str) -> float:
        time = costs[row][TIMES[-1]].per_thousand
        return float("inf") if time is None else time.centre

    names = sorted(costs, key=time_of_longest)
    rows = [_cells(name, costs[name]) for name in names]
    return generate.markdown_table(titles, rows)


def _cells(row: str, by_length: Mapping[int, Cost]) -> list[str]:
    """A line of the table."""
    cells = [f"`{row}`", longer.WHAT[row]]
    for tokens in TIMES:
        time = by_length[tokens].per_thousand
        cells.append("" if time is None else f"{time.centre:,.0f}")
    cells.append(_growth(by_length, memory=False))
    for tokens in MEMORY:
        megabytes = by_length[tokens].size / 1e6
        cells.append(f"{megabytes:,.0f}")
    cells.append(_growth(by_length, memory=True))
    return cells


def _growth(by_length: Mapping[int, Cost], memory: bool) -> str:
    """The power of n with which the time or the memory of a sequence grows."""
    law = costs_lib.growth(by_length, memory)
    return "" if law is None else f"n^{law.exponent:.2f}"


if __name__ == "__main__":
    [runs] = sys.argv[1:]
    write(runs)
