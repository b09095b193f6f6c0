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
    return Chart([Panel("gmlp ends lowest", x, y, series, [("none", 300.0)])], **options)


def names(axis):
    """The names in an axis' legend."""
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_names_stand_beside_the_axes_in_the_order_of_the_lines_ends():
    figure = draw(chart())
    [axis] = figure.axes
    assert names(axis) == ["none", "mixer", "gmlp"]
    figure.draw_without_rendering()
    box = axis.get_legend().get_window_extent()
    assert axis.get_window_extent().x1 < box.x0
    assert box.x1 <= figure.bbox.width


def test_axes_have_plain_numbers_and_a_title():
    assert draw(Chart([*chart().panels] * 3)).get_size_inches()[0] == 6.75  # a page
    figure = draw(chart())
    assert figure.get_size_inches()[0] == 3.25  # a column
    [axis] = figure.axes
    low, high = axis.get_ylim()
    ticks = [tick for tick in axis.get_yticklabels() if low <= tick.get_position()[1] <= high]
    assert [tick.get_text() for tick in ticks] == ["50", "100", "200", "500"]
    assert axis.get_title(loc="left") == "gmlp ends lowest"
    assert axis.get_xscale() == axis.get_yscale() == "log"


def test_a_title_is_not_broken_between_a_number_and_its_unit():
    panel = Panel(
        "bert_rel ends lowest: perplexity 9.09 after 59 M tokens", Scale("x"), Scale("y"), []
    )
    [axis] = draw(Chart([panel])).axes
    assert axis.get_title(loc="left").splitlines()[1] == "59\N{NO-BREAK SPACE}M tokens"


def test_ranges_are_bars_and_fits_are_dashed():
    shape = {"labels": ["18", "36"], "joined": False, "fit": [3.1, 3.9]}
    series = Series("a", AMLP, [1, 2], [3, 4], [2, 3], [4, 6], **shape)
    [axis] = draw(Chart([Panel("", Scale("x"), Scale("y"), [series])])).axes
    [bars] = axis.collections
    assert [segment.tolist() for segment in bars.get_segments()] == [
        [[1, 2], [1, 4]],
        [[2, 3], [2, 6]],
    ]
    assert [line.get_ydata().tolist() for line in axis.lines] == [[3.1, 3.9], [3, 4]]
    assert {"18", "36"} == {text.get_text() for text in axis.texts}
    assert names(axis) == ["a"]


def test_words_at_points_do_not_cover_each_other():
    series = Series(
        "a", GMLP, [1, 1.01, 1.02], [1, 1.01, 1], labels=["first", "second", "third"], joined=False
    )
    figure = draw(Chart([Panel("", Scale("x"), Scale("y"), [series])]))
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_words_stand_at_their_own_point():
    """Of two points, one a little above the other: each word is nearer to its own than to the
    other's."""
    one = Series("a", GMLP, [66.0], [84.3], labels=["B7"])
    other = Series("b", AMLP, [71.0], [83.6], labels=["F0"])
    far = Series("c", GMLP, [5.0, 300.0], [72.0, 76.0], labels=["low", "a long word"])
    figure = draw(Chart([Panel("", Scale("x", log=True), Scale("y"), [one, other, far])]))
    figure.draw_without_rendering()
    [axis] = figure.axes
    points = dict(
        zip(("B7", "F0"), axis.transData.transform([(66.0, 84.3), (71.0, 83.6)]), strict=True)
    )
    for text in axis.texts:
        box = text.get_window_extent()
        middle = np.array([(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2])
        if text.get_text() in points:
            assert (
                min(points, key=lambda name: np.hypot(*(points[name] - middle))) == text.get_text()
            )
        assert box.x1 <= axis.bbox.x1


def test_what_cannot_be_drawn_is_said():
    series = [
        Series("a", GMLP, [1, 2, 3], [1.0, math.inf, 0.0]),
        Series("b", MIXER, [1], [math.nan]),
    ]
    shown = Chart([Panel("", Scale("x"), Scale("y", log=True), series)])
    assert "2 of a's 3 points" in shown.missing()
    assert "1 of b's 1 points" in shown.missing()
    figure = draw(shown)
    assert figure.get_supxlabel().replace("\n", " ") == shown.missing()
    assert [line.get_xdata().tolist() for line in figure.axes[0].lines] == [[1]]


def test_backwards():
    series = [Series("a", GMLP, [10, 100], [1, 4]), Series("b", MIXER, [10, 100], [2, 3])]
    [axis] = draw(Chart([Panel("", Scale("x", log=True, backwards=True), Scale("y"), series)])).axes
    assert axis.xaxis_inverted()
    assert names(axis) == ["b", "a"]


def test_points_that_are_not_joined_have_no_line():
    joined = Series("a", MIXER, [1, 2], [3, 4])
    apart = Series("b", GMLP, [1, 2], [4, 5], joined=False)
    dashed = Series("c", looks(["gMLP"] * 2)[1], [1, 2], [6, 7], joined=False)
    [axis] = draw(Chart([Panel("", Scale("x"), Scale("y"), [joined, apart, dashed])])).axes
    assert [line.get_linestyle() for line in axis.lines] == ["-", "None", "None"]


def test_words_avoid_lines():
    """Of a line that rises to the right, both sides of the middle point are free."""
    labels = ["", "in the middle", ""]
    series = Series("a", GMLP, [1, 2, 3], [1, 2, 3], labels=labels)
    figure = draw_panel(Panel("", Scale("x"), Scale("y"), [series]), 3.25)
    figure.draw_without_rendering()
    [axis] = figure.axes
    [box] = [text.get_window_extent().padded(-3) for text in axis.texts if text.get_text()]
    for share in np.linspace(0, 1, 200):
        x, y = axis.transData.transform((1 + 2 * share, 1 + 2 * share))
        assert not box.contains(x, y)


def test_a_panel_alone_has_no_title_and_names_its_points():
    panel = Panel(
        "seen above",
        Scale("x"),
        Scale("y"),
        [
            Series("nothing", MIXER, [1], [math.nan]),
            Series("a", GMLP, [1, 2], [3, 4], fit=[3, 4]),
            Series("b", AMLP, [1, 2], [4, 5]),
        ],
    )
    figure = draw_panel(panel, 5)
    [axis] = figure.axes
    assert (figure.get_figwidth(), axis.get_title(loc="left")) == (5, "")
    named = {line.get_gid(): list(line.get_ydata()) for line in axis.lines if line.get_gid()}
    assert named == {points_gid(0): [3, 4], points_gid(1): [4, 5]}


@pytest.mark.parametrize("whole", [False, True])
def test_whole_numbers(whole):
    x = Scale("step", whole=whole)
    [axis] = draw(Chart([Panel("", x, Scale("y"), [Series("a", GMLP, [1, 3], [1, 2])])])).axes
    ticks = [tick for tick in axis.get_xticks() if 1 <= tick <= 3]
    assert (ticks == [1, 2, 3]) == whole
