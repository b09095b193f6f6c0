"""Recall of causal models over their width: the figure and the table of docs/recall.md, from
recall.csv, which is the file table-cells.csv of the report of `gmlp reproduce recall`."""

import dataclasses
from collections.abc import Sequence

from docs import generate
from gmlp_flax.paper.recall import PAIRS

FILE = "recall"
# Row -> what it is, in the order of the table.
WHAT = {
    "bert_causal": "attention, learned positions",
    "amlp_causal": "aMLP: a gate and one head of 64",
    "sgu_causal": "gMLP: a Toeplitz gate alone",
}
PERCENT = "accuracy (%)"


@dataclasses.dataclass(frozen=True)
class Cell:
    """What the seeds of a row reach at a length and a width.

    Attributes:
        length, width: n and d.
        seeds: their accuracies in percent, from the lowest to the highest.
        rate: their peak learning rate.
    """

    length: int
    width: int
    seeds: Sequence[float]
    rate: float

    @property
    def median(self) -> float:
        """The middle one of three seeds."""
        return self.seeds[len(self.seeds) // 2]


def cells() -> dict[str, list[Cell]]:
    """Row -> its cells, of three seeds each."""
    found: dict[str, list[Cell]] = {}
    for line in generate.read(FILE):
        lowest = float(line[f"{PERCENT} lowest"])
        highest = float(line[f"{PERCENT} highest"])
        mean = float(line[PERCENT])
        count = int(line[f"{PERCENT} seeds"])
        assert count == 3, f"{FILE}.csv: {line['model']} has {count} seeds"
        middle = 3 * mean - lowest - highest
        cell = Cell(int(line["n"]), int(line["d"]), (lowest, middle, highest), float(line["rate"]))
        found.setdefault(line["model"], []).append(cell)
    return found


def section() -> str:
    """The table: a line for each row, a column for each length and width, with all three seeds."""
    by_row = cells()
    places = sorted({(cell.length, cell.width) for row in by_row.values() for cell in row})
    titles = ["model", *(f"n = {length}, d = {width}" for length, width in places)]
    lines = [titles, ["---"] * len(titles)]
    for row, what in WHAT.items():
        accuracies = {(cell.length, cell.width): cell for cell in by_row.get(row, ())}
        if not accuracies:
            continue
        line = [f"`{row}`, {what}"]
        for place in places:
            cell = accuracies.get(place)
            line.append("" if cell is None else ", ".join(f"{seed:.0f}" for seed in cell.seeds))
        lines.append(line)
    guesses = ["a guess among the values shown"]
    guesses += [f"{100 / PAIRS[length]:.1f}" for length, _ in places]
    lines.append(guesses)
    return "".join(f"| {' | '.join(cells_of)} |\n" for cells_of in lines)
