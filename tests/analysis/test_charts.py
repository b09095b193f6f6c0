"""Charts as values: points that cannot be drawn, and all of them as CSV."""

import csv
import io
import math

from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.looks import looks

GMLP, MIXER = looks(["gMLP", "Mixer"])


WITH_INFINITY = Series(
    "a",
    GMLP,
    [0.0, 1.0, 2.0, 3.0],
    [1.0, math.inf, -2.0, 4.0],
    low=[1.0, 1.0, -3.0, 3.0],
    labels=["p", "q", "r", "s"],
)
WITHOUT_NUMBERS = Series("b", MIXER, [1.0], [math.nan])


def panel(log):
    """Both series on linear or on logarithmic axes."""
    series = [WITH_INFINITY, WITHOUT_NUMBERS]
    return Panel("", Scale("x", log=log), Scale("y", log=log), series)


def test_linear_axes_draw_finite_points_with_their_labels():
    [drawable] = panel(log=False).drawable()
    assert drawable.x == [0, 2, 3]
    assert drawable.y == [1, -2, 4]
    assert drawable.labels == ["p", "r", "s"]


def test_logarithmic_axes_draw_positive_points_with_their_ranges():
    [drawable] = panel(log=True).drawable()
    assert drawable.x == [3]
    assert drawable.y == [4]
    assert drawable.low == [3]
    assert drawable.labels == ["s"]
    assert drawable.high == ()


def test_missing_points_are_counted():
    first, second = panel(log=False).missing()
    assert "1 of a's 4 points" in first
    assert "1 of b's 1 points" in second


def rows_of(chart):
    """The rows of a chart as CSV."""
    return list(csv.reader(io.StringIO(chart.csv())))


def curves():
    """A panel of two series, one with ranges."""
    series = [
        Series("gmlp", GMLP, [1e5, 1e6], [400.0, 60.0], [390.0, 50.0], [410.0, 70.0]),
        Series("mixer", MIXER, [1e5, 1e6], [500.0, 61.0]),
    ]
    return Panel("", Scale("tokens", log=True), Scale("perplexity", log=True), series)


def test_csv_has_a_row_for_each_point():
    titles, *rows = rows_of(Chart([curves()]))
    assert titles == ["series", "label", "tokens", "perplexity", "lowest", "highest"]
    assert len(rows) == 4
    assert rows[0] == ["gmlp", "", "100000.0", "400.0", "390.0", "410.0"]
    assert rows[3][-2:] == ["", ""]


def test_csv_of_several_panels_names_them():
    titles, *rows = rows_of(Chart([curves(), curves()]))
    assert titles[:3] == ["panel", "series", "label"]
    assert len(rows) == 8
    assert rows[0][0] == "perplexity"
