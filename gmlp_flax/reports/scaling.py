"""How models scale: power laws, and the paper's Figures 5 and 8 (over parameters) and 7 (over perplexity)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scipy import stats

from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.drawing import DASHES, looks
from gmlp_flax.paper import published
from gmlp_flax.reports.families import family
from gmlp_flax.reports.table import Spread

METRIC = "perplexity"


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

    def interval(self, digits: int = 2) -> str:
        """The exponent's interval in words."""
        low, high = (f"{value:.{digits}f}" for value in (self.low, self.high))
        return "two points, no interval" if math.isinf(self.low) else f"{low} to {high}"


def power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw:
    """Fits a power law to at least two points with positive coordinates and different x."""
    fit: Any = stats.linregress([math.log(value) for value in x], [math.log(value) for value in y])
    free = len(x) - 2
    margin = fit.stderr * stats.t.ppf(0.975, free) if free else math.inf
    return PowerLaw(
        math.exp(fit.intercept),
        float(fit.slope),
        float(fit.slope - margin),
        float(fit.slope + margin),
        float(fit.rvalue**2),
    )


class Point(NamedTuple):
    """A model of a line.

    Attributes:
        row: its name.
        params: millions of parameters.
        perplexity: held out, over its runs.
        scores: title of a column -> percent, over finetuned runs; empty if the model was not finetuned.
    """

    row: str
    params: float
    perplexity: Spread
    scores: Mapping[str, Spread]


Lines = Mapping[str, Sequence[Point]]


def scaling(lines: Lines) -> tuple[Chart | None, list[str]]:
    """Figures 5 and 8. The first panel has perplexity over parameters, both logarithmic, with a power law through each
    line; each further panel has one column of scores over parameters.

    Returns:
        The chart, None if no line has two models; and one note per power law.
    """
    laws = {
        name: power_law([point.params for point in points], [point.perplexity.centre for point in points])
        for name, points in lines.items()
        if len(points) > 1
    }
    if not laws:
        return None, []
    exponents = ", ".join(f"{law.exponent:.2f} ({name})" for name, law in laws.items())
    params = Scale("M parameters", log=True)
    series = _series(lines, lambda point: point.params, lambda point: point.perplexity, laws)
    title = f"Perplexity goes as parameters to the power {exponents}"
    panels = [Panel(title, params, Scale(f"held-out {METRIC}", log=True), series)]
    panels += [_scores(lines, title, params, lambda point: point.params) for title in _titles(lines)]
    caption = "Points are means over seeds (scores: medians), bars go from lowest to highest; dashed: power laws."
    return Chart(panels, caption), [f"{name}: {_law(law)}." for name, law in laws.items()]


def transfer(lines: Lines) -> Chart | None:
    """Figure 7: finetuned scores over perplexity, which falls to the right, one panel per column; None if no two models
    of a line were finetuned."""
    perplexity = Scale(f"held-out {METRIC} (better to the right)", log=True, backwards=True)
    panels = [_scores(lines, title, perplexity, lambda point: point.perplexity.centre) for title in _titles(lines)]
    caption = "Points are medians of scores over means of perplexity, bars go from the lowest to the highest score."
    return Chart(panels, caption) if panels else None


def papers_laws(series: Mapping[str, Sequence[str]]) -> list[str]:
    """One note per series: the power law through the points that the paper prints."""
    notes = []
    for name, rows in series.items():
        models = [published.PUBLISHED[row] for row in rows]
        printed = [(model.params_m, model.perplexity) for model in models if model.params_m and model.perplexity]
        if len(printed) > 1:
            law = power_law(*zip(*printed, strict=True))
            notes.append(f"{name} in the paper: {_law(law)}.")
    return notes


def _titles(lines: Lines) -> list[str]:
    """The columns in which some line has two models."""
    columns = dict.fromkeys(title for points in lines.values() for point in points for title in point.scores)
    return [
        title
        for title in columns
        if any(sum(title in point.scores for point in points) > 1 for points in lines.values())
    ]


def _scores(lines: Lines, title: str, x: Scale, x_of: Callable[[Point], float]) -> Panel:
    """A panel of one column of scores."""
    scored = {name: [point for point in points if title in point.scores] for name, points in lines.items()}
    series = _series(scored, x_of, lambda point: point.scores[title], {})
    best = max((point for points in scored.values() for point in points), key=lambda point: point.scores[title].centre)
    heading = f"{title}: {best.row} is best, {best.scores[title].centre:.1f} %"
    return Panel(heading, x, Scale(f"{title} (%)"), series)


def _series(
    lines: Lines, x_of: Callable[[Point], float], y_of: Callable[[Point], Spread], laws: Mapping[str, PowerLaw]
) -> list[Series]:
    """One series per line that has points; `laws` are drawn dashed, and then nothing joins the points."""
    series = []
    families = [family(points[0].row) if points else "" for points in lines.values()]
    for (name, points), look in zip(lines.items(), looks(families), strict=True):
        points = sorted(points, key=x_of)
        if points:
            x, y = [x_of(point) for point in points], [y_of(point) for point in points]
            series.append(
                Series(
                    name,
                    look._replace(dashes=DASHES[0]),
                    x,
                    [value.centre for value in y],
                    low=[min(value.values) for value in y],
                    high=[max(value.values) for value in y],
                    labels=[point.row.split("_", 1)[-1] for point in points],
                    joined=name not in laws,
                    band=False,
                    fit=[laws[name](value) for value in x] if name in laws else (),
                )
            )
    return series


def _law(law: PowerLaw) -> str:
    interval = law.interval(3) if math.isinf(law.low) else f"95 % interval {law.interval(3)}"
    return f"{METRIC} is proportional to parameters ** {law.exponent:.3f} ({interval}; R squared {law.r_squared:.3f})"
