"""How models scale: power laws, and the paper's Figures 5 and 8 (over parameters) and 7 (over perplexity)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scipy import stats

from gmlp_flax.analysis import drawing
from gmlp_flax.paper import published
from gmlp_flax.reports.report import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRIC = "perplexity"
WIDTH, HEIGHT = 6.0, 4.5  # inches of a panel


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """y = scale * x ** exponent, fitted by least squares on logarithms.

    Attributes:
        scale, exponent: of the fit.
        low, high: the exponent's 95 % confidence interval, from Student's t; infinitely wide for two points.
        r_squared: share of the variance of log y that the fit explains.
    """

    scale: float
    exponent: float
    low: float
    high: float
    r_squared: float

    def __call__(self, x: float) -> float:
        return self.scale * x**self.exponent


def power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw:
    """Fits a power law to at least two points with positive coordinates and different x."""
    fit: Any = stats.linregress([math.log(value) for value in x], [math.log(value) for value in y])
    free = len(x) - 2
    margin = fit.stderr * stats.t.ppf(0.975, free) if free else math.inf
    return PowerLaw(
        math.exp(fit.intercept), float(fit.slope), float(fit.slope - margin), float(fit.slope + margin),
        float(fit.rvalue**2),
    )


class Point(NamedTuple):
    """A model of a series.

    Attributes:
        row: its name.
        params: millions of parameters.
        perplexity: held-out, the mean of its runs.
        scores: title of a column -> percent; empty if the model was not finetuned.
    """

    row: str
    params: float
    perplexity: float
    scores: Mapping[str, float]


Series = Mapping[str, Sequence[Point]]


def draw_scaling(series: Series) -> tuple[Figure, list[str]]:
    """Figures 5 and 8. The first panel has perplexity over parameters, both logarithmic, with a power law through each
    series; each further panel has one column of scores over parameters.

    Returns:
        The figure, and one note per power law.
    """
    titles, notes = _titles(series), []
    figure, (first, *others) = drawing.subplots(1, 1 + len(titles), WIDTH, HEIGHT)
    for number, (name, points) in enumerate(series.items()):
        x, y = [point.params for point in points], [point.perplexity for point in points]
        tips = [f"{row}: {shown(value)} with {shown(params)} M parameters" for row, params, value, _ in points]
        drawing.points_with_tips(first, x, y, tips, color=f"C{number}")
        fitted = y
        if len(points) > 1:
            law = power_law(x, y)
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
    """Figure 7: finetuned scores over negative perplexity, one panel per column; None if nothing was finetuned."""
    titles = _titles(series)
    if not titles:
        return None
    figure, axes = drawing.subplots(1, len(titles), WIDTH, HEIGHT)
    for axis, title in zip(axes, titles, strict=True):
        _draw_scores(axis, series, title, lambda point: -point.perplexity)
        axis.set(xlabel=f"negative held-out {METRIC}")
    return figure


def papers_laws(series: Mapping[str, Sequence[str]]) -> list[str]:
    """One note per series: the power law through the points that the paper prints."""
    notes = []
    for name, rows in series.items():
        models = [published.PUBLISHED[row] for row in rows]
        printed = [(each.params_m, each.perplexity) for each in models if each.params_m and each.perplexity]
        if len(printed) > 1:
            law = power_law(*zip(*printed, strict=True))
            notes.append(f"{name} in the paper: {_law(law)}.")
    return notes


def _titles(series: Series) -> list[str]:
    return list(dict.fromkeys(title for points in series.values() for point in points for title in point.scores))


def _draw_scores(axis: Axes, series: Series, title: str, x_of: Callable[[Point], float]) -> None:
    """A column of scores, one line per series; `x_of` gives a point's place on the x axis."""
    for number, (name, points) in enumerate(series.items()):
        scored = sorted((point for point in points if title in point.scores), key=x_of)
        x, y = [x_of(point) for point in scored], [point.scores[title] for point in scored]
        axis.plot(x, y, color=f"C{number}", linewidth=1, label=name)
        tips = [f"{point.row}: {shown(value)} %" for point, value in zip(scored, y, strict=True)]
        drawing.points_with_tips(axis, x, y, tips, color=f"C{number}")
    axis.set(ylabel=f"{title} (%)")
    axis.legend(fontsize=8)


def _law(law: PowerLaw) -> str:
    interval = "two points, no interval" if math.isinf(law.low) else f"95 % interval {law.low:.3f} to {law.high:.3f}"
    return f"{METRIC} is proportional to parameters ** {law.exponent:.3f} ({interval}; R squared {law.r_squared:.3f})"
