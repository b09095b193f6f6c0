"""Whether runs support a paper's claims: orderings of models, and rank correlation."""

import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.typing import ArrayLike

from gmlp_flax.reports.table import Spread

Curve = Sequence[tuple[float, float]]  # (tokens, held-out metric) of one run

HOLDS = "holds"
REVERSED = "is reversed"
OPEN = "is inside the spread"
ONE_HOLDS = "holds with one seed"
ONE_REVERSED = "is reversed with one seed"
EARLY = "cannot be judged yet"  # a model has hardly begun to learn, or none solves the task
ALWAYS_COUNTED = (HOLDS, REVERSED, OPEN)
VERDICTS = (*ALWAYS_COUNTED, ONE_HOLDS, ONE_REVERSED, EARLY)
DRAWS = 100_000  # orders of rows: all, if there are no more
DRAWS_AT_ONCE = 1000  # in memory


class Claim(NamedTuple):
    """A claim, of the paper unless it says otherwise.

    Attributes:
        text: what is claimed.
        verdict: of our runs, one of VERDICTS.
        detail: our numbers.
    """

    text: str
    verdict: str
    detail: str = ""


class RankPoint(NamedTuple):
    """How our rows rank at a number of tokens.

    Attributes:
        tokens: that the rows were trained on.
        correlation: Spearman's rank correlation with the paper's column.
        places: of each row, from 1 on.
    """

    tokens: float
    correlation: float
    places: Sequence[int]


def counted(count: int, verdict: str) -> str:
    """A number of claims and their verdict: "1 holds", "2 are reversed"."""
    if count != 1:
        verdict = verdict.replace("holds", "hold").replace("is ", "are ")
    return f"{count} {verdict}"


def tally(claims: Sequence[Claim]) -> str:
    """How many claims have each verdict."""
    counts = Counter(claim.verdict for claim in claims)
    parts = []
    for word in VERDICTS:
        count = counts[word]
        if count or word in ALWAYS_COUNTED:
            part = counted(count, word)
            parts.append(part)
    total = len(claims)
    noun = "claim" if total == 1 else "claims"
    counts_of_verdicts = ", ".join(parts)
    return f"{total} {noun} over all pairs of seeds: {counts_of_verdicts}."


def verdict(
    better: Sequence[float],
    worse: Sequence[float],
    lower: bool = True,
    noise: float = 0.0,
) -> str:
    """Whether the claim that `better` is lower than `worse`, or higher, holds for every pair of
    seeds, none, or some.

    Of two models that are equal, n seeds each all fall one way with probability 2 / C(2n, n): 0.33
    for two seeds, 0.1 for three, 0.01 for five. A single seed of either model says nothing about
    its spread, and the verdict says so. Means that are closer than `noise` decide nothing.
    """
    low = better if lower else worse
    high = worse if lower else better
    single = min(len(better), len(worse)) == 1
    distance = statistics.mean(better) - statistics.mean(worse)
    if abs(distance) < noise:
        return OPEN
    if max(low) < min(high):
        return ONE_HOLDS if single else HOLDS
    if min(low) > max(high):
        return ONE_REVERSED if single else REVERSED
    return OPEN


def orderings(papers: Mapping[str, float], last: Mapping[str, Sequence[float]]) -> list[Claim]:
    """Each ordering of the paper's column, lower first: neighbours in it, then the other pairs.

    Args:
        papers: row -> the paper's number.
        last: row -> the last value of each run.
    """
    different_values = set(papers.values())
    lowest_first = sorted(different_values)
    places = {row: lowest_first.index(value) for row, value in papers.items()}
    rows = sorted(papers, key=lambda row: places[row])
    neighbours = []
    others = []
    for better, worse in itertools.combinations(rows, 2):
        distance = places[worse] - places[better]
        if distance == 0:
            continue
        claim = _ordering(better, worse, last)
        if distance == 1:
            neighbours.append(claim)
        else:
            others.append(claim)
    return neighbours + others


def _ordering(
    better: str,
    worse: str,
    last: Mapping[str, Sequence[float]],
) -> Claim:
    """The claim that a row is lower than another."""
    better_values = last[better]
    worse_values = last[worse]
    better_mean = statistics.mean(better_values)
    worse_mean = statistics.mean(worse_values)
    return Claim(
        f"{better} < {worse}",
        verdict(better_values, worse_values),
        f"means {better_mean:.4g} and {worse_mean:.4g}",
    )


# Rank correlation.


def spearman(ours: ArrayLike, papers: Sequence[float]) -> np.ndarray:
    """Rank correlation of the last axis of [..., rows] with the paper's column, -1 to 1; nan if one
    is constant."""
    our_ranks = _centred_ranks(ours)
    paper_ranks = _centred_ranks(papers)
    product = _dot(our_ranks, paper_ranks)
    our_square = _dot(our_ranks, our_ranks)
    paper_square = _dot(paper_ranks, paper_ranks)
    norms = np.sqrt(our_square * paper_square)  # one root: 1 is exactly 1
    norms = np.where(norms > 0, norms, np.nan)
    return product / norms


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The dot products over the last axis of arrays that broadcast."""
    return np.sum(a * b, axis=-1)


def _centred_ranks(values: ArrayLike) -> np.ndarray:
    """The ranks of values [..., rows] on the last axis, less their mean."""
    ranks = scipy.stats.rankdata(values, axis=-1)
    means = ranks.mean(axis=-1, keepdims=True)
    return ranks - means


def chance(ours: Sequence[float], papers: Sequence[float]) -> float:
    """The one-sided p of the rank correlation of two columns: the share of all orders of ours,
    with its ties, that agree with the paper's at least as well.

    If there are more than DRAWS orders (of nine rows or more) they are drawn, the same in every
    call, and p is (k + 1) / (DRAWS + 1), if k of them agree as well: it is never 0.

    Args:
        ours: our number of each row.
        papers: the paper's number of each row, in the same order.
    """

    def correlation(order: np.ndarray, axis: int) -> np.ndarray:
        """The correlation of each order of ours, on the last axis."""
        with_rows_last = np.moveaxis(order, axis, -1)
        return spearman(with_rows_last, papers)

    sample = np.asarray(ours, np.float64)
    test = scipy.stats.permutation_test(
        (sample,),
        correlation,
        permutation_type="pairings",
        alternative="greater",
        vectorized=True,
        n_resamples=DRAWS,
        batch=DRAWS_AT_ONCE,
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


def shared_tokens(curves: Sequence[Curve]) -> list[float]:
    """The token counts at which every curve has a value, in order."""
    if not curves:
        return []
    tokens_of_curves = []
    for curve in curves:
        tokens_of_curve = {tokens for tokens, _ in curve}
        tokens_of_curves.append(tokens_of_curve)
    shared = set.intersection(*tokens_of_curves)
    return sorted(shared)


def rank_curve(
    curves: Mapping[str, Sequence[Curve]], papers: Mapping[str, float]
) -> list[RankPoint]:
    """The rank correlation of the rows' means with the paper's column, at each token count that all
    runs share.

    Args:
        curves: row -> the curve of each run, at least one.
        papers: row -> the paper's number, at least two that differ.
    """
    column = list(papers.values())
    all_curves: list[Curve] = []
    for row in papers:
        all_curves += curves[row]
    points = []
    for tokens in shared_tokens(all_curves):
        means = []
        for row in papers:
            spread = spread_at(curves[row], tokens)
            means.append(spread.centre)
        correlation = spearman(means, column)
        ranks = scipy.stats.rankdata(means, "min")
        places = ranks.astype(int).tolist()
        point = RankPoint(tokens, float(correlation), places)
        points.append(point)
    return points


def spread_at(curves: Sequence[Curve], tokens: float) -> Spread:
    """The values of curves at a token count that all of them have."""
    values = []
    for curve in curves:
        by_tokens = dict(curve)
        values.append(by_tokens[tokens])
    return Spread.mean(values)
