"""What runs say about a paper's claims: orderings, rank correlation, power laws."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from scipy import stats

Curve = Sequence[tuple[float, float]]  # (tokens, held-out metric) of one run

HOLDS, REVERSED, OPEN = "holds", "is reversed", "is inside the seeds' spread"


def verdict(better: Sequence[float], worse: Sequence[float]) -> str:
    """Whether a claim that `better` is lower than `worse` holds for every pair of seeds, for none, or for some."""
    if max(better) < min(worse):
        return HOLDS
    return REVERSED if min(better) > max(worse) else OPEN


def spearman(ours: Sequence[float], papers: Sequence[float]) -> float:
    """Rank correlation of two columns, -1 to 1; nan where one of them has fewer than two values or is constant."""
    if len(ours) < 2 or len(set(ours)) < 2 or len(set(papers)) < 2:
        return math.nan
    return float(stats.spearmanr(ours, papers).statistic)


def emerges(better: Sequence[Curve], worse: Sequence[Curve]) -> float | None:
    """The tokens from which on the mean of `better` stays below that of `worse`; None where it is not so at the end.

    Means are over the runs of a row, at token counts that all of both rows were evaluated at.
    """
    tables = [dict(curve) for curve in (*better, *worse)]
    since = None
    for tokens in sorted(set(tables[0]).intersection(*tables[1:])) if tables else ():
        means = [statistics.mean(dict(curve)[tokens] for curve in curves) for curves in (better, worse)]
        if means[0] >= means[1]:
            since = None
        elif since is None:
            since = tokens
    return since


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
    fit = stats.linregress([math.log(value) for value in x], [math.log(value) for value in y])
    free = len(x) - 2
    margin = fit.stderr * stats.t.ppf(0.975, free) if free else math.inf
    return PowerLaw(
        math.exp(fit.intercept), float(fit.slope), float(fit.slope - margin), float(fit.slope + margin),
        float(fit.rvalue**2),
    )
