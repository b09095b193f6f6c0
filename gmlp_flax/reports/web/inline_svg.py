"""Figures as <svg> elements of a web page: without a background, with words as text, and with
colours that the page can replace on a dark screen.

A colour #rrggbb becomes `var(--c-rrggbb, #rrggbb)`. `dark_colours` defines these variables. Without
a definition, as on paper, a figure has the colours of its file.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

from gmlp_flax.analysis.charts import Panel, Series
from gmlp_flax.analysis.drawing import ON_IMAGE, POINTS, plain, style
from gmlp_flax.analysis.figure_files import drawing_errors
from gmlp_flax.analysis.looks import on_dark
from gmlp_flax.analysis.plotting import draw_panel, points_gid
from gmlp_flax.reports.table import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 3.8  # inches of a panel
PIXELS = 140  # of an inch on a page

WORDS_AS_TEXT: dict[Any, Any] = {"svg.fonttype": "none"}
VARIABLE = re.compile(r"var\(--c-([0-9a-f]{6}),")


def panel_svg(panel: Panel, name: str) -> str:
    """A panel without its title. The pointer shows the numbers of a point.

    Args:
        panel: what is drawn.
        name: different for all figures of a page.

    Raises:
        RunError: it cannot be drawn.
    """
    with drawing_errors(name), style():
        figure = draw_panel(panel, WIDTH)
        root = _svg(figure)
        for number, series in enumerate(panel.drawable()):
            gid = points_gid(number)
            tips = []
            for index in range(len(series.x)):
                tip = _tip(panel, series, index)
                tips.append(tip)
            _add_tips(root, gid, tips)
    return _element(root, name, panel.title)


def figure_svg(figure: Figure, name: str) -> str:
    """A figure. Arguments and errors are those of `panel_svg`."""
    with drawing_errors(name), style():
        root = _svg(figure)
    label = name.replace("_", " ")
    return _element(root, name, label)


def dark_colours(html: str) -> str:
    """CSS declarations of the variables in a page, with the colours for a dark screen."""
    declarations = []
    colours = set(VARIABLE.findall(html))
    for colour in sorted(colours):
        dark = on_dark(f"#{colour}")
        declarations.append(f"--c-{colour}: {dark};")
    return " ".join(declarations)


def _svg(figure: Figure) -> Element:
    """A figure as matplotlib writes it, without namespaces: those of HTML need none."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context(WORDS_AS_TEXT):
        figure.savefig(
            file,
            format="svg",
            transparent=True,
            metadata={"Date": None},
        )
    content = file.getvalue()
    root = ElementTree.fromstring(content)
    for element in root.iter():
        _drop_namespaces(element)
    return root


def _drop_namespaces(element: Element) -> None:
    """Gives an element and its attributes the names that they have in HTML."""
    _, _, element.tag = element.tag.rpartition("}")
    attributes = {}
    for key, value in element.items():
        _, _, name = key.rpartition("}")
        attributes[name] = value
    element.attrib = attributes


# What the pointer shows.


def _tip(
    panel: Panel,
    series: Series,
    index: int,
) -> str:
    """The text at a point: its name, x and y, and the range over seeds."""
    name = series.name
    if series.labels:
        name += f", {series.labels[index]}"
    x = plain(series.x[index])
    y = shown(float(series.y[index]))
    if series.low:
        low = shown(float(series.low[index]))
        high = shown(float(series.high[index]))
        y += f" ({low} to {high})"
    return f"{name}: {panel.y.label} {y}; {panel.x.label} {x}"


def _add_tips(
    root: Element,
    gid: str,
    tips: Iterable[str],
) -> None:
    """Puts each marker of a line into a group with a title, which browsers show at the pointer."""
    [points] = root.findall(f".//g[@id='{gid}']")
    [markers] = points.findall(".//use/..")
    drawn_markers = list(markers)  # which change places below
    for marker, tip in zip(drawn_markers, tips, strict=True):
        group = ElementTree.SubElement(markers, "g")
        title = ElementTree.SubElement(group, "title")
        title.text = tip
        group.append(marker)
        markers.remove(marker)


# What differs in a page.


def _element(
    root: Element,
    name: str,
    label: str,
) -> str:
    """The <svg> element of a page, which fills its container up to its own width."""
    _, _, width, height = root.attrib["viewBox"].split()
    pixels = round(float(width) * PIXELS / POINTS)
    root.attrib = {
        "viewBox": f"0 0 {width} {height}",
        "role": "img",
        "aria-label": label,
        "style": f"max-width: {pixels}px",
    }
    for parent in list(root.iter()):
        for child in list(parent):
            # These are for a file; a style would apply to the whole page.
            if child.tag in ("metadata", "style"):
                parent.remove(child)
    _rename(root, name)
    _use_variables(root)
    return ElementTree.tostring(root, encoding="unicode")


def _rename(root: Element, name: str) -> None:
    """Gives identifiers a prefix, as several figures of a page may have the same."""
    for element in root.iter():
        for key, value in element.items():
            is_reference = value.startswith("#")
            if key == "id":
                renamed = f"{name}-{value}"
            elif key == "href" and is_reference:
                renamed = f"#{name}-{value[1:]}"
            elif key == "clip-path":
                renamed = value.replace("#", f"#{name}-")
            else:
                continue
            element.set(key, renamed)


def _use_variables(element: Element) -> None:
    """Replaces the colours of an element by variables, except of what is drawn over an image."""
    identifier = element.get("id", "")
    if identifier.endswith(ON_IMAGE):
        return
    declarations = element.get("style", "")
    if declarations:
        declarations = re.sub(r"font-family: [^;]*;? ?", "", declarations)
        declarations = re.sub(r"#([0-9a-f]{6})", r"var(--c-\1, #\1)", declarations)
        element.set("style", declarations)
    for child in element:
        _use_variables(child)
