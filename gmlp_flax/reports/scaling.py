"""How models scale: power laws of perplexity over parameters, and finetuned scores over parameters
and over perplexity (Figures 5, 7 and 8)."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import scipy  # its parts are imported when they are used

from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.looks import Look, looks
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.reports.report import family, over_seeds
from gmlp_flax.reports.table import Spread

METRIC = "perplexity"
CONFIDENCE = 0.95


class PowerLaw(NamedTuple):
    """y = scale * x ** exponent, fitted by least squares on logarithms.

    Attributes:
        scale: the factor of the fit.
        exponent: the exponent of the fit.
        low, high: the exponent's 95 % confidence interval, from Student's t; infinitely wide for
            two points.
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
        if math.isinf(self.low):
            return "two points, no interval"
        low = f"{self.low:.{digits}f}"
        high = f"{self.high:.{digits}f}"
        return f"{low} to {high}"

    def sentence(self) -> str:
        """The law of perplexity over parameters in words."""
        interval = self.interval(3)
        if math.isfinite(self.low):
            interval = f"95 % interval {interval}"
        fit = f"{interval}; R squared {self.r_squared:.3f}"
        power = f"parameters ** {self.exponent:.3f}"
        return f"{METRIC} is proportional to {power} ({fit})"


def power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw:
    """Fits a power law to at least two points with positive coordinates and different x."""
    log_x = [math.log(value) for value in x]
    log_y = [math.log(value) for value in y]
    fit: Any = scipy.stats.linregress(log_x, log_y)
    exponent = float(fit.slope)
    margin = math.inf
    freedom = len(x) - 2
    if freedom > 0:
        probability = (1 + CONFIDENCE) / 2  # two-sided
        quantile = scipy.stats.t.ppf(probability, freedom)
        margin = float(fit.stderr * quantile)
    return PowerLaw(
        scale=math.exp(fit.intercept),
        exponent=exponent,
        low=exponent - margin,
        high=exponent + margin,
        r_squared=float(fit.rvalue**2),
    )


def papers_laws(series: Mapping[str, Sequence[str]]) -> list[str]:
    """One note per series: the power law through the points that the paper prints."""
    notes = []
    for name, rows in series.items():
        params = []
        perplexities = []
        for row in rows:
            model = PUBLISHED[row]
            if model.params_m and model.perplexity:
                params.append(model.params_m)
                perplexities.append(model.perplexity)
        if len(params) > 1:
            law = power_law(params, perplexities)
            sentence = law.sentence()
            notes.append(f"{name} in the paper: {sentence}.")
    return notes


class Point(NamedTuple):
    """A model of a line.

    Attributes:
        row: its name.
        params: millions of parameters.
        perplexity: held out, over its runs.
        scores: title of a column -> percent, over finetuned runs; empty if the model was not
            finetuned.
    """

    row: str
    params: float
    perplexity: Spread
    scores: Mapping[str, Spread]


Lines = Mapping[str, Sequence[Point]]  # name -> the models of a line


class Mark(NamedTuple):
    """A point of a panel: a row, and where it stands."""

    row: str
    x: float
    y: Spread


def scaling(lines: Lines) -> tuple[Chart | None, list[str]]:
    """Figures 5 and 8. The first panel has perplexity over parameters, both logarithmic, with a
    power law through each line; each further panel has one column of scores over parameters.

    Returns:
        The chart, None if no line has two models; and one note per power law.
    """
    x = Scale("M parameters", log=True)
    marks: dict[str, list[Mark]] = {}
    laws: dict[str, PowerLaw] = {}
    for name, points in lines.items():
        line_marks = []
        for point in points:
            mark = Mark(point.row, point.params, point.perplexity)
            line_marks.append(mark)
        marks[name] = line_marks
        if len(points) > 1:
            laws[name] = _law(points)
    if not laws:
        return None, []
    heading = "Perplexity over parameters"
    y = Scale(f"held-out {METRIC}", log=True)
    panel = _panel(heading, x, y, marks, laws)
    scores = _score_panels(lines, x, lambda point: point.params)
    notes = []
    for name, law in laws.items():
        sentence = law.sentence()
        notes.append(f"{name}: {sentence}.")
    chart = Chart(
        [panel, *scores],
        "Points are means over seeds (scores: medians), bars go from lowest to highest; "
        "dashed: power laws.",
    )
    return chart, notes


def _law(points: Sequence[Point]) -> PowerLaw:
    """The power law of perplexity over parameters through the points of a line."""
    params = []
    perplexities = []
    for point in points:
        params.append(point.params)
        perplexities.append(point.perplexity.centre)
    return power_law(params, perplexities)


def transfer(lines: Lines) -> Chart | None:
    """Figure 7: finetuned scores over perplexity, which falls to the right, one panel per column;
    None if no two models of a line were finetuned."""
    x = Scale(f"held-out {METRIC} (better to the right)", log=True, backwards=True)
    panels = _score_panels(lines, x, lambda point: point.perplexity.centre)
    if not panels:
        return None
    return Chart(
        panels,
        "Points are medians of scores over means of perplexity, bars go from the lowest to the "
        "highest score.",
    )


def _score_panels(
    lines: Lines,
    x: Scale,
    x_of: Callable[[Point], float],
) -> list[Panel]:
    """A panel for each column of scores in which some line has two models."""
    panels = []
    for title in _score_titles(lines):
        marks = _score_marks(lines, title, x_of)
        counts = [len(line_marks) for line_marks in marks.values()]
        if max(counts) < 2:
            continue
        all_marks = itertools.chain(*marks.values())
        best = max(all_marks, key=lambda mark: mark.y.centre)
        score = best.y.centre
        heading = f"{title}: {best.row} is best, {score:.1f} %"
        y = Scale(f"{title} (%)")
        panel = _panel(heading, x, y, marks, laws={})
        panels.append(panel)
    return panels


def _score_titles(lines: Lines) -> list[str]:
    """The titles of all columns in which some model has a score."""
    titles: dict[str, None] = {}
    for points in lines.values():
        for point in points:
            titles |= dict.fromkeys(point.scores)
    return list(titles)


def _score_marks(
    lines: Lines,
    title: str,
    x_of: Callable[[Point], float],
) -> dict[str, list[Mark]]:
    """Name of a line -> the points of its models that have a score in a column."""
    marks: dict[str, list[Mark]] = {}
    for name, points in lines.items():
        line_marks = []
        for point in points:
            if title in point.scores:
                score = point.scores[title]
                mark = Mark(point.row, x_of(point), score)
                line_marks.append(mark)
        marks[name] = line_marks
    return marks


def _panel(
    title: str,
    x: Scale,
    y: Scale,
    marks: Mapping[str, Sequence[Mark]],
    laws: Mapping[str, PowerLaw],
) -> Panel:
    """A panel with one series per line that has points.

    Args:
        title: the title of the panel.
        x, y: its axes.
        marks: name of a line -> its points.
        laws: name of a line -> the law that is drawn dashed through its points; no other line joins
            them.
    """
    drawn = {}
    families = []
    for name, line_marks in marks.items():
        if line_marks:
            first = line_marks[0]
            drawn[name] = line_marks
            families.append(family(first.row))
    look_of = looks(families)
    series = []
    for name, look in zip(drawn, look_of, strict=True):
        law = laws.get(name)
        line = _line(name, look.solid(), drawn[name], law)
        series.append(line)
    return Panel(title, x, y, series)


def _line(
    name: str,
    look: Look,
    marks: Sequence[Mark],
    law: PowerLaw | None,
) -> Series:
    """The points of a line from left to right, each labelled by its row without the family."""
    x = []
    y = []
    labels = []
    fit = []
    from_left_to_right = sorted(marks, key=lambda mark: mark.x)
    for mark in from_left_to_right:
        x.append(mark.x)
        y.append(mark.y)
        family_name, _, label = mark.row.partition("_")
        labels.append(label or family_name)
        if law is not None:
            fit.append(law(mark.x))
    return over_seeds(
        name,
        look,
        x,
        y,
        labels=labels,
        joined=law is None,
        fit=fit,
    )
