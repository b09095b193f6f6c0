"""Figures of series of models: the paper's Figures 5 and 8, over parameters, and 7, over perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gmlp_flax.analysis import claims, drawing
from gmlp_flax.analysis.tables import shown
from gmlp_flax.models import sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRIC = "perplexity"
WIDTH, HEIGHT = 6.0, 4.5  # inches of a panel


class Point(NamedTuple):
    """A model of a series.

    Attributes:
        row: its name.
        params: millions.
        perplexity: held-out, the mean of its runs.
        scores: title of a column -> percent, where it was finetuned.
    """

    row: str
    params: float
    perplexity: float
    scores: Mapping[str, float]


Series = Mapping[str, Sequence[Point]]


def draw_scaling(series: Series) -> tuple[Figure, list[str]]:
    """Over parameters: perplexity, both logarithmic, with a power law through each series; then each column of scores.

    Returns:
        The figure and what the power laws are.
    """
    titles, notes = _titles(series), []
    figure, (first, *others) = drawing.subplots(1, 1 + len(titles), WIDTH, HEIGHT)
    for number, (name, points) in enumerate(series.items()):
        x, y = [point.params for point in points], [point.perplexity for point in points]
        tips = [f"{row}: {shown(value)} with {shown(params)} M parameters" for row, params, value, _ in points]
        drawing.points_with_tips(first, x, y, tips, color=f"C{number}")
        fitted = y
        if len(points) > 1:
            law = claims.power_law(x, y)
            fitted = [law(each) for each in x]
            notes.append(f"{name}: {_law(law)}.")
        first.plot(x, fitted, color=f"C{number}", linewidth=1, label=name)
    first.set(xlabel="M parameters", ylabel=f"held-out {METRIC}", xscale="log", yscale="log")
    first.legend(fontsize=8)
    for axis, title in zip(others, titles, strict=True):
        _draw_scores(axis, series, title, lambda point: point.params)
        axis.set(xlabel="M parameters", xscale="log")
    return figure, notes


def draw_transfer(series: Series) -> Figure | None:
    """Finetuned scores over negative perplexity, a panel a column; None where nothing was finetuned."""
    titles = _titles(series)
    if not titles:
        return None
    figure, axes = drawing.subplots(1, len(titles), WIDTH, HEIGHT)
    for axis, title in zip(axes, titles, strict=True):
        _draw_scores(axis, series, title, lambda point: -point.perplexity)
        axis.set(xlabel=f"negative held-out {METRIC}")
    return figure


def papers_laws(series: Mapping[str, Sequence[str]]) -> list[str]:
    """Power laws through the paper's own points, of series of rows."""
    notes = []
    for name, rows in series.items():
        models = [sizes.PUBLISHED[row] for row in rows if sizes.PUBLISHED[row].perplexity is not None]
        if len(models) > 1:
            law = claims.power_law([model.params_m for model in models], [model.perplexity for model in models])
            notes.append(f"{name} in the paper: {_law(law)}.")
    return notes


def _titles(series: Series) -> list[str]:
    return list(dict.fromkeys(title for points in series.values() for point in points for title in point.scores))


def _draw_scores(axis: Axes, series: Series, title: str, x_of: Callable[[Point], float]) -> None:
    """A column's scores over what `x_of` gives of a point, a line a series."""
    for number, (name, points) in enumerate(series.items()):
        scored = sorted((point for point in points if title in point.scores), key=x_of)
        x, y = [x_of(point) for point in scored], [point.scores[title] for point in scored]
        axis.plot(x, y, color=f"C{number}", linewidth=1, label=name)
        tips = [f"{point.row}: {shown(value)} %" for point, value in zip(scored, y, strict=True)]
        drawing.points_with_tips(axis, x, y, tips, color=f"C{number}")
    axis.set(ylabel=f"{title} (%)")
    axis.legend(fontsize=8)


def _law(law: claims.PowerLaw) -> str:
    interval = "two points, no interval" if math.isinf(law.low) else f"95 % interval {law.low:.3f} to {law.high:.3f}"
    return f"{METRIC} goes as parameters to the {law.exponent:.3f} ({interval}; R squared {law.r_squared:.3f})"
