"""Orderings and rank correlation."""

from __future__ import annotations

import math

import pytest

from gmlp_flax.reports import claims


@pytest.mark.parametrize(("better", "worse", "expected"), [
    ([1.0, 2.0], [2.5, 3.0], claims.HOLDS),
    ([2.5, 3.0], [1.0, 2.0], claims.REVERSED),
    ([1.0, 2.6], [2.5, 3.0], claims.OPEN),
    ([2.0], [2.0], claims.OPEN),
])
def test_verdict_needs_every_pair_of_seeds(better, worse, expected):
    assert claims.verdict(better, worse) == expected


def test_spearman():
    assert claims.spearman([10.0, 20.0, 30.0], [1.0, 2.0, 3.0]) == pytest.approx(1)
    assert claims.spearman([10.0, 20.0, 30.0, 40.0], [1.0, 2.0, 4.0, 3.0]) == pytest.approx(0.8)  # 1 - 6 * 2 / (4 * 15)
    assert math.isnan(claims.spearman([1.0], [1.0]))
    assert math.isnan(claims.spearman([1.0, 1.0], [1.0, 2.0]))


def test_an_ordering_emerges_when_it_stays():
    worse = [[(1, 9.0), (2, 6.0), (3, 5.0), (4, 4.0)]]
    better = [[(1, 8.0), (2, 7.0), (3, 4.0), (4, 3.0)], [(1, 8.0), (2, 7.0), (3, 5.0), (4, 3.0), (5, 1.0)]]
    assert claims.emerges(better, worse) == 3  # at 1 it held and was lost again; at 5 only one run was evaluated
    assert claims.emerges(worse, better) is None
    assert claims.emerges([[]], worse) is None
