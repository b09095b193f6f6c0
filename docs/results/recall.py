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
            accuracy = 100 * result["eval"]["accuracy"]
            yield _line(*cell, f"{rate:g}", seed, f"{accuracy:.2f}", result["step"])


def over_steps(folder: str) -> Iterator[Line]:
    """The lines of recall-steps.csv: the rows of WHAT."""
    for cell, _, runs in _cells_of(folder):
        if cell.row not in WHAT or (cell.length, cell.width) != SHOWN:
            continue
        for seed, run in zip(recall.SEEDS, runs, strict=True):
            lines = MetricsFile.read(os.path.join(run, METRICS_FILE))
            for step, metrics in metrics_file.evaluations(lines).items():
                yield _line(cell.row, seed, step, f"{100 * metrics['accuracy']:.2f}")


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
    groups: dict[Line, list[Line]] = {}
    for old in _read(path):
        groups.setdefault(old[:of_cell], []).append(old)
    made: dict[Line, list[Line]] = {}
    for new in lines:
        made.setdefault(new[:of_cell], []).append(new)
    groups |= made
    in_order = sorted(groups.items(), key=lambda group: _place(group[0]))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(titles)
        for _, of_group in in_order:
            writer.writerows(of_group)


def _read(path: Path) -> list[Line]:
    """The lines of a file without its titles; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        _, *lines = csv.reader(file)
    return [tuple(line) for line in lines]


def _place(cell: Line) -> tuple[int, ...]:
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
    def accuracies(self) -> list[float]:
        """In percent, from the lowest to the highest."""
        return [seed.accuracy for seed in self.seeds]

    @property
    def median(self) -> float:
        """The middle one of three accuracies."""
        return self.accuracies[len(self.seeds) // 2]


def cells() -> dict[str, list[Ends]]:
    """Row -> its cells, of three seeds each."""
    found: dict[Cell, Ends] = {}
    for line in generate.read(ENDS):
        cell = Cell(line["row"], int(line["n"]), int(line["d"]))
        if cell not in found:
            found[cell] = Ends(cell.length, cell.width, float(line["rate"]))
        seed = Seed(float(line["accuracy (%)"]), int(line["steps"]))
        found[cell].add(seed)
    by_row: dict[str, list[Ends]] = {}
    for cell, ended in found.items():
        by_row.setdefault(cell.row, []).append(ended)
    return by_row


def section() -> str:
    """The table of the rows of WHAT, with all three seeds: a column for each length and width at
    which all of them were trained."""
    by_row = cells()
    places_of_rows = [{(cell.length, cell.width) for cell in by_row.get(row, ())} for row in WHAT]
    places = sorted(set.intersection(*places_of_rows))
    titles = ["model", *(f"n = {length}, d = {width}" for length, width in places)]
    lines = [titles, ["---"] * len(titles)]
    for row, what in WHAT.items():
        by_place = {(cell.length, cell.width): cell for cell in by_row.get(row, ())}
        line = [f"`{row}`, {what}"]
        for place in places:
            line.append(_percents(by_place[place]))
        lines.append(line)
    guesses = ["a guess among the values shown"]
    guesses += [f"{100 / PAIRS[length]:.1f}" for length, _ in places]
    lines.append(guesses)
    return _table(lines)


def mixers_section() -> str:
    """The table of all rows at SHOWN: accuracies, and the steps of the seeds that solve it."""
    titles = ["model", "accuracy (%)", "steps, in the same order", "rate"]
    lines = [titles, ["---"] * len(titles)]
    by_row = cells()
    for row, what in (WHAT | OTHERS).items():
        for cell in by_row.get(row, ()):
            if (cell.length, cell.width) == SHOWN:
                steps = ", ".join(f"{seed.steps:,}" for seed in cell.seeds)
                lines.append([f"`{row}`, {what}", _percents(cell), steps, f"{cell.rate:g}"])
    return _table(lines)


def _percents(cell: Ends) -> str:
    return ", ".join(f"{accuracy:.0f}" for accuracy in cell.accuracies)


def _table(lines: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells_of_line)} |\n" for cells_of_line in lines)


if __name__ == "__main__":
    [runs_folder] = sys.argv[1:]
    write(ENDS, END_TITLES, ends(runs_folder), of_cell=3)
    write(STEPS, STEP_TITLES, over_steps(runs_folder), of_cell=1)
