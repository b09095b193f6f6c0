"""Orderings, rank correlation and power laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.analysis import claims
from gmlp_flax.models import sizes


@pytest.mark.parametrize(("better", "worse", "said"), [
    ([1.0, 2.0], [2.5, 3.0], claims.HOLDS),
    ([2.5, 3.0], [1.0, 2.0], claims.REVERSED),
    ([1.0, 2.6], [2.5, 3.0], claims.OPEN),
    ([2.0], [2.0], claims.OPEN),
])
def test_verdict_needs_every_pair_of_seeds(better, worse, said):
    assert claims.verdict(better, worse) == said


def test_spearman():
    assert claims.spearman([10.0, 20.0, 30.0], [1.0, 2.0, 3.0]) == pytest.approx(1)
    assert claims.spearman([10.0, 20.0, 30.0, 40.0], [1.0, 2.0, 4.0, 3.0]) == pytest.approx(0.8)  # 1 - 6 * 2 / (4 * 15)
    assert math.isnan(claims.spearman([1.0], [1.0]))
    assert math.isnan(claims.spearman([1.0, 1.0], [1.0, 2.0]))


def test_an_ordering_emerges_where_it_stays():
    worse = [[(1, 9.0), (2, 6.0), (3, 5.0), (4, 4.0)]]
    better = [[(1, 8.0), (2, 7.0), (3, 4.0), (4, 3.0)], [(1, 8.0), (2, 7.0), (3, 5.0), (4, 3.0), (5, 1.0)]]
    assert claims.emerges(better, worse) == 3  # at 1 it held and was lost again; at 5 only one run was evaluated
    assert claims.emerges(worse, better) is None
    assert claims.emerges([[]], worse) is None


@given(
    st.floats(0.01, 2) | st.floats(-2, -0.01), st.floats(0.1, 100),
    st.lists(st.floats(0.1, 1000), min_size=3, max_size=6, unique_by=lambda x: round(math.log(x), 1)),
)
def test_power_law_of_exact_points(exponent, scale, x):
    law = claims.power_law(x, [scale * each**exponent for each in x])
    assert law.exponent == pytest.approx(exponent, abs=1e-6)
    assert law(x[0]) == pytest.approx(scale * x[0] ** exponent, rel=1e-6)
    assert law.low - 1e-9 <= law.exponent <= law.high + 1e-9


def test_power_law_against_its_formulas():
    """Least squares on logarithms, and Student's t with two degrees of freedom (4.3027)."""
    x, y = [59.0, 102.0, 187.0, 357.0], [5.25, 4.35, 3.79, 3.43]
    u, v = np.log(x), np.log(y)
    slope = np.sum((u - u.mean()) * (v - v.mean())) / np.sum((u - u.mean()) ** 2)
    residuals = v - v.mean() - slope * (u - u.mean())
    error = np.sqrt(np.sum(residuals**2) / 2 / np.sum((u - u.mean()) ** 2))
    law = claims.power_law(x, y)
    assert law.exponent == pytest.approx(slope)
    assert (law.low, law.high) == pytest.approx((slope - 4.30265 * error, slope + 4.30265 * error), rel=1e-4)
    assert law.r_squared == pytest.approx(1 - np.sum(residuals**2) / np.sum((v - v.mean()) ** 2))


def test_two_points_have_no_interval():
    law = claims.power_law([1.0, 2.0], [4.0, 2.0])
    assert law.exponent == pytest.approx(-1)
    assert (law.low, law.high) == (-math.inf, math.inf)


def test_the_papers_scaling_is_near_a_power_law():
    """What the paper says of its Figure 5."""
    models = [sizes.PUBLISHED[name] for name in ("transformer_6", "transformer_12", "transformer_24", "transformer_48")]
    law = claims.power_law([model.params_m for model in models], [model.perplexity for model in models])
    assert law.exponent == pytest.approx(-0.2, abs=0.02)
    assert law.r_squared > 0.98
