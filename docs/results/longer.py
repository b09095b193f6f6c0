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
from pathlib import Path
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
        keys: how many of the first cells say what a line is about.
        lines: the new lines.
    """
    path = generate.DATA / f"{name}.csv"
    groups = grouped(_read(path), keys)
    new_lines = []
    for line in lines:
        new_lines.append([str(cell) for cell in line])
    groups |= grouped(new_lines, keys)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(titles)
        for group in groups.values():
            writer.writerows(group)


def grouped(lines: Iterable[Sequence[str]], keys: int) -> dict[tuple[str, ...], list]:
    """First cells -> the lines that begin with them."""
    groups: dict[tuple[str, ...], list] = defaultdict(list)
    for line in lines:
        key = tuple(line[:keys])
        groups[key].append(line)
    return dict(groups)


def _read(path: Path) -> list[list[str]]:
    """The lines of a file without its titles; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        _, *lines = csv.reader(file)
    return lines


def collect(folder: str) -> None:
    """Writes what a folder of runs has into both CSV files."""
    runs = []
    for row, seed, rate, tokens, perplexity in evaluations(folder):
        runs.append((row, seed, rate, tokens, f"{perplexity:.2f}"))
    update("alternatives-longer", ("row", "seed", "rate", "tokens", "perplexity"), 2, runs)
    tried = []
    for row, rate, perplexity in searches(folder):
        tried.append((row, rate, f"{perplexity:.1f}"))
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
    rates = rates_of_rows()
    seeds = curves_of_rows()
    scores = generate.scores()["mlm"]
    by_name = {}
    for name in sorted(rates, key=lambda name: min(rates[name].values())):
        score = scores.get(name)
        short = score.centre if score else None
        by_name[name] = Row(rates[name], seeds.get(name, {}), short)
    return by_name


def rates_of_rows() -> dict[str, dict[float, float]]:
    """Row -> rate -> perplexity of the search."""
    rates: dict[str, dict[float, float]] = defaultdict(dict)
    for line in generate.read("alternatives-rates"):
        rate = float(line["rate"])
        rates[line["row"]][rate] = float(line["perplexity"])
    return dict(rates)


def curves_of_rows() -> dict[str, dict[int, dict[int, float]]]:
    """Row -> seed -> tokens -> perplexity."""
    seeds: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in generate.read("alternatives-longer"):
        seed = int(line["seed"])
        tokens = int(line["tokens"])
        curve = seeds[line["row"]][seed]
        curve[tokens] = float(line["perplexity"])
    return dict(seeds)


def spreads() -> dict[str, Spread]:
    """Row -> its perplexities after 18.4 M tokens, of the rows with three finished seeds."""
    finished = {}
    for name, row in rows().items():
        if len(row.last) == 3:
            finished[name] = Spread.median(row.last)
    return finished


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
    lines = []
    for name, row in rows().items():
        rate = row.rate
        best = f"{row.rates[rate]:.1f}"
        short = "" if row.short is None else f"{row.short:.1f}"
        lines.append([f"`{name}`", WHAT[name], _end(row), best, f"{rate:g}", short])
    return generate.markdown_table(titles, lines)


def _end(row: Row) -> str:
    """How a row ended; or in brackets, how far it came."""
    last = row.last
    if last:
        median = statistics.median(last)
        count = len(last)
        if count == 3:
            low = min(last)
            high = max(last)
            return f"{median:.1f} ({low:.1f} to {high:.1f})"
        seeds = "one seed" if count == 1 else f"{count} seeds"
        return f"{median:.1f} ({seeds})"
    curves = [curve for curve in row.seeds.values() if curve]
    if not curves:
        return ""
    tokens = min(max(curve) for curve in curves)
    median = statistics.median(curve[tokens] for curve in curves)
    millions = tokens / 1e6
    return f"[{median:.1f} at {millions:.1f} M]"


if __name__ == "__main__":
    collect(sys.argv[1])
