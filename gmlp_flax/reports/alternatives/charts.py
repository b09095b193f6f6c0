"""The figures of `gmlp reproduce alternatives`: each column over speed, and cost over the number of tokens."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.paper.alternatives import COLUMNS, ROWS
from gmlp_flax.reports.alternatives import measured
from gmlp_flax.reports.families import family, looks
from gmlp_flax.reports.table import Spread, shown

BARS = "Bars go from the lowest to the highest seed."


def charts(scores: Mapping[str, Mapping[str, Spread]], costs: measured.Costs, scale: str) -> dict[str, Chart]:
    """A chart for each column that has two rows whose speed was measured, and one of the costs.

    Args:
        scores: column -> row -> its score over seeds.
        costs: row -> tokens -> a measured step.
        scale: of the runs.
    """
    found = {f"speed_{name}": over_speed(name, of_row, costs, scale) for name, of_row in scores.items()}
    return {name: chart for name, chart in (found | {"costs": over_tokens(costs)}).items() if chart}


def over_speed(name: str, scores: Mapping[str, Spread], costs: measured.Costs, scale: str) -> Chart | None:
    """A column's scores over the speed of a training step at the measured length nearest to the column's own."""
    column = COLUMNS[name]
    steps = {row: measured.nearest(costs.get(row, {}), column.tokens_at(scale)) for row in scores}
    lengths = {step.tokens for step in steps.values() if step}
    points = {
        row: (step.speed, scores[row])
        for row, step in steps.items()
        if step and step.tokens == min(lengths)  # of one length, else speeds do not compare
    }
    if len(points) < 2:
        return None
    choose = min if column.lower else max
    best = choose(points, key=lambda row: points[row][1].centre)
    fastest = max(points, key=lambda row: points[row][0])
    value = shown(points[best][1].centre)
    title = f"{best} is best ({value}){' and fastest' if best == fastest else f', {fastest} the fastest'}"
    speed = Scale(f"tokens per second in training, n = {min(lengths):,}", log=True)
    several = any(len(score.values) > 1 for _, score in points.values())
    panel = Panel(title, speed, Scale(column.title, log=column.lower), _families(points))
    return Chart([panel], BARS if several else "One seed each.")


def _families(points: Mapping[str, tuple[float, Spread]]) -> list[Series]:
    """One series per family of mixers, whose points are labelled with their rows."""
    members: dict[str, list[str]] = {}
    for row in points:
        members.setdefault(family(row), []).append(row)
    series = []
    for (name, rows), look in zip(members.items(), drawing.looks(list(members)), strict=True):
        scores = [points[row][1] for row in rows]
        series.append(
            Series(
                name,
                look,
                [points[row][0] for row in rows],
                [score.centre for score in scores],
                [min(score.values) for score in scores],
                [max(score.values) for score in scores],
                labels=rows,
                joined=False,
                band=False,
            )
        )
    return series


def over_tokens(costs: measured.Costs) -> Chart | None:
    """Time per 1,000 tokens, and memory per 1,000 tokens, over n, with the fitted powers; None for one length."""
    if len({tokens for by_length in costs.values() for tokens in by_length}) < 2:
        return None
    powers = [law for by_length in costs.values() if (law := measured.growth(by_length))]
    title = "Time per token over n"
    if powers:
        low, high = (choose(law.exponent for law in powers) for choose in (min, max))
        title = f"A sequence's time grows as n^{low:.2f} to n^{high:.2f}"
    x = Scale("n", log=True)
    panels = [
        Panel(title, x, Scale("ms per 1,000 tokens", log=True), _lines(costs, memory=False)),
        Panel("Memory of a training step", x, Scale("MB per 1,000 tokens", log=True), _lines(costs, memory=True)),
    ]
    fitted = f"Dashed: powers of n fitted from {measured.FITTED_FROM:,} tokens on." if powers else ""
    return Chart(panels, fitted)


def _lines(costs: measured.Costs, memory: bool) -> list[Series]:
    """A line per row; where a power was fitted, it is drawn through the lengths that it was fitted to."""
    seen, series = looks(ROWS), []
    for row, by_length in costs.items():
        steps = [cost for cost in by_length.values() if memory or cost.seconds]
        if not steps:
            continue
        x = [cost.tokens for cost in steps]
        y = [_per_thousand(cost, memory) for cost in steps]
        ranges = [cost.per_thousand for cost in steps] if not memory else []
        series.append(
            Series(
                row,
                seen[row],
                x,
                y,
                [min(each) for each in ranges],
                [max(each) for each in ranges],
                band=True,
            )
        )
        law = measured.growth(by_length, memory)
        fitted = [cost for cost in steps if cost.tokens >= measured.FITTED_FROM]
        if law:
            # The law is of a sequence: a thousand tokens are 1,000 / n of it.
            scale = 1e3 / 1e6 if memory else 1e6
            curve = [scale * law(cost.tokens) / cost.tokens for cost in fitted]
            series[-1] = _with_fit(series[-1], x, curve)
    return series


def _with_fit(series: Series, x: list[int], curve: list[float]) -> Series:
    """With a curve at the last points; before them, it is the line itself."""
    return dataclasses.replace(series, fit=[*series.y[: len(x) - len(curve)], *curve])


def _per_thousand(cost: measured.Cost, memory: bool) -> float:
    """Milliseconds, or MB, for 1,000 tokens."""
    return cost.size / (1e3 * cost.batch * cost.tokens) if memory else statistics.median(cost.per_thousand)
