"""The report of masked language models: Tables 3, 4, 6 and 10, and Figures 5, 7 and 8."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gmlp_flax import tasks
from gmlp_flax.analysis import drawing
from gmlp_flax.models import parameters
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.paper.tables import PaperTable
from gmlp_flax.reports import claims, scaling
from gmlp_flax.reports.finetuned_scores import Scores
from gmlp_flax.reports.report import Cell, Report, Table, difference, shown
from gmlp_flax.reports.runs import Run, setting_notes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = scaling.METRIC
COLUMNS = ("model", "M parameters", METRIC, "lowest", "highest", "seeds", "paper", "difference", "rate")


def perplexities(
    table: PaperTable, runs: Sequence[Run], scale: str, tuned: Mapping[str, Sequence[Run]]
) -> Report:
    """Held-out perplexities, and finetuned scores if there are any. Arguments: see `catalogue.of_runs`."""
    by_row = {row: [run for run in runs if run.row == row] for row in table.rows}
    curves = {row: [curve for run in by_row[row] if (curve := run.curve(METRIC))] for row in table.rows}
    last = {row: [curve[-1][1] for curve in curves[row]] for row in table.rows}
    params = {row: _parameters(found[0]) for row, found in by_row.items() if found}
    scores = Scores(table.tasks, tuned)
    lines = [(*_line(row, by_row[row], last[row], params.get(row)), *scores.cells(row)) for row in table.rows]
    known = [row for row in table.rows if last[row]]
    notes = [
        *setting_notes(table, runs, scale), *_baseline(runs),
        *_orderings({row: last[row] for row in known}, curves), *scores.notes(),
    ]
    figures = {"curves": _draw_curves({row: curves[row] for row in known})}
    if table.series:
        points = {row: scaling.Point(row, params[row], statistics.mean(last[row]), scores.of(row)) for row in known}
        by_depth, by_data = (
            {name: [points[row] for row in rows if row in points] for name, rows in lines_of.items()}
            for lines_of in (table.series, table.longer)
        )
        figures["scaling"], laws = scaling.draw_scaling({name: found for name, found in by_depth.items() if found})
        notes += [*laws, *scaling.papers_laws(table.series)]
        if transfer := scaling.draw_transfer(by_depth | by_data):
            figures["transfer"] = transfer
    return Report(table.title, notes, Table((*COLUMNS, *scores.titles), lines), figures)


def _parameters(run: Run) -> float:
    """Millions of parameters."""
    return parameters.count(tasks.find(run.config.task).without_data(run.config).shapes()) / 1e6


def _line(row: str, runs: Sequence[Run], last: Sequence[float], params: float | None) -> tuple[Cell, ...]:
    """A row's cells in COLUMNS."""
    paper = _papers(row)
    if not last:
        return (row, params, None, None, None, 0, paper, None, None)
    mean = statistics.mean(last)
    return (
        row, params, mean, min(last), max(last), len(last), paper, difference(mean, paper),
        runs[0].config.optimizer.learning_rate,
    )


def _papers(row: str) -> float | None:
    """The paper's perplexity, if it prints one."""
    return PUBLISHED[row].perplexity if row in PUBLISHED else None


def _baseline(runs: Sequence[Run]) -> list[str]:
    """What a model without any context scores."""
    found = dict.fromkeys(each for run in runs if (each := run.baseline(METRIC)))
    return [f"To compare: {name}: {METRIC} {shown(value)}." for name, value in found]


def _orderings(last: Mapping[str, Sequence[float]], curves: Mapping[str, Sequence[claims.Curve]]) -> list[str]:
    """Whether each ordering of the paper holds, and the rank correlation with its column."""
    paper = {row: value for row in last if (value := _papers(row)) is not None}
    notes = []
    for better, worse in itertools.combinations(sorted(paper, key=lambda row: paper[row]), 2):
        if paper[better] == paper[worse]:
            continue
        verdict = claims.verdict(last[better], last[worse])
        since = claims.emerges(curves[better], curves[worse])
        when = "" if since is None else f"; the means have this order from {since:,} tokens on"
        notes.append(f"{better} < {worse} {verdict}{when}.")
    if len(paper) > 1:
        rank = claims.spearman([statistics.mean(last[row]) for row in paper], list(paper.values()))
        notes.append(f"Spearman's rank correlation with the paper's column: {rank:.2f} over {len(paper)} models.")
    return notes


def _draw_curves(curves: Mapping[str, Sequence[claims.Curve]]) -> Figure:
    """Held-out perplexity over tokens: one line per run, one colour per row."""
    figure, (axis,) = drawing.subplots(1, 1, 8.0, 5.0)
    for number, (row, runs) in enumerate(curves.items()):
        for place, curve in enumerate(runs):
            x, y = zip(*curve, strict=True)
            colour = f"C{number % 10}"
            axis.plot(x, y, color=colour, linewidth=1, label=None if place else row)
            tips = [f"{row}: {shown(value)} after {tokens:,} tokens" for tokens, value in curve]
            drawing.points_with_tips(axis, x, y, tips, color=colour, markersize=4)
    axis.set(xlabel="tokens", ylabel=f"held-out {METRIC}", yscale="log")
    axis.legend(fontsize=8)
    return figure
