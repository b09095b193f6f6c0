"""How models scale: power laws, and the paper's Figures 5 and 8 (over parameters) and 7 (over perplexity)."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scipy import stats

from gmlp_flax.analysis.drawing import DASHES, Chart, Panel, Scale, looks
from gmlp_flax.paper import published
from gmlp_flax.reports.report import family, over_seeds
from gmlp_flax.reports.table import Spread

METRIC = "perplexity"


class PowerLaw(NamedTuple):
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
        return "two points, no interval" if math.isinf(self.low) else f"{self.low:.{digits}f} to {self.high:.{digits}f}"

    def sentence(self) -> str:
        """The law of perplexity over parameters in words."""
        interval = ("" if math.isinf(self.low) else "95 % interval ") + self.interval(3)
        fit = f"{interval}; R squared {self.r_squared:.3f}"
        return f"{METRIC} is proportional to parameters ** {self.exponent:.3f} ({fit})"


def power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw:
    """Fits a power law to at least two points with positive coordinates and different x."""
    fit: Any = stats.linregress([math.log(value) for value in x], [math.log(value) for value in y])
    margin = fit.stderr * stats.t.ppf(0.975, len(x) - 2) if len(x) > 2 else math.inf
    exponent = float(fit.slope)
    return PowerLaw(
        math.exp(fit.intercept), exponent, exponent - float(margin), exponent + float(margin), float(fit.rvalue**2)
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
    title = "Perplexity over parameters"
    params, perplexity = Scale("M parameters", log=True), Scale(f"held-out {METRIC}", log=True)
    points_of = {name: [(p.row, p.params, p.perplexity) for p in points] for name, points in lines.items()}
    panels = [_panel(title, params, perplexity, points_of, laws)]
    panels += _scores(lines, params, lambda point: point.params)
    caption = "Points are means over seeds (scores: medians), bars go from lowest to highest; dashed: power laws."
    return Chart(panels, caption), [f"{name}: {law.sentence()}." for name, law in laws.items()]


def transfer(lines: Lines) -> Chart | None:
    """Figure 7: finetuned scores over perplexity, which falls to the right, one panel per column; None if no two models
    of a line were finetuned."""
    perplexity = Scale(f"held-out {METRIC} (better to the right)", log=True, backwards=True)
    panels = _scores(lines, perplexity, lambda point: point.perplexity.centre)
    caption = "Points are medians of scores over means of perplexity, bars go from the lowest to the highest score."
    return Chart(panels, caption) if panels else None


def papers_laws(series: Mapping[str, Sequence[str]]) -> list[str]:
    """One note per series: the power law through the points that the paper prints."""
    notes = []
    for name, rows in series.items():
        models = [published.PUBLISHED[row] for row in rows]
        printed = [(model.params_m, model.perplexity) for model in models if model.params_m and model.perplexity]
        if len(printed) > 1:
            notes.append(f"{name} in the paper: {power_law(*zip(*printed, strict=True)).sentence()}.")
    return notes


def _scores(lines: Lines, x: Scale, x_of: Callable[[Point], float]) -> list[Panel]:
    """A panel for each column of scores in which some line has two models."""
    panels = []
    for title in dict.fromkeys(title for points in lines.values() for point in points for title in point.scores):
        scored = {
            name: [(point.row, x_of(point), point.scores[title]) for point in points if title in point.scores]
            for name, points in lines.items()
        }
        if max(map(len, scored.values())) > 1:
            best, _, score = max(itertools.chain(*scored.values()), key=lambda point: point[2].centre)
            heading = f"{title}: {best} is best, {score.centre:.1f} %"
            panels.append(_panel(heading, x, Scale(f"{title} (%)"), scored, {}))
    return panels


def _panel(
    title: str,
    x: Scale,
    y: Scale,
    lines: Mapping[str, Sequence[tuple[str, float, Spread]]],
    laws: Mapping[str, PowerLaw],
) -> Panel:
    """One series per line that has points (row, x, y); `laws` are drawn dashed, and then nothing joins the points."""
    lines, series = {name: sorted(points, key=lambda point: point[1]) for name, points in lines.items() if points}, []
    for (name, points), look in zip(lines.items(), looks([family(of[0][0]) for of in lines.values()]), strict=True):
        rows, at, values = zip(*points, strict=True)
        law, look = laws.get(name), look._replace(dashes=DASHES[0])
        options = {"labels": [row.split("_", 1)[-1] for row in rows], "joined": law is None}
        series.append(over_seeds(name, look, at, values, fit=list(map(law, at)) if law else (), **options))
    return Panel(title, x, y, series)
