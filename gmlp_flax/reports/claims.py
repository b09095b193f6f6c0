"""Whether runs support a paper's claims: orderings of models, and rank correlation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from scipy import stats

Curve = Sequence[tuple[float, float]]  # (tokens, held-out metric) of one run

HOLDS, REVERSED, OPEN = "holds", "is reversed", "is inside the seeds' spread"


def verdict(better: Sequence[float], worse: Sequence[float]) -> str:
    """Whether the claim that `better` is lower than `worse` holds for every pair of seeds, for none, or for some."""
    if max(better) < min(worse):
        return HOLDS
    return REVERSED if min(better) > max(worse) else OPEN


def spearman(ours: Sequence[float], papers: Sequence[float]) -> float:
    """Rank correlation of two columns, -1 to 1; nan if one has fewer than two values or is constant."""
    if len(ours) < 2 or len(set(ours)) < 2 or len(set(papers)) < 2:
        return math.nan
    result: Any = stats.spearmanr(ours, papers)
    return float(result.statistic)


def emerges(better: Sequence[Curve], worse: Sequence[Curve]) -> float | None:
    """The number of tokens from which the mean of `better` stays below the mean of `worse`; None if it ends above.

    A mean is taken over the runs of a row, at token counts at which every run of both rows was evaluated.
    """
    groups = [[dict(curve) for curve in curves] for curves in (better, worse)]
    tables = [*groups[0], *groups[1]]
    since = None
    for tokens in sorted(set(tables[0]).intersection(*tables[1:])) if tables else ():
        means = [statistics.mean(table[tokens] for table in group) for group in groups]
        if means[0] >= means[1]:
            since = None
        elif since is None:
            since = tokens
    return since
