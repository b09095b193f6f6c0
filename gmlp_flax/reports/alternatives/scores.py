"""The scores of the alternatives: what the folder of `gmlp reproduce alternatives` has, by column and
row."""

import contextlib
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from gmlp_flax.checkpoints.metrics_file import read_result
from gmlp_flax.paper.alternatives import COLUMNS, RATE, ROWS, Column
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.language_models import trained_rows
from gmlp_flax.reports.runs import Run
from gmlp_flax.reports.scores import score
from gmlp_flax.reports.table import Spread
from gmlp_flax.sweeps import points

SEARCH = "search"  # the folder of the runs that choose a column's rates
RANDOM = " from random"  # suffix of the name of a finetuned column: from random parameters

Runs = Mapping[str, Sequence[Run]]  # column -> its runs
RowScores = dict[str, Spread]  # row -> its score over seeds, as shown
Scores = Mapping[str, Mapping[str, Spread]]  # column -> row -> its score over seeds, as shown
Baselines = Mapping[str, Mapping[str, float]]  # column -> trivial model -> its score, as shown


def folder_of(folder: str, column: str) -> str:
    """The folder of a trained column's runs. Those of masked LM are in the folder itself, where
    other tables look for them as well."""
    if column == "mlm":
        return folder
    return os.path.join(folder, column)


def search_folder(folder: str, column: str) -> str:
    """The folder of the runs that try a column's rates."""
    column_folder = folder_of(folder, column)
    return os.path.join(column_folder, SEARCH)


def searched(folder: str, column: Column, scale: str, row: str) -> dict[float, float]:
    """What the search of a row's rate has found: rate -> the metric of its run, as shown, in the
    order of `Column.rates_of`; a rate whose run has no result is left out.

    Args:
        folder: of the runs of the search.
        column: the column that is trained.
        scale: at which it is trained.
        row: the row.
    """
    scores = {}
    for point in column.search_points(scale, row):
        name = points.name(point)
        path = os.path.join(folder, name)
        result = read_result(path)
        if result is None:
            continue
        rate = point[RATE]
        metrics = result["eval"]
        value = metrics[column.metric]
        scores[rate] = column.percent * value
    return scores


def best_rate(scores: Mapping[float, float], column: Column) -> float:
    """The rate with the best of some scores."""
    choose = min if column.lower else max
    return choose(scores, key=lambda rate: scores[rate])


def find_runs(
    folder: str,
    scale: str,
    changes: Mapping[str, Any],
    rows: Sequence[str] = ROWS,
) -> dict[str, list[Run]]:
    """The runs of the rows in each column; none of a column that has no such scale."""
    masked_lm = COLUMNS["mlm"]
    pretrained = masked_lm.configs(scale, rows, changes)
    tuned_by_row = run_finder.find_finetuned(folder, pretrained)
    tuned = list(itertools.chain.from_iterable(tuned_by_row.values()))
    runs: dict[str, list[Run]] = {name: [] for name in COLUMNS}
    for name, column in COLUMNS.items():
        if column.starts:
            runs[name] = _of_task(tuned, column.task)
        elif scale in column.scales:
            configs = column.configs(scale, rows, changes)
            column_folder = folder_of(folder, name)
            with contextlib.suppress(run_finder.NoRuns):
                runs[name] = run_finder.find(column_folder, configs)
    return runs


def _of_task(runs: Sequence[Run], task: str) -> list[Run]:
    """The finetuned runs of a task."""
    return [run for run in runs if run_finder.task_of(run.config) == task]


def scores_of(runs: Runs, rows: Sequence[str] = ROWS) -> dict[str, RowScores]:
    """Column -> row -> its score. A finetuned column has a second entry, its name and RANDOM, with
    the scores from random parameters. Columns without a score are left out."""
    scores: dict[str, RowScores] = {}
    for name, column in COLUMNS.items():
        column_runs = runs[name]
        if column.starts:
            from_random = f"{name}{RANDOM}"
            scores[name] = _finetuned_scores(column_runs, rows, column, pretrained=True)
            scores[from_random] = _finetuned_scores(column_runs, rows, column, pretrained=False)
        elif name == "mlm":
            scores[name] = _perplexities(column_runs, rows)
        else:
            scores[name] = _last_scores(column_runs, rows, column)
    found = {}
    for name, by_row in scores.items():
        if by_row:
            found[name] = by_row
    return found


def _finetuned_scores(
    runs: Sequence[Run],
    rows: Sequence[str],
    column: Column,
    pretrained: bool,
) -> RowScores:
    """Row -> its score, finetuned from pretrained or from random parameters."""
    scores = {}
    for row in rows:
        row_runs = [run for run in runs if run.row == row]
        best = score(row_runs, column, pretrained)
        if best is not None:
            scores[row] = best.spread
    return scores


def _perplexities(runs: Sequence[Run], rows: Sequence[str]) -> RowScores:
    """Row -> its perplexity, for the rows that came as far as the others."""
    perplexities = {}
    trained = trained_rows(rows, runs)
    for name, row in trained.items():
        if row.compared:
            perplexities[name] = row.last
    return perplexities


def _last_scores(runs: Sequence[Run], rows: Sequence[str], column: Column) -> RowScores:
    """Row -> the score at the end of its finished runs."""
    # A rate that suits one seed may hold another back for long, as the plateaus do.
    spread = Spread.median if column.rates else Spread.mean
    scores = {}
    for row in rows:
        values = []
        for run in runs:
            if run.row != row or not run.finished:
                continue
            last = run.last_score(column.metric)
            if last is not None:
                values.append(column.percent * last)
        if values:
            scores[row] = spread(values)
    return scores


def baselines_of(runs: Runs) -> dict[str, dict[str, float]]:
    """Column -> trivial model -> its score."""
    baselines = {}
    for name, column in COLUMNS.items():
        column_runs = runs[name]
        scores = run_finder.baselines(column_runs, column.metric)
        shown = {}
        for model, value in scores.items():
            shown[model] = column.percent * value
        baselines[name] = shown
    return baselines


def best_baselines(baselines: Baselines) -> dict[str, float]:
    """Column -> the score of its best trivial model, for the columns that have one."""
    best = {}
    for name, scores in baselines.items():
        if scores:
            column = COLUMNS[name]
            choose = min if column.lower else max
            best[name] = choose(scores.values())
    return best


def heldout_examples(runs: Runs) -> dict[str, int]:
    """Column -> its held-out examples; 0 if its runs do not say."""
    examples = {}
    for name, column_runs in runs.items():
        counts = [0]
        for run in column_runs:
            for line in run.lines:
                evaluation = line.get("eval", {})
                count = evaluation.get("examples", 0)
                counts.append(count)
        examples[name] = max(counts)
    return examples
