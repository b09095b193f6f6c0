"""Recall of causal models over their width: the figures and the tables of docs/results/recall.md.

    python -m docs.results.recall runs/reproduce/recall-cpu

reads the runs of `gmlp reproduce recall` and writes recall.csv, where each run of a finished cell
ended, and recall-steps.csv, their accuracy over the steps at n = 64 and d = 32. Cells that these
runs have not finished keep their lines, so the files can be made in several parts.
"""

import csv
import dataclasses
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from docs import generate
from docs.results import longer
from gmlp_flax.checkpoints import METRICS_FILE, metrics_file
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.paper import recall
from gmlp_flax.paper.recall import PAIRS, Cell
from gmlp_flax.reports.recall import Plan, best_rate
from gmlp_flax.sweeps import points

SCALE = "cpu"
ENDS = "recall"
STEPS = "recall-steps"
END_TITLES = ("row", "n", "d", "rate", "seed", "accuracy (%)", "steps")
STEP_TITLES = ("row", "seed", "step", "accuracy (%)")
SHOWN = (64, 32)  # n and d of the accuracies over steps, and of the table of all mixers
# Row -> what it is: those of every width, in the order of the table.
WHAT = {
    "bert_causal": "attention, learned positions",
    "amlp_causal": "aMLP: a gate and one head of 64",
    "sgu_causal": "gMLP: a Toeplitz gate alone",
}
# Those of SHOWN alone.
OTHERS = {
    "modern_causal": "attention of today (Llama's block)",
    "amlp_128_causal": "aMLP, one head of 128",
    "amlp_16_causal": "aMLP, one head of 16",
    "delta_causal": "gated delta rule",
    "hydra_causal": "state space, one direction of Hydra",
    "bigs_causal": "diagonal state space in gates",
    "long_conv_causal": "gated long convolution (Hyena)",
    "depthwise_causal": "gMLP with a convolution for each channel",
    "sgu_dense_causal": "gMLP, a dense W",
}
ROWS = (*WHAT, *OTHERS)

Line = tuple[str, ...]

# From runs to CSV files.


def ends(folder: str) -> Iterator[Line]:
    """The lines of recall.csv: of each cell whose seeds have all ended."""
    for cell, rate, runs in _cells_of(folder):
        for seed, run in zip(recall.SEEDS, runs, strict=True):
            result = metrics_file.read_result(run)
            assert result is not None
            percent = 100 * result["eval"]["accuracy"]
            yield _line(*cell, f"{rate:g}", seed, f"{percent:.2f}", result["step"])


def over_steps(folder: str) -> Iterator[Line]:
    """The lines of recall-steps.csv: the rows of WHAT."""
    for cell, _, runs in _cells_of(folder):
        if cell.row not in WHAT or (cell.length, cell.width) != SHOWN:
            continue
        for seed, run in zip(recall.SEEDS, runs, strict=True):
            path = os.path.join(run, METRICS_FILE)
            lines = MetricsFile.read(path)
            for step, metrics in metrics_file.evaluations(lines).items():
                percent = 100 * metrics["accuracy"]
                yield _line(cell.row, seed, step, f"{percent:.2f}")


def _line(*cells: object) -> Line:
    return tuple(str(cell) for cell in cells)


def _cells_of(folder: str) -> Iterator[tuple[Cell, float, list[str]]]:
    """Each cell whose seeds have all ended, with its rate and the folders of its runs."""
    plan = Plan(ROWS, SCALE, folder)
    for cell in plan.cells():
        rate = best_rate(plan, cell)
        if rate is None:
            continue
        runs = []
        for point in recall.points(cell, SCALE, rate):
            runs.append(os.path.join(folder, points.name(point)))
        if all(metrics_file.read_result(run) for run in runs):
            yield cell, rate, runs


def write(name: str, titles: Sequence[str], lines: Iterable[Line], of_cell: int) -> None:
    """Writes a file of docs/results/data; the lines of other cells stay.

    Args:
        name: of the file.
        titles: of its columns.
        lines: the new ones.
        of_cell: how many of the first columns say which cell a line belongs to.
    """
    path = generate.DATA / f"{name}.csv"
    groups = longer.grouped(_read(path), of_cell)
    groups |= longer.grouped(lines, of_cell)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(titles)
        for cell in sorted(groups, key=_sort_key):
            writer.writerows(groups[cell])


def _read(path: Path) -> list[Line]:
    """The lines of a file without its titles; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        _, *lines = csv.reader(file)
    return [tuple(line) for line in lines]


def _sort_key(cell: Line) -> tuple[int, ...]:
    """Sorts cells: the rows as in the tables, then by length and width."""
    row, *sizes = cell
    return ROWS.index(row), *map(int, sizes)


# From CSV files to the page.


class Seed(NamedTuple):
    """Where a run ended.

    Attributes:
        accuracy: in percent.
        steps: that it took.
    """

    accuracy: float
    steps: int


class Size(NamedTuple):
    """A length n of the sequences and a width d of the model."""

    length: int
    width: int


@dataclasses.dataclass
class Ends:
    """Where the seeds of a row ended at a length and a width.

    Attributes:
        length, width: n and d.
        rate: their peak learning rate.
        seeds: from the lowest to the highest accuracy.
    """

    length: int
    width: int
    rate: float
    seeds: list[Seed] = dataclasses.field(default_factory=list)

    def add(self, seed: Seed) -> None:
        """Adds a seed."""
        self.seeds = sorted([*self.seeds, seed])

    @property
    def size(self) -> Size:
        """Its length and width."""
        return Size(self.length, self.width)

    @property
    def accuracies(self) -> list[float]:
        """In percent, from the lowest to the highest."""
        return [seed.accuracy for seed in self.seeds]

    @property
    def median(self) -> float:
        """The middle one of three accuracies."""
        middle = len(self.seeds) // 2
        return self.accuracies[middle]


def cells() -> dict[str, list[Ends]]:
    """Row -> its cells, of three seeds each."""
    by_cell: dict[Cell, Ends] = {}
    for line in generate.read(ENDS):
        length = int(line["n"])
        width = int(line["d"])
        cell = Cell(line["row"], length, width)
        if cell not in by_cell:
            rate = float(line["rate"])
            by_cell[cell] = Ends(length, width, rate)
        accuracy = float(line["accuracy (%)"])
        seed = Seed(accuracy, int(line["steps"]))
        by_cell[cell].add(seed)
    by_row: dict[str, list[Ends]] = {}
    for cell, ended in by_cell.items():
        by_row.setdefault(cell.row, []).append(ended)
    return by_row


def section() -> str:
    """The table of the rows of WHAT, with all three seeds: a column for each length and width at
    which all of them were trained."""
    by_row = cells()
    by_size = {}
    for row in WHAT:
        by_size[row] = {cell.size: cell for cell in by_row.get(row, ())}
    trained = [set(cells_of_row) for cells_of_row in by_size.values()]
    sizes = sorted(set.intersection(*trained))
    titles = ["model"]
    guesses = ["a guess among the values shown"]
    for size in sizes:
        titles.append(f"n = {size.length}, d = {size.width}")
        guess = 100 / PAIRS[size.length]
        guesses.append(f"{guess:.1f}")
    lines = []
    for row, what in WHAT.items():
        percents = [_percents(by_size[row][size]) for size in sizes]
        lines.append([f"`{row}`, {what}", *percents])
    lines.append(guesses)
    return generate.markdown_table(titles, lines)


def mixers_section() -> str:
    """The table of all rows at SHOWN: accuracies, and the steps of the seeds that solve it."""
    titles = ["model", "accuracy (%)", "steps, in the same order", "rate"]
    lines = []
    by_row = cells()
    for row, what in (WHAT | OTHERS).items():
        for cell in by_row.get(row, ()):
            if cell.size == SHOWN:
                steps = ", ".join(f"{seed.steps:,}" for seed in cell.seeds)
                lines.append([f"`{row}`, {what}", _percents(cell), steps, f"{cell.rate:g}"])
    return generate.markdown_table(titles, lines)


def _percents(cell: Ends) -> str:
    return ", ".join(f"{accuracy:.0f}" for accuracy in cell.accuracies)


if __name__ == "__main__":
    [runs_folder] = sys.argv[1:]
    write(ENDS, END_TITLES, ends(runs_folder), of_cell=3)
    write(STEPS, STEP_TITLES, over_steps(runs_folder), of_cell=1)
