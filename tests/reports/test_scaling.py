"""Power laws, and where a model's points stand in Figures 5, 7 and 8."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.paper import published
from gmlp_flax.reports import scaling
from gmlp_flax.reports.scaling import Point

SERIES = {
    "gMLP": [Point("gmlp_18", 50, 6.0, {"SST-2": 90.0}), Point("gmlp_36", 100, 3.0, {"SST-2": 92.0})],
    "aMLP": [Point("amlp_18", 60, 5.0, {})],
}


def points(axis):
    """The points of an axis that tell their values, by what they tell."""
    marks = (line for line in axis.lines if (line.get_gid() or "").startswith("tip:"))
    return {line.get_gid()[4:]: (line.get_xdata()[0], line.get_ydata()[0]) for line in marks}


def test_a_panel_of_perplexities_and_one_of_each_score():
    figure, notes = scaling.draw_scaling(SERIES)
    perplexities, accuracies = figure.axes
    assert points(perplexities) == {
        "gmlp_18: 6 with 50 M parameters": (50, 6), "gmlp_36: 3 with 100 M parameters": (100, 3),
        "amlp_18: 5 with 60 M parameters": (60, 5),
    }
    assert points(accuracies) == {"gmlp_18: 90 %": (50, 90), "gmlp_36: 92 %": (100, 92)}
    assert accuracies.get_xscale() == "log" and accuracies.get_ylabel() == "SST-2 (%)"
    law = "perplexity is proportional to parameters ** -1.000 (two points, no interval; R squared 1.000)"
    assert notes == [f"gMLP: {law}."]


def test_scores_over_negative_perplexity():
    figure = scaling.draw_transfer(SERIES)
    (axis,) = figure.axes
    assert points(axis) == {"gmlp_18: 90 %": (-6, 90), "gmlp_36: 92 %": (-3, 92)}
    line = next(line for line in axis.lines if not line.get_gid())
    assert list(line.get_xdata()) == sorted(line.get_xdata())


def test_without_scores_there_is_no_figure_of_them():
    bare = {"aMLP": SERIES["aMLP"]}
    assert scaling.draw_transfer(bare) is None and len(scaling.draw_scaling(bare)[0].axes) == 1


def test_the_papers_own_laws():
    [note] = scaling.papers_laws({"Transformer": ("transformer_6", "transformer_12"), "aMLP": ("amlp_18", "amlp_36")})
    assert note.startswith("Transformer in the paper: perplexity is proportional to parameters ** ")
    exponent = float(note.split(" ** ")[1].split()[0])
    # ln(4.26 / 4.91) / ln(110 / 67)
    assert exponent == pytest.approx(-0.286, abs=1e-3)


@given(
    st.floats(0.01, 2) | st.floats(-2, -0.01), st.floats(0.1, 100),
    st.lists(st.floats(0.1, 1000), min_size=3, max_size=6, unique_by=lambda x: round(math.log(x), 1)),
)
def test_power_law_of_exact_points(exponent, scale, x):
    law = scaling.power_law(x, [scale * each**exponent for each in x])
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
    law = scaling.power_law(x, y)
    assert law.exponent == pytest.approx(slope)
    assert (law.low, law.high) == pytest.approx((slope - 4.30265 * error, slope + 4.30265 * error), rel=1e-4)
    assert law.r_squared == pytest.approx(1 - np.sum(residuals**2) / np.sum((v - v.mean()) ** 2))


def test_two_points_have_no_interval():
    law = scaling.power_law([1.0, 2.0], [4.0, 2.0])
    assert law.exponent == pytest.approx(-1)
    assert (law.low, law.high) == (-math.inf, math.inf)


def test_the_papers_scaling_is_near_a_power_law():
    """What the paper says of its Figure 5."""
    models = [published.PUBLISHED[f"transformer_{layers}"] for layers in (6, 12, 24, 48)]
    law = scaling.power_law([model.params_m for model in models], [model.perplexity for model in models])
    assert law.exponent == pytest.approx(-0.2, abs=0.02)
    assert law.r_squared > 0.98
