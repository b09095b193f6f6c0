"""`gmlp reproduce recall`: trains every row on multi-query associative recall, and reports which of
them solve it at which width."""

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.analysis import looks as looks_lib
from gmlp_flax.analysis.charts import Chart, Panel, Scale
from gmlp_flax.checkpoints import CONFIG_FILE
from gmlp_flax.checkpoints.metrics_file import read_result
from gmlp_flax.config import validation
from gmlp_flax.io import files
from gmlp_flax.options import ALL_RUNS
from gmlp_flax.paper import matching, recall
from gmlp_flax.paper.recall import PAIRS, RATE, ROWS, Cell
from gmlp_flax.reports.claims import EARLY, HOLDS, OPEN, REVERSED, Claim
from gmlp_flax.reports.report import Report, family, over_seeds
from gmlp_flax.reports.runs import NoRuns
from gmlp_flax.reports.table import Cells, Spread, Table, printed, shown
from gmlp_flax.sweeps import definition, points, training
from gmlp_flax.sweeps.points import Point, Points
from gmlp_flax.sweeps.progress import Progress, Work

SOLVED = 100 * recall.SOLVED  # in percent
SEARCH = "search"  # the folder of the runs that choose rates
ATTENTION = "bert_causal"
GMLP = ("sgu", "sgu_dense", "sgu_causal", "sgu_dense_causal")
OF_EXAMPLES = ("model.length", "model.vocab_size")  # keys of the model that all rows share
AMLP = ("amlp_36", "amlp_causal", "amlp_16_causal", "amlp_128_causal")

Accuracies = Mapping[Cell, Spread]


class Plan(NamedTuple):
    """What a command line asks for.

    Attributes:
        rows: in ROWS, or classes of the user's own.
        scale: "cpu" or "paper".
        runs: the folder of the runs.
        jobs: runs at a time.
        changes: keys of every run that the command line changes, with their values as text.
        together: how many runs one program trains at most.
        lengths, widths: those of the scale to train and report; empty for all.
    """

    rows: Sequence[str]
    scale: str
    runs: str
    jobs: int = 1
    changes: Mapping[str, Any] = recall.NOTHING
    together: int = 1
    lengths: Sequence[int] = ()
    widths: Sequence[int] = ()

    def cells(self) -> list[Cell]:
        """What is trained and reported."""
        return recall.cells(self.scale, self.rows, self.lengths, self.widths)


def make(plan: Plan) -> bool:
    """Trains what is missing: for each cell one run at each rate, then the seeds at the best one.

    Returns:
        Whether all runs have a result.

    Raises:
        ConfigError: a block of the user's own cannot be trained.
    """
    _check_blocks(plan)
    progress = Progress({"": _planned(plan)})
    complete = True
    searches: list[Points] = []
    # cell by cell, so that a report can be made of what is there; trained runs are skipped
    for cell in plan.cells():
        search = recall.search_points(cell, plan.scale)
        if search not in searches:
            searches.append(search)
            complete &= _train(plan, search, _search_folder(plan), progress)
        rate = best_rate(plan, cell)
        if rate is None:
            progress.skip_sweep()
            continue
        trials = recall.points(cell, plan.scale, rate)
        complete &= _train(plan, trials, plan.runs, progress)
    return complete


def _check_blocks(plan: Plan) -> None:
    """Tries the user's own blocks; raises ConfigError."""
    for cell in plan.cells():
        config = recall.mqar(cell.row, cell.length, cell.width, plan.scale)
        validation.require_finite(config.model.block, matching.encoder_spec(config))


def _search_folder(plan: Plan) -> str:
    return os.path.join(plan.runs, SEARCH)


def _train(plan: Plan, trials: Points, folder: str, progress: Progress) -> bool:
    sweep = definition.define("synthetic", trials, dict(plan.changes), folder)
    return training.train(sweep, plan.jobs, together=plan.together, progress=progress)


def _planned(plan: Plan) -> list[Work]:
    """The work of each sweep: of a cell's search, unless another cell has it too, and of its
    seeds."""
    works = []
    searches: list[Points] = []
    search_folder = _search_folder(plan)
    for cell in plan.cells():
        search = recall.search_points(cell, plan.scale)
        steps = _steps(cell.length, cell.width, plan)
        if search not in searches:
            searches.append(search)
            work_of_search = _work(search, search_folder, steps)
            works.append(work_of_search)
        work_of_seeds = _work_of_seeds(plan, cell, steps)
        works.append(work_of_seeds)
    return works


def _work_of_seeds(plan: Plan, cell: Cell, steps: int) -> Work:
    """The work of a cell's runs at the best rate, which may not be known yet."""
    rate = best_rate(plan, cell)
    if rate is None:
        count = len(recall.SEEDS)
        return Work.of(count, steps)
    seeds = recall.points(cell, plan.scale, rate)
    return _work(seeds, plan.runs, steps)


def _work(trials: Points, folder: str, steps: int) -> Work:
    """The work of runs of `steps` steps each, some of which may be finished."""
    runs = len(trials)
    unfinished = [point for point in trials if _result(folder, point) is None]
    left = len(unfinished) * steps
    return Work(runs, runs * steps, left)


def _steps(length: int, width: int, plan: Plan) -> int:
    """The steps of a run."""
    config = _config_of_scale(length, width, plan.scale)
    changes = config_lib.applying(config, plan.changes)  # a class may have keys of its own
    changed = config_lib.overridden(config, changes)
    return changed.steps


def best_rate(plan: Plan, cell: Cell) -> float | None:
    """The rate with the highest accuracy of a cell's search. Of those that solve it, the one that
    needed the fewest steps, which leaves the most to other seeds. None if no run of the search has
    a result."""
    folder = _search_folder(plan)
    best = (-1.0, 0)
    rate = None
    for point in recall.search_points(cell, plan.scale):
        result = _result(folder, point)
        if result is None:
            continue
        metrics = result["eval"]
        accuracy = min(metrics["accuracy"], recall.SOLVED)
        steps = result["step"]
        score = (accuracy, -steps)
        if score > best:
            best = score
            rate = point[RATE]
    return rate


def _result(folder: str, point: Point) -> dict[str, Any] | None:
    """What the run of a point ended with; None if it has not ended."""
    name = points.name(point)
    path = os.path.join(folder, name)
    return read_result(path)


def accuracies(plan: Plan) -> dict[Cell, Spread]:
    """The accuracy in percent of each cell that has a finished run, over seeds."""
    results = {}
    for cell in plan.cells():
        rate = best_rate(plan, cell)
        if rate is None:
            continue
        values = []
        for point in recall.points(cell, plan.scale, rate):
            result = _result(plan.runs, point)
            if result is not None:
                metrics = result["eval"]
                values.append(100 * metrics["accuracy"])
        if values:
            results[cell] = Spread.mean(values)
    return results


def report(plan: Plan) -> Report:
    """The report on the runs that are there. Raises NoRuns if there is none."""
    results = accuracies(plan)
    if not results:
        raise NoRuns(f"{plan.runs} holds no finished run of recall: train some first")
    return Report(
        recall.TITLE,
        _table(results),
        claims(results),
        setting=_setting(plan, results),
        notes=_notes(results, plan.scale),
        figures={"accuracy": chart(results)},
        more_tables={"cells": _cell_table(plan, results)},
    )


def _table(results: Accuracies) -> Table:
    """A line for each row, a column for each length and width."""
    models: dict[str, Cells] = {}
    for cell, accuracy in results.items():
        title = f"n {cell.length}, d {cell.width}"
        cells = models.setdefault(cell.row, {})
        cells[title] = accuracy
    return Table.of_models(models)


def _cell_table(plan: Plan, results: Accuracies) -> Table:
    """A line for each cell, with the rate that its search chose."""
    columns = ("model", "n", "d", "accuracy (%)", "rate")
    rows = []
    for cell, accuracy in results.items():
        rate = best_rate(plan, cell)
        row = (cell.row, cell.length, cell.width, accuracy, printed(rate))
        rows.append(row)
    return Table(columns, rows)


def _setting(plan: Plan, results: Accuracies) -> str:
    """What was scaled down, and the keys that the runs have changed."""
    scale = plan.scale
    if scale == "paper":
        setting = "Scale paper: figure 2's setting, without its dropout."
    else:
        different_widths = {cell.width for cell in results}
        widths = ", ".join(map(str, sorted(different_widths)))
        setting = (
            f"Scale {scale}. Scaled down: a vocabulary of {recall.CPU_VOCABULARY} (paper: 8192), "
            f"{recall.CPU_STEPS:,} steps of {recall.CPU_BATCH} examples (paper: 64 epochs of "
            f"100,000), d {widths} (paper: 64 to 512)."
        )
    changes = _changes(plan, results)
    return " ".join([setting, *changes])


def _changes(plan: Plan, results: Accuracies) -> list[str]:
    """Sentences on the keys in which runs differ from the setting of the scale."""
    cells_by_changes: dict[str, list[str]] = {}
    for cell in results:
        changes = _changes_of_cell(plan, cell)
        if changes:
            name = f"{cell.row} at n = {cell.length}, d = {cell.width}"
            cells = cells_by_changes.setdefault(changes, [])
            cells.append(name)
    sentences = []
    for changes, cells in cells_by_changes.items():
        where = "All runs"
        if len(cells) < len(results):
            names = "; ".join(cells)
            where = f"The runs of {names}"
        sentences.append(f"{where} differ: {changes}.")
    return sentences


def _changes_of_cell(plan: Plan, cell: Cell) -> str:
    """The keys in which the runs of a cell differ from the setting of the scale, with both values;
    empty if there are none, or if the run folder has no config.

    The model's other keys are not compared, since they are those of its row.
    """
    rate = best_rate(plan, cell)
    if rate is None:
        return ""
    first_point, *_ = recall.points(cell, plan.scale, rate)
    name = points.name(first_point)
    path = os.path.join(plan.runs, name, CONFIG_FILE)
    if not files.exists(path):
        return ""
    config = config_lib.load(path)
    expected = _config_of_scale(cell.length, cell.width, plan.scale)
    options = config_lib.keys(expected)
    changes = []
    for key, option in options.items():
        is_of_row = key.startswith("model.") and key not in OF_EXAMPLES
        is_compared = option.compared == ALL_RUNS and not is_of_row
        value = config.get(key)
        usual = expected[key]
        if is_compared and value != usual:
            changes.append(f"config.{key} is {value} instead of {usual}")
    return ", ".join(changes)


@functools.cache
def _config_of_scale(length: int, width: int, scale: str) -> ConfigDict:
    """The config of a row whose keys outside the model are those of every row."""
    cell = Cell(ATTENTION, length, width)
    name = cell.config(scale)
    return config_lib.open_config(name)


def _notes(results: Accuracies, scale: str) -> list[str]:
    searched_at = ""
    if scale == "cpu":
        shortest = min(recall.LENGTHS[scale])
        searched_at = f" of n = {shortest}"
    floors = []
    for length in _lengths(results):
        floor = _floor(length)
        floors.append(f"{floor:.1f} % at n = {length}")
    all_floors = " and ".join(floors)
    seeds = ", ".join(map(str, recall.SEEDS))
    return [
        f"Accuracy in percent at the repeated keys; a guess among the values shown has "
        f"{all_floors}.",
        f"Each width has the best of several rates, chosen by runs with seed {recall.SEARCH_SEED} "
        f"on other examples{searched_at}. Then the seeds {seeds} train with it. A run ends early at "
        f"{SOLVED:g} %.",
    ]


def _lengths(results: Accuracies) -> list[int]:
    """The lengths of all cells, shortest first."""
    lengths = {cell.length for cell in results}
    return sorted(lengths)


# The figure.


def chart(results: Accuracies) -> Chart:
    """Accuracy over the width, a panel for each length, a line for the best row of each family."""
    panels = []
    for length in _lengths(results):
        panel = _panel(results, length)
        panels.append(panel)
    caption = (
        "The best row of each family at each width. Bars go from the lowest to the highest seed."
    )
    return Chart(panels, caption)


def _panel(results: Accuracies, length: int) -> Panel:
    """The accuracies at one length."""
    best = best_of_families(results, length)
    families = list(best)
    look_of = looks_lib.looks(families)
    series = []
    for name, look in zip(families, look_of, strict=True):
        by_width = best[name]
        widths = list(by_width)
        accuracies_of_widths = list(by_width.values())
        line = over_seeds(name, look, widths, accuracies_of_widths)
        series.append(line)
    pairs = PAIRS[length]
    guess = ("a guess among the values", _floor(length))
    return Panel(
        f"{pairs} pairs in {length} tokens",
        Scale("width d", log=True, whole=True),
        Scale("accuracy (%)"),
        series,
        references=[guess],
    )


def _floor(length: int) -> float:
    """The accuracy in percent of a guess among the values that an example shows."""
    return 100 / PAIRS[length]


def best_of_families(results: Accuracies, length: int) -> dict[str, dict[int, Spread]]:
    """Family -> width -> the accuracy of its best row there."""
    best: dict[str, dict[int, Spread]] = {}
    for cell, accuracy in results.items():
        if cell.length != length:
            continue
        width = cell.width
        name = _family(cell.row)
        by_width = best.setdefault(name, {})
        best_so_far = by_width.setdefault(width, accuracy)
        if accuracy.centre > best_so_far.centre:
            by_width[width] = accuracy
    return best


def _family(row: str) -> str:
    """The family of a row in ROWS, or of a class of the user's own."""
    model = ROWS[row].model if row in ROWS else row
    return family(model)


# Claims.


def claims(results: Accuracies) -> list[Claim]:
    """What Zoology says of attention and gated convolutions, and what it leaves open of gMLP and
    aMLP; each only where its cells are there."""
    return [
        *_attention_claims(results),
        *_width_claims(results),
        *_rival_claims(results),
    ]


def _attention_claims(results: Accuracies) -> Iterable[Claim]:
    for cell, accuracy in results.items():
        if cell.row == ATTENTION and cell.width == 64:
            text = f"attention solves it at d = 64, Zoology, figure 2: n = {cell.length}"
            verdict = _solved(accuracy)
            detail = _detail(cell, accuracy)
            yield Claim(text, verdict, detail)


def _width_claims(results: Accuracies) -> Iterable[Claim]:
    """Gated convolutions: the causal gMLP is one, with one filter for all channels."""
    needed = _solving_widths(results, "sgu_causal")
    if len(needed) < 2:
        return
    first, *_, last = needed.values()
    words = []
    for length, width in needed.items():
        where = "none of these" if width is None else f"d = {width}"
        words.append(f"n = {length}: {where}")
    if first is None:
        verdict = EARLY
    elif last is None or last > first:
        verdict = HOLDS
    else:
        verdict = REVERSED
    text = (
        "gated convolutions need a d that grows with n, Zoology, figure 2: sgu_causal solves it at"
    )
    detail = "; ".join(words)
    yield Claim(text, verdict, detail)


def _solving_widths(results: Accuracies, row: str) -> dict[int, int | None]:
    """Length, shortest first -> the smallest width at which all seeds of a row solve it; None if
    they do so at no width."""
    widths: dict[int, list[int]] = {}
    for cell, accuracy in results.items():
        if cell.row != row:
            continue
        solving = widths.setdefault(cell.length, [])
        if _solved(accuracy) == HOLDS:
            solving.append(cell.width)
    smallest = {}
    for length, solving in sorted(widths.items()):
        smallest[length] = min(solving, default=None)
    return smallest


def _rival_claims(results: Accuracies) -> Iterable[Claim]:
    """Not Zoology's: whether tiny attention is what a gate is without. If no row solves a length,
    its runs show no difference between rows."""
    widest = max((cell.width for cell in results), default=0)
    solved_lengths = _solved_lengths(results)
    for cell, accuracy in results.items():
        if cell.width != widest:
            continue
        verdict = _solved(accuracy)
        where = f"n = {cell.length}, d = {cell.width}"
        if cell.row in AMLP:
            text = f"tiny attention solves it (ours): {cell.row} at {where}"
        elif cell.row in GMLP:
            text = f"a gate alone does not solve it (ours): {cell.row} at {where}"
            verdict = _NEGATED[verdict]
        else:
            continue
        detail = _detail(cell, accuracy)
        if cell.length not in solved_lengths:
            verdict = EARLY
            detail += f"; no row solves n = {cell.length}: nothing can be concluded"
        yield Claim(text, verdict, detail)


def _solved_lengths(results: Accuracies) -> set[int]:
    """The lengths that a seed of some row solves at some width."""
    lengths = set()
    for cell, accuracy in results.items():
        if _solved(accuracy) != REVERSED:
            lengths.add(cell.length)
    return lengths


_NEGATED = {HOLDS: REVERSED, REVERSED: HOLDS, OPEN: OPEN}


def _solved(accuracy: Spread) -> str:
    """Whether all seeds reach SOLVED, none, or some."""
    if min(accuracy.values) >= SOLVED:
        return HOLDS
    if max(accuracy.values) < SOLVED:
        return REVERSED
    return OPEN


def _detail(cell: Cell, accuracy: Spread) -> str:
    percent = shown(accuracy)
    floor = _floor(cell.length)
    return f"{percent} %, a guess {floor:.1f} %"
