"""Charts as values: points that cannot be drawn, and all of them as CSV."""

import csv
import io
import math

from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.looks import looks

GMLP, MIXER = looks(["gMLP", "Mixer"])


def test_points_that_cannot_be_drawn():
    """Labels and ranges go with their points."""
    series = Series(
        "a",
        GMLP,
        [0.0, 1.0, 2.0, 3.0],
        [1.0, math.inf, -2.0, 4.0],
        low=[1.0, 1.0, -3.0, 3.0],
        labels=["p", "q", "r", "s"],
    )
    empty = Series("b", MIXER, [1.0], [math.nan])
    linear = Panel("", Scale("x"), Scale("y"), [series, empty])
    [kept] = linear.drawable()
    assert kept.x == [0, 2, 3]
    assert kept.y == [1, -2, 4]
    assert kept.labels == ["p", "r", "s"]
    [kept] = Panel("", Scale("x", log=True), Scale("y", log=True), [series, empty]).drawable()
    assert kept.x == [3]
    assert kept.y == [4]
    assert kept.low == [3]
    assert kept.labels == ["s"]
    assert kept.high == ()
    first, second = linear.missing()
    assert "1 of a's 4 points" in first
    assert "1 of b's 1 points" in second


def test_csv_has_all_points():
    series = [
        Series("gmlp", GMLP, [1e5, 1e6], [400.0, 60.0], [390.0, 50.0], [410.0, 70.0]),
        Series("mixer", MIXER, [1e5, 1e6], [500.0, 61.0]),
    ]
    one = Chart([Panel("", Scale("tokens", log=True), Scale("perplexity", log=True), series)])
    rows = list(csv.reader(io.StringIO(one.csv())))
    assert rows[0] == ["series", "label", "tokens", "perplexity", "lowest", "highest"]
    assert rows[1] == ["gmlp", "", "100000.0", "400.0", "390.0", "410.0"]
    assert rows[4][-2:] == [
        "",
        "",
    ]
    both = list(csv.reader(io.StringIO(Chart([*one.panels] * 2).csv())))
    assert both[0][:3] == ["panel", "series", "label"]
    assert len(both) == 9
    assert both[1][0] == "perplexity"
