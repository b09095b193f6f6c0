"""Figures as elements of a page: colors that a page can replace, identifiers, tooltips."""

import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from gmlp_flax.analysis import drawing, filters
from gmlp_flax.analysis.charts import Panel, Scale, Series
from gmlp_flax.analysis.looks import looks, on_dark
from gmlp_flax.errors import RunError
from gmlp_flax.reports.web import inline_svg

GMLP, MIXER = looks(["gMLP", "Mixer"])
PANEL = Panel(
    "not in the figure",
    Scale("tokens"),
    Scale("perplexity", log=True),
    [
        Series("Mixer", MIXER, [1e6], [math.nan]),
        Series("gMLP", GMLP, [1e5, 1e6], [400.0, 60.0], [390.0, 50.0], [410.0, 70.0]),
        Series("points", MIXER, [1e6], [77.0], labels=["18 <co>"], joined=False),
    ],
    [("none", 300.0)],
)


def words(root):
    return {"".join(element.itertext()) for element in root.iter("text")}


def test_text_uses_the_font_of_the_page():
    root = ElementTree.fromstring(inline_svg.panel_svg(PANEL, "curves-1"))
    assert {"tokens", "perplexity", "gMLP", "none", "18 <co>"} <= words(root)
    for word in words(root):
        assert not word.startswith("not in")
    for element in root.iter():
        assert "font-family" not in element.get("style", "")
    assert root.get("aria-label") == "not in the figure"
    assert root.get("role") == "img"
    _, _, width, _ = map(float, root.get("viewBox").split())
    assert width == pytest.approx(72 * inline_svg.WIDTH)


def test_tooltips_show_the_numbers_of_each_point():
    root = ElementTree.fromstring(inline_svg.panel_svg(PANEL, "curves-1"))
    tips = [title.text for title in root.iter("title")]
    assert tips == [
        "gMLP: perplexity 400 (390 to 410); tokens 100 k",
        "gMLP: perplexity 60.0 (50.0 to 70.0); tokens 1 M",
        "points, 18 <co>: perplexity 77.0; tokens 1 M",
    ]
    for group in root.iter("g"):
        if group.find("title") is not None:
            assert group.find("use") is not None


def test_colors_are_variables_and_the_background_is_transparent():
    svg = inline_svg.panel_svg(PANEL, "curves-1")
    styles = inline_svg.dark_colours(svg)
    declared = dict(re.findall(r"--c-(\w{6}): (#\w{6});", styles))
    assert declared[GMLP.colour[1:]] == on_dark(GMLP.colour)
    fixed = re.sub(r"var\(--c-(\w{6}), #\1\)", "", svg)
    assert not re.findall(r"#[0-9a-f]{6};", fixed)
    assert set(re.findall(r"--c-(\w{6}),", svg)) == set(declared)
    assert "fill: var(--c-ffffff" not in svg


def identifiers(root) -> set[str]:
    """The identifiers of all elements."""
    found = {element.get("id") for element in root.iter()}
    return found - {None}


def test_identifiers_of_two_figures_differ():
    first = ElementTree.fromstring(inline_svg.panel_svg(PANEL, "a"))
    second = ElementTree.fromstring(inline_svg.panel_svg(PANEL, "b"))
    assert identifiers(first)
    assert not identifiers(first) & identifiers(second)
    for root in (first, second):
        known = identifiers(root)
        for element in root.iter():
            for value in (element.get("href", ""), element.get("clip-path", "")):
                _, has_reference, reference = value.partition("#")
                if has_reference:
                    assert reference.rstrip(")") in known


def test_marks_over_an_image_keep_their_color():
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((1, 4, 4)).astype(np.float32)
    figure = filters.draw_patch_filters(weights, (2, 2))
    svg = inline_svg.figure_svg(figure, "filters")
    root = ElementTree.fromstring(svg)
    groups = list(root.iter("g"))
    frames = [group for group in groups if group.get("id") == "filters-on-image"]
    assert len(frames) == 6
    for frame in frames:
        assert "stroke: #000000" in frame.find("path").get("style")
    spines = [group for group in groups if "patch" in group.get("id", "")]
    styles = [spine.find("path").get("style") for spine in spines]
    assert any("var(--c-444444" in style for style in styles)
    assert "layer 1" in words(root)


def test_failed_figure_is_one_line(monkeypatch):
    figure, _ = drawing.subplots(1, 1, 3, 1)

    def fail(renderer):
        raise ValueError("no font")

    monkeypatch.setattr(figure, "draw", fail)
    with pytest.raises(RunError, match=r"broken was not drawn \(no font\)"):
        inline_svg.figure_svg(figure, "broken")
