"""The rows of the alternatives after 18.4 M tokens, each at the best of five rates.

    python -m docs.results.longer runs/reproduce/alternatives-cpu

reads the runs of `gmlp reproduce alternatives --columns=longer` and writes alternatives-longer.csv, every
evaluation of each seed, and alternatives-rates.csv, the search of the rates. Runs that are not
finished are in the first file as far as they came. What the files have of other rows and seeds
stays.
"""

import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from docs import generate
from gmlp_flax.paper.alternatives import COLUMNS, ROWS
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.alternatives import scores as scores_lib
from gmlp_flax.reports.table import Spread

COLUMN = "longer"
TOKENS = 18_432_000  # of a finished run
WHAT = {
    "amlp_36": "aMLP",
    "bert": "attention, learned positions",
    "bert_rel": "attention, relative biases",
    "bert_rel_only": "a softmax over distances alone",
    "bert_t5": "attention, T5's buckets",
    "bigs": "bidirectional state space in gates",
    "delta": "gated delta rule, both ways",
    "dense": "Synthesizer, logits from one token",
    "depthwise": "gMLP with a depthwise convolution",
    "dynamic": "dynamic convolution",
    "external": "external attention",
    "factorized": "Synthesizer, logits of rank 8",
    "factorized_dense": "Synthesizer, logits as products",
    "feed_forward": "an MLP over tokens",
    "fixed_random": "Synthesizer, logits as drawn",
    "fnet": "FNet",
    "growing": "convolution, widths 7 and 31",
    "hybrid": "FNet, attention in the last layer",
    "hydra": "Hydra, a state space both ways",
    "lightweight": "lightweight convolution",
    "long_conv": "gated long convolution",
    "mixer": "MLP-Mixer",
    "modern": "attention of today: rotary, SwiGLU, RMS norm",
    "random": "Synthesizer, learned logits",
    "random_vanilla": "Synthesizer mixed with attention",
    "resmlp": "ResMLP",
    "sgu": "gMLP",
}


# From runs to CSV files.


def evaluations(folder: str) -> Iterator[tuple[str, int, float, int, float]]:
    """Row, seed, rate, tokens and perplexity of every evaluation of the runs in a folder."""
    column = COLUMNS[COLUMN]
    configs = column.configs("cpu")
    path = scores_lib.folder_of(folder, COLUMN)
    for run in run_finder.find(path, configs):
        rate = run.config.optimizer.learning_rate
        for tokens, perplexity in run.curve(column.metric):
            yield run.row, run.config.seed, rate, tokens, perplexity


def searches(folder: str) -> Iterator[tuple[str, float, float]]:
    """Row, rate and perplexity of every run of the search."""
    path = scores_lib.search_folder(folder, COLUMN)
    for row in ROWS:
        scores = scores_lib.searched(path, COLUMNS[COLUMN], "cpu", row)
        for rate, perplexity in scores.items():
            yield row, rate, perplexity


def update(name: str, titles: Sequence[str], keys: int, lines: Iterable[Sequence[Any]]) -> None:
    """Puts lines into a file of docs/results/data, in the place of those with the same first cells.

    Args:
        name: of the file.
        titles: of the columns.
        keys: how many cells tell what a line is about.
        lines: the new lines.
    """
    path = generate.DATA / f"{name}.csv"
    groups: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    if path.exists():
        with path.open(newline="") as file:
            for line in list(csv.reader(file))[1:]:
                groups[tuple(line[:keys])].append(line)
    new: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for line in lines:
        cells = [str(cell) for cell in line]
        new[tuple(cells[:keys])].append(cells)
    groups |= new
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(titles)
        for group in groups.values():
            writer.writerows(group)


def collect(folder: str) -> None:
    """Writes what a folder of runs has into both CSV files."""
    runs = [(*run, f"{perplexity:.2f}") for *run, perplexity in evaluations(folder)]
    update("alternatives-longer", ("row", "seed", "rate", "tokens", "perplexity"), 2, runs)
    tried = [(row, rate, f"{perplexity:.1f}") for row, rate, perplexity in searches(folder)]
    update("alternatives-rates", ("row", "rate", "perplexity"), 2, tried)


# From CSV files to the page.


class Row(NamedTuple):
    """What is known of a row.

    Attributes:
        rates: rate -> perplexity of the search.
        seeds: seed -> tokens -> perplexity.
        short: the mean perplexity after 1.8 M tokens, or None.
    """

    rates: dict[float, float]
    seeds: dict[int, dict[int, float]]
    short: float | None

    @property
    def rate(self) -> float:
        """The best rate."""
        return min(self.rates, key=lambda rate: self.rates[rate])

    def median_curve(self) -> dict[int, float]:
        """Tokens -> the median perplexity of the seeds that were finished."""
        values: dict[int, list[float]] = defaultdict(list)
        for curve in self.seeds.values():
            if TOKENS not in curve:
                continue
            for tokens, perplexity in curve.items():
                values[tokens].append(perplexity)
        return {tokens: statistics.median(values[tokens]) for tokens in sorted(values)}

    @property
    def last(self) -> list[float]:
        """The perplexity of each seed that was finished."""
        return [curve[TOKENS] for curve in self.seeds.values() if TOKENS in curve]


def rows() -> dict[str, Row]:
    """The rows, in the order of the search's best perplexity."""
    rates: dict[str, dict[float, float]] = defaultdict(dict)
    for line in generate.read("alternatives-rates"):
        rates[line["row"]][float(line["rate"])] = float(line["perplexity"])
    seeds: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in generate.read("alternatives-longer"):
        curve = seeds[line["row"]][int(line["seed"])]
        curve[int(line["tokens"])] = float(line["perplexity"])
    short = generate.scores()["mlm"]
    found = {}
    for name in sorted(rates, key=lambda name: min(rates[name].values())):
        score = short.get(name)
        found[name] = Row(rates[name], seeds[name], score.centre if score else None)
    return found


def spreads() -> dict[str, Spread]:
    """Row -> its perplexities after 18.4 M tokens, of the rows with three finished seeds."""
    return {name: Spread.median(row.last) for name, row in rows().items() if len(row.last) == 3}


def medians() -> dict[str, float]:
    """Row -> the median of `spreads`."""
    return {name: spread.centre for name, spread in spreads().items()}


def ends() -> dict[str, float]:
    """Row -> the median perplexity of its finished seeds, after 18.4 M tokens."""
    return {name: statistics.median(row.last) for name, row in rows().items() if row.last}


def section() -> str:
    """The table of the page."""
    titles = [
        "row",
        "what mixes tokens",
        "18.4 M tokens: median of three seeds",
        "6.1 M: best of five rates",
        "its rate",
        "1.8 M: mean of three seeds",
    ]
    lines = [titles, ["---"] * len(titles)]
    for name, row in rows().items():
        best = f"{row.rates[row.rate]:.1f}"
        short = "" if row.short is None else f"{row.short:.1f}"
        lines.append([f"`{name}`", WHAT[name], _end(row), best, f"{row.rate:g}", short])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _end(row: Row) -> str:
    """How a row ended; or in brackets, how far it came."""
    last = row.last
    if len(last) == 3:
        return f"{statistics.median(last):.1f} ({min(last):.1f} to {max(last):.1f})"
    if last:
        seeds = "one seed" if len(last) == 1 else f"{len(last)} seeds"
        return f"{statistics.median(last):.1f} ({seeds})"
    curves = [curve for curve in row.seeds.values() if curve]
    if not curves:
        return ""
    tokens = min(max(curve) for curve in curves)
    middle = statistics.median(curve[tokens] for curve in curves)
    return f"[{middle:.1f} at {tokens / 1e6:.1f} M]"


if __name__ == "__main__":
    collect(sys.argv[1])
