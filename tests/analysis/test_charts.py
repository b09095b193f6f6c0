"""Charts: what they hold, and what matplotlib draws of it."""

import csv
import io
import itertools
import math

from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series, draw
from gmlp_flax.analysis.drawing import looks

GMLP, MIXER, AMLP = looks(["gMLP", "Mixer", "aMLP"])


def chart(**options):
    """Two series with ranges, and a reference."""
    series = [
        Series("gmlp", GMLP, [1e5, 1e6], [400.0, 60.0], [390.0, 50.0], [410.0, 70.0]),
        Series("mixer", MIXER, [1e5, 1e6], [500.0, 61.0]),
    ]
    x, y = Scale("tokens", log=True), Scale("perplexity", log=True)
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
    assert axis.get_window_extent().x1 < box.x0 and box.x1 <= figure.bbox.width


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
    panel = Panel("bert_rel ends lowest: perplexity 9.09 after 59 M tokens", Scale("x"), Scale("y"), [])
    [axis] = draw(Chart([panel])).axes
    assert axis.get_title(loc="left").splitlines()[1] == "59\N{NO-BREAK SPACE}M tokens"


def test_ranges_are_bars_and_fits_are_dashed():
    shape = {"labels": ["18", "36"], "joined": False, "fit": [3.1, 3.9]}
    series = Series("a", AMLP, [1, 2], [3, 4], [2, 3], [4, 6], **shape)
    [axis] = draw(Chart([Panel("", Scale("x"), Scale("y"), [series])])).axes
    [bars] = axis.collections
    assert [segment.tolist() for segment in bars.get_segments()] == [[[1, 2], [1, 4]], [[2, 3], [2, 6]]]
    assert [line.get_ydata().tolist() for line in axis.lines] == [[3.1, 3.9], [3, 4]]
    assert {"18", "36"} == {text.get_text() for text in axis.texts} and names(axis) == ["a"]


def test_words_at_points_do_not_cover_each_other():
    series = Series("a", GMLP, [1, 1.01, 1.02], [1, 1.01, 1], labels=["first", "second", "third"], joined=False)
    figure = draw(Chart([Panel("", Scale("x"), Scale("y"), [series])]))
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_what_cannot_be_drawn_is_said():
    series = [Series("a", GMLP, [1, 2, 3], [1.0, math.inf, 0.0]), Series("b", MIXER, [1], [math.nan])]
    shown = Chart([Panel("", Scale("x"), Scale("y", log=True), series)])
    assert "2 of a's 3 points" in shown.missing() and "1 of b's 1 points" in shown.missing()
    figure = draw(shown)
    assert figure.get_supxlabel().replace("\n", " ") == shown.missing()
    assert [line.get_xdata().tolist() for line in figure.axes[0].lines] == [[1]]


def test_backwards():
    series = [Series("a", GMLP, [10, 100], [1, 4]), Series("b", MIXER, [10, 100], [2, 3])]
    [axis] = draw(Chart([Panel("", Scale("x", log=True, backwards=True), Scale("y"), series)])).axes
    assert axis.xaxis_inverted() and names(axis) == ["b", "a"]


def test_csv_has_all_points():
    one = chart()
    rows = list(csv.reader(io.StringIO(one.csv())))
    assert rows[0] == ["series", "label", "tokens", "perplexity", "lowest", "highest"]
    assert rows[1] == ["gmlp", "", "100000.0", "400.0", "390.0", "410.0"] and rows[4][-2:] == ["", ""]
    both = list(csv.reader(io.StringIO(Chart([*one.panels] * 2).csv())))
    assert both[0][:3] == ["panel", "series", "label"] and len(both) == 9 and both[1][0] == "perplexity"
