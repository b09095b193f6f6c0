"""The style of figures: colours that differ for every reader, plain numbers, labels that do not overlap, files."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.analysis import drawing

# Machado, Oliveira and Fernandes (2009), severity 1: what readers see who lack one kind of cone, of linear RGB.
VISION = {
    "usual": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour):
    channels = np.frombuffer(bytes.fromhex(colour[1:]), np.uint8) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIE L*a*b* of linear RGB, where distances are about as people see them; 2.3 is just noticed."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
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
        assert drawing.save(figure, str(tmp_path / run), "x") == f"{tmp_path}/{run}/figures/x.png"
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
    values = {"50": 50, "2000": 2000, "0.002": 0.002, "-0.25": -0.25, "500 k": 500_000, "1.84 M": 1_843_200}
    assert [drawing.plain(value) for value in [*values.values(), 0, 2.5e9]] == [*values, "0", "2.5 B"]


@given(st.floats(1e-3, 1e6), st.floats(1.01, 1e6))
def test_there_are_always_some_ticks(low, factor):
    assert 1 <= len(shown(low, low * factor)) <= 9
