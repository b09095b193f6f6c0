"""Charts as figures: legends, axes, labels that do not cover each other."""

import itertools
import math

import numpy as np
import pytest

from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.looks import looks
from gmlp_flax.analysis.plotting import draw, draw_panel, points_gid

GMLP, MIXER, AMLP = looks(["gMLP", "Mixer", "aMLP"])


def chart(**options):
    """Two series with ranges, and a reference."""
    series = [
        Series("gmlp", GMLP, [1e5, 1e6], [400.0, 60.0], [390.0, 50.0], [410.0, 70.0]),
        Series("mixer", MIXER, [1e5, 1e6], [500.0, 61.0]),
    ]
    x = Scale("tokens", log=True)
    y = Scale("perplexity", log=True)
    panel = Panel("gmlp ends lowest", x, y, series, [("none", 300.0)])
    return Chart([panel], **options)


def names(axis):
    """The names in an axis' legend."""
    texts = axis.get_legend().get_texts()
    return [text.get_text() for text in texts]


def test_the_legend_is_right_of_the_axes_in_the_order_of_the_lines_ends():
    figure = draw(chart())
    [axis] = figure.axes
    assert names(axis) == ["none", "mixer", "gmlp"]
    figure.draw_without_rendering()
    legend = axis.get_legend().get_window_extent()
    assert axis.get_window_extent().x1 < legend.x0
    assert legend.x1 <= figure.bbox.width


def axis_of(*series, x=Scale("x")):
    """The axis of a chart of some series."""
    panel = Panel("", x, Scale("y"), list(series))
    figure = draw(Chart([panel]))
    [axis] = figure.axes
    return axis


def boxes_of_labels(axis) -> list:
    """The boxes of the texts on an axis, which it draws first."""
    axis.figure.draw_without_rendering()
    return [text.get_window_extent() for text in axis.texts]


def test_axes_have_plain_numbers_and_a_title():
    figure = draw(chart())
    assert figure.get_size_inches()[0] == 3.25  # a column
    [axis] = figure.axes
    low, high = axis.get_ylim()
    labels = []
    for tick in axis.get_yticklabels():
        _, value = tick.get_position()
        if low <= value <= high:
            labels.append(tick.get_text())
    assert labels == ["50", "100", "200", "500"]
    assert axis.get_title(loc="left") == "gmlp ends lowest"
    assert axis.get_xscale() == axis.get_yscale() == "log"


def test_a_title_is_not_broken_between_a_number_and_its_unit():
    title = "bert_rel ends lowest: perplexity 9.09 after 59 M tokens"
    panel = Panel(title, Scale("x"), Scale("y"), [])
    [axis] = draw(Chart([panel])).axes
    _, second_line = axis.get_title(loc="left").splitlines()
    assert second_line == "59\N{NO-BREAK SPACE}M tokens"


def test_three_panels_fill_a_page():
    figure = draw(Chart([*chart().panels] * 3))
    assert figure.get_size_inches()[0] == 6.75


def test_ranges_are_bars_and_fits_are_dashed():
    series = Series(
        "a",
        AMLP,
        x=[1, 2],
        y=[3, 4],
        low=[2, 3],
        high=[4, 6],
        labels=["18", "36"],
        joined=False,
        fit=[3.1, 3.9],
    )
    axis = axis_of(series)
    [bars] = axis.collections
    first, second = bars.get_segments()
    assert first.tolist() == [[1, 2], [1, 4]]
    assert second.tolist() == [[2, 3], [2, 6]]
    fit, points = axis.lines
    assert fit.get_ydata().tolist() == [3.1, 3.9]
    assert points.get_ydata().tolist() == [3, 4]
    labels = {text.get_text() for text in axis.texts}
    assert labels == {"18", "36"}
    assert names(axis) == ["a"]


def test_labels_of_points_do_not_cover_each_other():
    labels = ["first", "second", "third"]
    near = Series("a", GMLP, [1, 1.01, 1.02], [1, 1.01, 1], labels=labels, joined=False)
    axis = axis_of(near)
    boxes = boxes_of_labels(axis)
    assert len(boxes) == 3
    for first, second in itertools.combinations(boxes, 2):
        assert not first.overlaps(second)


def middle_of(box) -> np.ndarray:
    x = (box.x0 + box.x1) / 2
    y = (box.y0 + box.y1) / 2
    return np.array([x, y])


def distance(first, second) -> float:
    return float(np.linalg.norm(first - second))


def test_labels_are_nearest_to_their_own_point():
    """One of two near points is a little above the other."""
    upper = Series("a", GMLP, [66.0], [84.3], labels=["B7"])
    lower = Series("b", AMLP, [71.0], [83.6], labels=["F0"])
    far = Series("c", GMLP, [5.0, 300.0], [72.0, 76.0], labels=["low", "a long word"])
    logarithmic = Scale("x", log=True)
    axis = axis_of(upper, lower, far, x=logarithmic)
    middles = {}
    boxes = boxes_of_labels(axis)
    for text, box in zip(axis.texts, boxes, strict=True):
        label = text.get_text()
        middles[label] = middle_of(box)
        assert box.x1 <= axis.bbox.x1
    to_pixels = axis.transData.transform
    b7 = to_pixels((66.0, 84.3))
    f0 = to_pixels((71.0, 83.6))
    b7_distance = distance(middles["B7"], b7)
    assert b7_distance < distance(middles["B7"], f0)
    f0_distance = distance(middles["F0"], f0)
    assert f0_distance < distance(middles["F0"], b7)


def test_points_that_cannot_be_drawn_are_counted_below_the_figure():
    series = [
        Series("a", GMLP, [1, 2, 3], [1.0, math.inf, 0.0]),
        Series("b", MIXER, [1], [math.nan]),
    ]
    panel = Panel("", Scale("x"), Scale("y", log=True), series)
    logarithmic = Chart([panel])
    missing = logarithmic.missing()
    assert "2 of a's 3 points" in missing
    assert "1 of b's 1 points" in missing
    figure = draw(logarithmic)
    assert figure.get_supxlabel().replace("\n", " ") == missing
    [line] = figure.axes[0].lines
    assert line.get_xdata().tolist() == [1]


def test_an_axis_may_run_backwards():
    first = Series("a", GMLP, [10, 100], [1, 4])
    second = Series("b", MIXER, [10, 100], [2, 3])
    backwards = Scale("x", log=True, backwards=True)
    axis = axis_of(first, second, x=backwards)
    assert axis.xaxis_inverted()
    assert names(axis) == ["b", "a"]


def test_points_that_are_not_joined_have_no_line():
    joined = Series("a", MIXER, [1, 2], [3, 4])
    points = Series("b", GMLP, [1, 2], [4, 5], joined=False)
    _, dashed_look = looks(["gMLP", "gMLP"])
    dashed_points = Series("c", dashed_look, [1, 2], [6, 7], joined=False)
    axis = axis_of(joined, points, dashed_points)
    styles = [line.get_linestyle() for line in axis.lines]
    assert styles == ["-", "None", "None"]


def test_labels_avoid_lines():
    """The line rises to the right, so that both sides of the middle point are free."""
    labels = ["", "in the middle", ""]
    series = Series("a", GMLP, [1, 2, 3], [1, 2, 3], labels=labels)
    panel = Panel("", Scale("x"), Scale("y"), [series])
    figure = draw_panel(panel, 3.25)
    figure.draw_without_rendering()
    [axis] = figure.axes
    [text] = [text for text in axis.texts if text.get_text()]
    box = text.get_window_extent().padded(-3)
    for value in np.linspace(1, 3, 200):
        x, y = axis.transData.transform((value, value))
        assert not box.contains(x, y)


def test_a_single_panel_has_no_title_and_ids_of_its_points():
    series = [
        Series("nothing", MIXER, [1], [math.nan]),
        Series("a", GMLP, [1, 2], [3, 4], fit=[3, 4]),
        Series("b", AMLP, [1, 2], [4, 5]),
    ]
    panel = Panel("a title", Scale("x"), Scale("y"), series)
    figure = draw_panel(panel, 5)
    [axis] = figure.axes
    assert figure.get_figwidth() == 5
    assert axis.get_title(loc="left") == ""
    values = {}
    for line in axis.lines:
        if line.get_gid():
            gid = line.get_gid()
            values[gid] = list(line.get_ydata())
    expected = {points_gid(0): [3, 4], points_gid(1): [4, 5]}
    assert values == expected


@pytest.mark.parametrize("whole", [False, True])
def test_ticks_may_be_whole_numbers_only(whole):
    x = Scale("step", whole=whole)
    series = Series("a", GMLP, [1, 3], [1, 2])
    axis = axis_of(series, x=x)
    ticks = []
    for tick in axis.get_xticks():
        if 1 <= tick <= 3:
            ticks.append(tick)
    if whole:
        assert ticks == [1, 2, 3]
    else:
        assert ticks != [1, 2, 3]
