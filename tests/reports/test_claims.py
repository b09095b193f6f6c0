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
    assert claims.spearman([10.0, 20.0, 30.0], [1.0, 2.0, 3.0]) == pytest.approx(1)
    # 1 - 6 * 2 / (4 * 15)
    assert claims.spearman([10.0, 20.0, 30.0, 40.0], [1.0, 2.0, 4.0, 3.0]) == pytest.approx(0.8)
    assert math.isnan(claims.spearman([1.0], [1.0]))
    assert math.isnan(claims.spearman([1.0, 1.0], [1.0, 2.0]))


def test_neighbors_in_the_order_of_the_paper_come_first():
    papers = {"c": 3.0, "a": 1.0, "b": 2.0, "same": 2.0}
    last = {"a": [1.0, 2.0], "b": [3.0], "c": [1.5], "same": [0.0]}
    found = claims.orderings(papers, last)
    assert [claim.text for claim in found] == ["a < b", "a < same", "b < c", "same < c", "a < c"]
    assert found[0] == ("a < b", claims.ONE_HOLDS, "means 1.5 and 3")
    assert [found[index].verdict for index in (1, 2, 4)] == [
        claims.ONE_REVERSED,
        claims.ONE_REVERSED,
        claims.OPEN,
    ]


def curve(*values):
    return list(zip((10, 20, 30), values, strict=False))


def test_p_value_of_a_rank_correlation():
    """Of the 24 orders of 4 rows one is the paper's, and three swap two neighbours: a correlation
    of 0.8. If two of ours are equal, two of the 24 orders agree as well as the best."""
    papers = [1.0, 2.0, 3.0, 4.0]
    orders = ([1, 2, 3, 4], [1, 2, 4, 3], [4, 3, 2, 1], [1, 1, 2, 3], [3, 1, 1, 2])
    chances = [claims.chance(ours, papers) for ours in orders]
    by_hand = [share_of_orders(ours, papers) for ours in orders]
    assert chances == pytest.approx(by_hand)
    expected = [1 / 24, 4 / 24, 1, 2 / 24]
    assert chances[:4] == pytest.approx(expected)


def share_of_orders(ours, papers):
    """Of all orders of ours, the share that correlates with the paper's column as well."""
    found = stats.spearmanr(ours, papers).statistic
    orders = list(itertools.permutations(ours))
    agree = [stats.spearmanr(order, papers).statistic > found - 1e-9 for order in orders]
    return sum(agree) / len(orders)


def test_p_value_of_many_rows_is_sampled():
    """A normal distribution with variance 1 / 8 is near; no p is 0."""
    papers = list(range(9))
    ours = [4, 0, 1, 6, 2, 3, 8, 5, 7]
    correlation = float(claims.spearman(ours, papers))
    normal = stats.norm.sf(correlation * 8**0.5)
    assert claims.chance(ours, papers) == pytest.approx(normal, abs=0.01)
    got = claims.chance(list(range(18)), list(range(18)))
    assert got == pytest.approx(1 / 100_001)


def test_rank_correlation_over_tokens():
    """At token counts that all runs share, of the rows' means."""
    papers = {"a": 1.0, "b": 2.0, "c": 3.0}
    curves = {
        "a": [curve(9, 1, 1), curve(9, 3, 1)],
        "b": [curve(8, 4, 2)],
        "c": [[*curve(7, 3), (25, 0), (30, 3)]],
    }
    found = claims.rank_curve(curves, papers)
    assert [point.tokens for point in found] == [10, 20, 30]
    assert [point.correlation for point in found] == pytest.approx([-1, 0.5, 1])
    for point in found:
        ours = [np.mean([dict(each)[point.tokens] for each in curves[row]]) for row in papers]
        assert point.correlation == pytest.approx(claims.spearman(ours, list(papers.values())))
    assert [point.places for point in found] == [[3, 2, 1], [1, 3, 2], [1, 2, 3]]


def test_tally_counts_verdicts():
    found = [claims.Claim("", verdict) for verdict in (claims.HOLDS, claims.HOLDS, claims.OPEN)]
    assert claims.tally(found).startswith(
        "3 claims over all pairs of seeds: 2 hold, 0 are reversed, "
    )
    assert claims.tally(found).endswith("1 is inside the spread.")
    more = [claims.Claim("", verdict) for verdict in (claims.EARLY, claims.ONE_REVERSED)]
    assert claims.tally([*found, *more]).endswith(
        "spread, 1 is reversed with one seed, 1 cannot be judged yet."
    )
