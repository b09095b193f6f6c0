"""Draws charts with matplotlib. The names of series are next to the axes, in the order in which
their lines end."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any

from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.drawing import COLUMN, PAGE, POINTS, plain_axis, style, subplots
from gmlp_flax.analysis.labels import label_points
from gmlp_flax.analysis.looks import GREY, WHITE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

MOST_COLUMNS = 2  # of panels
LEAST_HEIGHT = 2.4  # inches of a panel
BESIDE_LEGEND = 1.0  # inches: the title and the axis' label, above and below a legend
LEGEND_LINE = 9.5  # points from one line of a legend to the next
LABEL_MARGIN = 0.1  # share of the axes that is free around the outermost labelled points
TITLE_LETTERS = 14  # in an inch of a title
NOTE_LETTERS = 1.6 * TITLE_LETTERS
DOTTED = (1.5, 1.5)
DASHED = (3, 2)


@style()
def draw(chart: Chart) -> Figure:
    """Draws a chart as wide as one column of a paper, or as both if it has several panels."""
    count = len(chart.panels)
    columns = min(MOST_COLUMNS, count)
    width = COLUMN if columns == 1 else PAGE
    height = max(_height(panel) for panel in chart.panels)
    figure, axes = subplots(count, columns, width, height)
    for axis, panel in zip(axes, chart.panels, strict=True):
        _draw_axes(axis, panel)
        title = _wrapped(panel.title, width / columns)
        axis.set_title(title, x=0)
    missing = chart.missing()
    if missing:
        note = textwrap.fill(missing, round(NOTE_LETTERS * width))
        figure.supxlabel(note, fontsize=6, color=GREY)
    figure.draw_without_rendering()  # labels need to know where the points are
    for axis, panel in zip(axes, chart.panels, strict=True):
        label_points(axis, panel.drawable())
    return figure


@style()
def draw_panel(panel: Panel, width: float) -> Figure:
    """Draws a panel without its title, with a width in inches.

    The points of series `number` of `panel.drawable()` have the gid `points_gid(number)`.
    """
    height = _height(panel)
    figure, [axis] = subplots(1, 1, width, height)
    lines = _draw_axes(axis, panel)
    for number, line in enumerate(lines):
        gid = points_gid(number)
        line.set_gid(gid)
    figure.draw_without_rendering()
    label_points(axis, panel.drawable())
    return figure


def points_gid(number: int) -> str:
    """The gid of the points of a series."""
    return f"points-{number}"


def _height(panel: Panel) -> float:
    """Inches of a panel: its legend has a line for each series and each reference."""
    names = len(panel.series) + len(panel.references)
    legend = names * LEGEND_LINE / POINTS
    return max(LEAST_HEIGHT, BESIDE_LEGEND + legend)


def _wrapped(title: str, width: float) -> str:
    """A title in lines with a width in inches. A number and its unit stay together."""
    title = re.sub(r"(\d) ([kMB])\b", "\\1\N{NO-BREAK SPACE}\\2", title)
    letters = round(TITLE_LETTERS * width)
    return textwrap.fill(title, letters)


def _draw_axes(axis: Axes, panel: Panel) -> list[Line2D]:
    """Draws a panel without its title and the labels of its points; returns the points of each
    series."""
    points = []
    legend = []  # (y where the line ends, line)
    for series in panel.drawable():
        line = _draw_series(axis, series)
        points.append(line)
        end = _last_y(series, panel.x)
        legend.append((end, line))
    for name, y in panel.references:
        line = axis.axhline(
            y,
            color=GREY,
            linewidth=0.8,
            dashes=DOTTED,
            label=name,
        )
        legend.append((y, line))
    legend.sort(key=lambda entry: entry[0], reverse=not panel.y.backwards)
    if legend:
        lines = [line for _, line in legend]
        axis.legend(
            handles=lines,
            loc="upper left",
            bbox_to_anchor=(1.02, 1),
            borderaxespad=0,
        )
    if any(series.labels for series in panel.series):
        axis.margins(LABEL_MARGIN)
    axis.set(xlabel=panel.x.label, ylabel=panel.y.label)
    axis.set_xscale("log" if panel.x.log else "linear")
    axis.set_yscale("log" if panel.y.log else "linear")
    _set_scale(axis.xaxis, panel.x)
    _set_scale(axis.yaxis, panel.y)
    return points


def _last_y(series: Series, x: Scale) -> float:
    """The y of a series' rightmost point."""
    points = zip(series.x, series.y, strict=True)
    last = min if x.backwards else max
    _, y = last(points)
    return y


def _set_scale(axis: Axis, scale: Scale) -> None:
    """Gives an axis plain numbers and its direction."""
    plain_axis(axis, scale.log, scale.whole)
    axis.set_inverted(scale.backwards)


def _draw_series(axis: Axes, series: Series) -> Line2D:
    """Draws the ranges, the fitted curve and the points of a series; returns the points."""
    look = series.look
    if series.low:
        axis.vlines(
            series.x,
            series.low,
            series.high,
            color=look.colour,
            linewidth=0.8,
            alpha=0.8,
        )
    if series.fit:
        axis.plot(
            series.x,
            series.fit,
            color=look.colour,
            linewidth=0.8,
            dashes=DASHED,
        )
    options: dict[str, Any] = {}
    if not series.joined:
        options["linestyle"] = "none"
    elif look.dashes:
        options["dashes"] = look.dashes
    [points] = axis.plot(
        series.x,
        series.y,
        color=look.colour,
        marker=look.marker,
        markeredgecolor=WHITE,
        markeredgewidth=0.4,
        label=series.name,
        **options,
    )
    return points
