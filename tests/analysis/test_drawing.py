"""Figures: in order, the same file each time, with points that tell their values."""

import xml.etree.ElementTree as ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_flax.analysis import drawing

TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_categories=["C"]), max_size=20)


def test_subplots_are_in_row_major_order():
    figure, axes = drawing.subplots(2, 3, 1.5, 1.0)
    assert tuple(figure.get_size_inches()) == (4.5, 2.0)
    places = [axis.get_subplotspec().get_geometry() for axis in axes]
    assert places == [(2, 3, place, place) for place in range(6)]


def test_a_figure_is_saved_in_the_runs_folder(tmp_path):
    figure, _ = drawing.subplots(1, 1, 1, 1)
    path = drawing.save(figure, str(tmp_path), "x.png")
    assert path == str(tmp_path / "figures" / "x.png")
    assert (tmp_path / "figures" / "x.png").read_bytes().startswith(b"\x89PNG")


def points(tips: list[str]) -> str:
    figure, (axis,) = drawing.subplots(1, 1, 2, 2)
    drawing.points_with_tips(axis, range(len(tips)), range(len(tips)), tips, color="black")
    return drawing.svg(figure)


@settings(deadline=None, max_examples=20)
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_each_point_tells_its_tip_whatever_is_in_it(tips):
    svg = points(tips)
    titles = [title.text or "" for title in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")]
    assert titles == tips
    assert points(tips) == svg
