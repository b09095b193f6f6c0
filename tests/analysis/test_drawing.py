"""The style of figures: colours that differ for every reader, plain numbers, labels that do not
overlap, files."""

import csv
import io
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.drawing import Chart, Panel, Scale, Series, draw, looks

# Machado, Oliveira and Fernandes (2009), severity 1: what readers see who lack one kind of cone, of
# linear RGB.
VISION = {
    "usual": np.eye(3),
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(colour):
    channels = np.frombuffer(bytes.fromhex(colour[1:]), np.uint8) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIE L*a*b* of linear RGB, where distances are about as people see them; 2.3 is just
    noticed."""
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
def test_families_can_be_told_apart_by_every_reader(vision):
    colours = {
        name: lab(np.array(VISION[vision]) @ linear(colour))
        for name, colour in (drawing.FAMILIES | {"none": drawing.GREY}).items()
    }
    for one, other in itertools.combinations(colours, 2):
        assert np.linalg.norm(colours[one] - colours[other]) > 15, (one, other)


def test_series_of_a_family_have_its_colour_in_shades_and_markers_of_their_own():
    found = drawing.looks(["gMLP", "Mixer", "gMLP", "gMLP", "custom"])
    assert len(set(found)) == 5
    assert found[1].colour == drawing.FAMILIES["Mixer"] and found[4].colour == drawing.GREY
    lightness = [lab(linear(found[place].colour))[0] for place in (0, 2, 3)]
    assert lightness == sorted(lightness, reverse=True)
    assert len({found[place].marker for place in (0, 2, 3)}) == 3
    assert lab(linear(found[0].text))[0] < lightness[0]


def test_a_figure_is_saved_three_times_and_the_same_each_time(tmp_path):
    for run in "ab":
        figure, (axis,) = drawing.subplots(1, 1, 3.25, 1)
        axis.plot([1, 2])
        assert drawing.save({"x": figure}, str(tmp_path / run)) == [
            f"{tmp_path}/{run}/figures/x.png"
        ]
    files = {path.name: path.read_bytes() for path in (tmp_path / "a" / "figures").iterdir()}
    assert {name: (tmp_path / "b" / "figures" / name).read_bytes() for name in files} == files
    assert set(files) == {"x.png", "x.svg", "x.pdf"}
    assert files["x.pdf"].startswith(b"%PDF") and b"<svg" in files["x.svg"]
    assert files["x.png"][16:20] == (650).to_bytes(4, "big")  # 3.25 inches at 200 dots


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (40, 600, ["50", "100", "200", "500"]),
        (55.5, 62.5, ["56", "57", "58", "59", "60", "61", "62"]),
        (1, 2e6, ["1", "10", "100", "1000", "10 k", "100 k", "1 M"]),
    ],
)
def test_ticks_of_logarithmic_axes(low, high, words):
    assert shown(low, high) == words


def shown(low: float, high: float) -> list[str]:
    """The labels of a logarithmic axis."""
    _, (axis,) = drawing.subplots(1, 1, 3.25, 2.4)
    axis.set(yscale="log", ylim=(low, high))
    drawing.plain_axis(axis.yaxis, log=True)
    return [drawing.plain(tick) for tick in axis.get_yticks() if low <= tick <= high]


def test_plain_numbers():
    values = {
        "50": 50,
        "2000": 2000,
        "0.002": 0.002,
        "-0.25": -0.25,
        "500 k": 500_000,
        "1.84 M": 1_843_200,
    }
    assert [drawing.plain(value) for value in [*values.values(), 0, 2.5e9]] == [
        *values,
        "0",
        "2.5 B",
    ]


@given(st.floats(1e-3, 1e6), st.floats(1.01, 1e6))
def test_there_are_always_some_ticks(low, factor):
    assert 1 <= len(shown(low, low * factor)) <= 9


# Charts.

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
    assert {"18", "36"} == {text.get_text() for text in axis.texts} and names(axis) == ["a"]


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
    one, other = (
        Series("a", GMLP, [66.0], [84.3], labels=["B7"]),
        Series("b", AMLP, [71.0], [83.6], labels=["F0"]),
    )
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
    assert rows[1] == ["gmlp", "", "100000.0", "400.0", "390.0", "410.0"] and rows[4][-2:] == [
        "",
        "",
    ]
    both = list(csv.reader(io.StringIO(Chart([*one.panels] * 2).csv())))
    assert (
        both[0][:3] == ["panel", "series", "label"]
        and len(both) == 9
        and both[1][0] == "perplexity"
    )
