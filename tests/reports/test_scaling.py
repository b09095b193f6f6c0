"""Power laws, and scores over parameters and over perplexity."""

import numpy as np
import pytest

from gmlp_flax.analysis.looks import FAMILIES
from gmlp_flax.reports import scaling
from gmlp_flax.reports.scaling import Point
from gmlp_flax.reports.table import Spread


def spread(*values: float) -> Spread:
    return Spread(sum(values) / len(values), values)


GMLP_18 = Point("gmlp_18", 50, spread(5.5, 6.5), {"SST-2": spread(89.0, 91.0)})
GMLP_36 = Point("gmlp_36", 100, spread(3.0), {"SST-2": spread(92.0)})
AMLP_18 = Point("amlp_18", 60, spread(5.0), {})
SERIES = {"gMLP": [GMLP_18, GMLP_36], "aMLP": [AMLP_18]}


def test_figure_has_a_panel_of_perplexity_and_of_each_score():
    chart, notes = scaling.scaling(SERIES)
    perplexities, accuracies = chart.panels
    gmlp, amlp = perplexities.series
    assert gmlp.name == "gMLP"
    assert gmlp.x == [50, 100]
    assert gmlp.y == [6, 3]
    assert gmlp.labels == ["18", "36"]
    assert gmlp.low == [5.5, 3]
    assert gmlp.high == [6.5, 3]
    assert not gmlp.joined
    assert gmlp.fit == pytest.approx([6, 3])
    assert not amlp.fit
    assert gmlp.look.colour == FAMILIES["gMLP"]
    assert amlp.look.colour == FAMILIES["aMLP"]
    assert perplexities.x.log
    assert perplexities.y.log
    assert perplexities.title == "Perplexity over parameters"
    [scores] = accuracies.series
    assert scores.x == [50, 100]
    assert scores.y == [90, 92]
    assert scores.low == [89, 92]
    assert scores.joined
    assert accuracies.y.label == "SST-2 (%)"
    assert accuracies.title == "SST-2: gmlp_36 is best, 92.0 %"
    law = "perplexity is proportional to parameters ** -1.000"
    assert notes == [f"gMLP: {law} (two points, no interval; R squared 1.000)."]


def test_perplexity_axis_falls_to_the_right():
    [panel] = scaling.transfer(SERIES).panels
    assert panel.x.backwards
    assert panel.series[0].x == [3, 6]
    assert panel.series[0].y == [92, 90]


def test_single_point_has_no_figure():
    assert scaling.scaling({"aMLP": [AMLP_18], "gMLP": []}) == (None, [])
    assert scaling.transfer({"gMLP": [GMLP_18]}) is None
    chart, _ = scaling.scaling({"aMLP": [AMLP_18, GMLP_36]})
    assert len(chart.panels) == 1


def test_power_law_against_its_formulas():
    """Least squares on logarithms, and Student's t with two degrees of freedom (4.3027)."""
    x = [59.0, 102.0, 187.0, 357.0]
    y = [5.25, 4.35, 3.79, 3.43]
    u = np.log(x)
    v = np.log(y)
    du = u - u.mean()
    dv = v - v.mean()
    square_u = np.sum(du**2)
    slope = np.sum(du * dv) / square_u
    residuals = dv - slope * du
    squares = np.sum(residuals**2)
    error = np.sqrt(squares / 2 / square_u)
    law = scaling.power_law(x, y)
    assert law.exponent == pytest.approx(slope)
    margin = 4.30265 * error
    assert law.low == pytest.approx(slope - margin, rel=1e-4)
    assert law.high == pytest.approx(slope + margin, rel=1e-4)
    expected = 1 - squares / np.sum(dv**2)
    assert law.r_squared == pytest.approx(expected)
