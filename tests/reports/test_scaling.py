"""Power laws, and where a model's points stand in Figures 5, 7 and 8."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.analysis.drawing import FAMILIES
from gmlp_flax.paper import published
from gmlp_flax.reports import scaling
from gmlp_flax.reports.scaling import Point
from gmlp_flax.reports.table import Spread

SERIES = {
    "gMLP": [
        Point("gmlp_18", 50, Spread(6.0, (5.5, 6.5)), {"SST-2": Spread(90.0, (89.0, 91.0))}),
        Point("gmlp_36", 100, Spread(3.0, (3.0,)), {"SST-2": Spread(92.0, (92.0,))}),
    ],
    "aMLP": [Point("amlp_18", 60, Spread(5.0, (5.0,)), {})],
}


def test_a_panel_of_perplexities_and_one_of_each_score():
    chart, notes = scaling.scaling(SERIES)
    perplexities, accuracies = chart.panels
    gmlp, amlp = perplexities.series
    assert (gmlp.name, gmlp.x, gmlp.y, gmlp.labels) == ("gMLP", [50, 100], [6, 3], ["18", "36"])
    assert (gmlp.low, gmlp.high, gmlp.band, gmlp.joined) == ([5.5, 3], [6.5, 3], False, False)
    assert gmlp.fit == pytest.approx([6, 3]) and not amlp.fit
    assert (gmlp.look.colour, amlp.look.colour) == (FAMILIES["gMLP"], FAMILIES["aMLP"])
    assert perplexities.x.log and perplexities.y.log and perplexities.title.endswith("-1.00 (gMLP)")
    [scores] = accuracies.series
    assert (scores.x, scores.y, scores.low, scores.joined) == ([50, 100], [90, 92], [89, 92], True)
    assert accuracies.y.label == "SST-2 (%)" and accuracies.title == "SST-2: gmlp_36 is best, 92.0 %"
    law = "perplexity is proportional to parameters ** -1.000 (two points, no interval; R squared 1.000)"
    assert notes == [f"gMLP: {law}."]


def test_scores_over_perplexity_which_falls_to_the_right():
    [panel] = scaling.transfer(SERIES).panels
    assert panel.x.backwards and panel.series[0].x == [3, 6] and panel.series[0].y == [92, 90]


def test_lines_of_one_family_have_one_colour_in_two_shades():
    small, large = SERIES["gMLP"]
    more = {"gMLP": [small, large], "gMLP, more data": [small, large._replace(row="gmlp_36,data=2")]}
    [panel] = scaling.transfer(more).panels
    assert len({series.look for series in panel.series}) == 2


def test_a_single_point_is_no_figure():
    assert scaling.scaling({"aMLP": SERIES["aMLP"], "gMLP": []}) == (None, [])
    assert scaling.transfer({"gMLP": SERIES["gMLP"][:1]}) is None
    assert len(scaling.scaling({"aMLP": [*SERIES["aMLP"], SERIES["gMLP"][1]]})[0].panels) == 1


def test_the_papers_own_laws():
    [note] = scaling.papers_laws({"Transformer": ("transformer_6", "transformer_12"), "aMLP": ("amlp_18", "amlp_36")})
    assert note.startswith("Transformer in the paper: perplexity is proportional to parameters ** ")
    exponent = float(note.split(" ** ")[1].split()[0])
    # ln(4.26 / 4.91) / ln(110 / 67)
    assert exponent == pytest.approx(-0.286, abs=1e-3)


@given(
    st.floats(0.01, 2) | st.floats(-2, -0.01),
    st.floats(0.1, 100),
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
