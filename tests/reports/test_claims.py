"""Orderings and rank correlation."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from gmlp_flax.reports import claims


@pytest.mark.parametrize(
    ("better", "worse", "expected"),
    [
        ([1.0, 2.0], [2.5, 3.0], claims.HOLDS),
        ([2.5, 3.0], [1.0, 2.0], claims.REVERSED),
        ([1.0, 2.6], [2.5, 3.0], claims.OPEN),
        ([2.0], [2.0], claims.OPEN),
        ([2.0], [2.5, 3.0], claims.ONE_HOLDS),
        ([2.5, 3.0], [2.0], claims.ONE_REVERSED),
        ([2.0], [1.0], claims.ONE_REVERSED),
    ],
)
def test_verdict_needs_all_pairs_of_seeds(better, worse, expected):
    assert claims.verdict(better, worse) == expected


def test_spearman():
    three = [10.0, 20.0, 30.0]
    four = [10.0, 20.0, 30.0, 40.0]
    correlation = claims.spearman(three, [1.0, 2.0, 3.0])
    assert correlation == pytest.approx(1)
    # 1 - 6 * 2 / (4 * 15)
    correlation = claims.spearman(four, [1.0, 2.0, 4.0, 3.0])
    assert correlation == pytest.approx(0.8)
    single = claims.spearman([1.0], [1.0])
    assert math.isnan(single)
    constant = claims.spearman([1.0, 1.0], [1.0, 2.0])
    assert math.isnan(constant)


def test_neighbors_in_the_order_of_the_paper_come_first():
    paper = {"c": 3.0, "a": 1.0, "b": 2.0, "same": 2.0}
    perplexities = {"a": [1.0, 2.0], "b": [3.0], "c": [1.5], "same": [0.0]}
    found = claims.orderings(paper, perplexities)
    verdicts = {}
    for claim in found:
        verdicts[claim.text] = claim.verdict
    assert list(verdicts) == ["a < b", "a < same", "b < c", "same < c", "a < c"]
    assert found[0] == ("a < b", claims.ONE_HOLDS, "means 1.5 and 3")
    assert verdicts["a < same"] == claims.ONE_REVERSED
    assert verdicts["b < c"] == claims.ONE_REVERSED
    assert verdicts["a < c"] == claims.OPEN


def curve(*values):
    """The values of a run after 10, 20 and 30 tokens, as far as there are values."""
    return list(zip((10, 20, 30), values, strict=False))


def test_p_value_of_a_rank_correlation():
    """Of the 24 orders of 4 rows, one is the paper's, and three swap two neighbors: a correlation of
    0.8. If two of our values are equal, two of the 24 orders agree as well as the best."""
    paper = [1.0, 2.0, 3.0, 4.0]
    cases = [
        ([1, 2, 3, 4], 1 / 24),
        ([1, 2, 4, 3], 4 / 24),
        ([4, 3, 2, 1], 1),
        ([1, 1, 2, 3], 2 / 24),
    ]
    for ours, expected in cases:
        p = claims.chance(ours, paper)
        assert p == pytest.approx(expected)
    orders = [ours for ours, _ in cases]
    for ours in [*orders, [3, 1, 1, 2]]:
        by_enumeration = share_of_orders(ours, paper)
        p = claims.chance(ours, paper)
        assert p == pytest.approx(by_enumeration)


def share_of_orders(ours, paper) -> float:
    """The fraction of all orders of our values that correlate with the paper's at least as well."""
    found = stats.spearmanr(ours, paper).statistic
    orders = list(itertools.permutations(ours))
    as_good = 0
    for order in orders:
        correlation = stats.spearmanr(order, paper).statistic
        if correlation > found - 1e-9:
            as_good += 1
    return as_good / len(orders)


def test_p_value_of_many_rows_is_sampled():
    """A normal distribution with variance 1 / 8 is close. No p-value is 0."""
    paper = list(range(9))
    ours = [4, 0, 1, 6, 2, 3, 8, 5, 7]
    correlation = float(claims.spearman(ours, paper))
    deviations = correlation * 8**0.5
    expected = stats.norm.sf(deviations)
    p = claims.chance(ours, paper)
    assert p == pytest.approx(expected, abs=0.01)
    many = list(range(18))
    smallest = claims.chance(many, many)
    assert smallest == pytest.approx(1 / 100_001)


def test_rank_correlation_over_tokens():
    """Of the rows' means, at token counts that all runs share."""
    paper = {"a": 1.0, "b": 2.0, "c": 3.0}
    curves = {
        "a": [curve(9, 1, 1), curve(9, 3, 1)],
        "b": [curve(8, 4, 2)],
        "c": [[*curve(7, 3), (25, 0), (30, 3)]],
    }
    first, second, last = claims.rank_curve(curves, paper)
    tokens = (first.tokens, second.tokens, last.tokens)
    assert tokens == (10, 20, 30)
    assert first.correlation == pytest.approx(-1)
    assert second.correlation == pytest.approx(0.5)
    assert last.correlation == pytest.approx(1)
    assert first.places == [3, 2, 1]
    assert second.places == [1, 3, 2]
    assert last.places == [1, 2, 3]
    for point in (first, second, last):
        means = []
        for row in paper:
            means.append(mean_at(curves[row], point.tokens))
        paper_values = list(paper.values())
        expected = claims.spearman(means, paper_values)
        assert point.correlation == pytest.approx(expected)


def mean_at(curves: list, tokens: int) -> float:
    """The mean value of some curves after a number of tokens."""
    values = [dict(points)[tokens] for points in curves]
    return np.mean(values)


def test_tally_counts_verdicts():
    verdicts = [claims.HOLDS, claims.HOLDS, claims.OPEN]
    tally_claims = [claims.Claim("", verdict) for verdict in verdicts]
    tally = claims.tally(tally_claims)
    assert tally.startswith("3 claims over all pairs of seeds: 2 hold, 0 are reversed, ")
    assert tally.endswith("1 is inside the spread.")
    verdicts += [claims.EARLY, claims.ONE_REVERSED]
    tally_claims = [claims.Claim("", verdict) for verdict in verdicts]
    tally = claims.tally(tally_claims)
    assert tally.endswith("spread, 1 is reversed with one seed, 1 cannot be judged yet.")
