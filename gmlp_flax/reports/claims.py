"""Whether runs support a paper's claims: orderings of models, and rank correlation."""

import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

Curve = Sequence[tuple[float, float]]  # (tokens, held-out metric) of one run

HOLDS, REVERSED, OPEN = "holds", "is reversed", "is inside the spread"
ONE_HOLDS, ONE_REVERSED = "holds with one seed", "is reversed with one seed"
EARLY = "cannot be judged yet"  # a model has hardly begun to learn
VERDICTS = (HOLDS, REVERSED, OPEN, ONE_HOLDS, ONE_REVERSED, EARLY)
DRAWS = 100_000  # of orders of many rows


class Claim(NamedTuple):
    """A claim, of the paper unless it says otherwise, the verdict of our runs, and what more there
    is to say."""

    text: str
    verdict: str
    detail: str = ""


class RankPoint(NamedTuple):
    """Spearman's rank correlation with the paper's column at a number of tokens, and each row's
    place from 1 on."""

    tokens: float
    correlation: float
    places: Sequence[int]


def counted(count: int, verdict: str) -> str:
    """A number of claims and their verdict: "1 holds", "2 are reversed"."""
    return f"{count} {verdict if count == 1 else verdict.replace('holds', 'hold').replace('is ', 'are ')}"


def tally(claims: Sequence[Claim]) -> str:
    """How many claims have each verdict."""
    counts = Counter(claim.verdict for claim in claims)
    parts = (
        counted(counts[word], word) for word in VERDICTS if counts[word] or word in VERDICTS[:3]
    )
    return f"{len(claims)} claim{'s' * (len(claims) != 1)} over all pairs of seeds: {', '.join(parts)}."


def verdict(
    better: Sequence[float], worse: Sequence[float], lower: bool = True, noise: float = 0.0
) -> str:
    """Whether the claim that `better` is lower than `worse`, or higher, holds for every pair of
    seeds, none, or some.

    Of two models that are equal, n seeds each all fall one way with probability 2 / C(2n, n): 0.33
    for two seeds, 0.1 for three, 0.01 for five. A single seed of either model says nothing of its
    spread, and the verdict says so. Means that are closer than `noise` decide nothing.
    """
    low, high = (better, worse) if lower else (worse, better)
    single = min(len(better), len(worse)) == 1
    if abs(statistics.mean(better) - statistics.mean(worse)) < noise:
        return OPEN
    if max(low) < min(high):
        return ONE_HOLDS if single else HOLDS
    if min(low) > max(high):
        return ONE_REVERSED if single else REVERSED
    return OPEN


def orderings(papers: Mapping[str, float], last: Mapping[str, Sequence[float]]) -> list[Claim]:
    """Each ordering of the paper's column, lower first: first of neighbours in it, then of the
    other pairs.

    Args:
        papers: row -> the paper's number.
        last: row -> the last value of each run.
    """
    values = sorted(set(papers.values()))
    neighbours, others = [], []
    for better, worse in itertools.combinations(sorted(papers, key=lambda row: papers[row]), 2):
        if distance := values.index(papers[worse]) - values.index(papers[better]):
            means = (
                f"means {statistics.mean(last[better]):.4g} and {statistics.mean(last[worse]):.4g}"
            )
            claim = Claim(f"{better} < {worse}", verdict(last[better], last[worse]), means)
            (neighbours if distance == 1 else others).append(claim)
    return neighbours + others


def spearman(ours: ArrayLike, papers: Sequence[float]) -> np.ndarray:
    """Rank correlation of the last axis of [..., rows] with the paper's column, -1 to 1; nan if one
    is constant."""
    ranks = stats.rankdata(ours, axis=-1), stats.rankdata(papers)
    one, other = (column - column.mean(-1, keepdims=True) for column in ranks)
    norms = np.sqrt(np.square(one).sum(-1) * np.square(other).sum(-1))
    return (one * other).sum(-1) / np.where(norms, norms, np.nan)


def chance(correlation: float, papers: Sequence[float]) -> float:
    """The one-sided p of a rank correlation: the share of all orders of as many rows that agree
    with the paper's column at least as well; of more than 8 rows, of drawn orders, the same in
    every call."""
    if len(papers) <= 8:
        orders = np.array(list(itertools.permutations(range(len(papers)))))
    else:
        orders = np.random.default_rng(0).permuted(
            np.tile(np.arange(len(papers)), (DRAWS, 1)), axis=1
        )
    return float(np.mean(spearman(orders, papers) > correlation - 1e-9))


def shared_tokens(curves: Sequence[Curve]) -> list[float]:
    """The token counts at which every curve has a value, in order."""
    counts = [{tokens for tokens, _ in curve} for curve in curves]
    return sorted(set.intersection(*counts)) if counts else []


def rank_curve(
    curves: Mapping[str, Sequence[Curve]], papers: Mapping[str, float]
) -> list[RankPoint]:
    """The rank correlation of the rows' means with the paper's column, at each token count that all
    runs share.

    Args:
        curves: row -> the curve of each run, at least one.
        papers: row -> the paper's number, at least two that differ.
    """
    tokens = shared_tokens([curve for row in papers for curve in curves[row]])
    ours = [
        [statistics.mean(dict(curve)[count] for curve in curves[row]) for row in papers]
        for count in tokens
    ]
    return [
        RankPoint(
            count,
            float(spearman(means, list(papers.values()))),
            [int(p) for p in stats.rankdata(means, "min")],
        )
        for count, means in zip(tokens, ours, strict=True)
    ]
