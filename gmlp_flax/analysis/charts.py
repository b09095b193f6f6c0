"""Charts: what they show, as plain values, and how matplotlib draws them. Pages show the same values interactively."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.drawing import COLUMN, PAGE, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

LINE = 8.5  # points from one label to the next
LETTERS = 14  # of a title, per inch
SIDES = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1))  # of a point: right, up


class Scale(NamedTuple):
    """An axis of a panel: its label, whether it is logarithmic, and whether it runs backwards."""

    label: str
    log: bool = False
    backwards: bool = False


@dataclasses.dataclass(frozen=True)
class Series:
    """Points that belong together.

    Attributes:
        name: stands at the end of the line.
        look: colour, marker and dashes.
        x, y: the points.
        low, high: the range of each point over seeds; empty if there is none.
        labels: words at the points; empty for none.
        joined: whether a line joins the points.
        band: whether the ranges are a band along the line; otherwise they are a bar at each point.
        fit: y of a curve fitted to the points, at each x; empty if there is none.
    """

    name: str
    look: Look
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    labels: Sequence[str] = ()
    joined: bool = True
    band: bool = True
    fit: Sequence[float] = ()

    def subset(self, indices: Sequence[int]) -> Series:
        """With these of its points."""
        columns = ("x", "y", "low", "high", "labels", "fit")
        chosen = {name: [values[index] for index in indices] for name in columns if (values := getattr(self, name))}
        return dataclasses.replace(self, **chosen)


@dataclasses.dataclass(frozen=True)
class Panel:
    """A pair of axes.

    Attributes:
        title: says what is seen.
        x, y: the axes.
        series: drawn in this order.
        references: (name, y) of horizontal lines.
    """

    title: str
    x: Scale
    y: Scale
    series: Sequence[Series]
    references: Sequence[tuple[str, float]] = ()

    def drawable(self) -> Panel:
        """Without the points that cannot be drawn: not finite, or not positive on a logarithmic axis."""
        lines = (line.subset(self._drawable(line)) for line in self.series)
        return dataclasses.replace(self, series=[line for line in lines if len(line.x)])

    def missing(self) -> list[str]:
        """A sentence per series that has such points."""
        why = "not finite and positive" if self.x.log or self.y.log else "not finite"
        counts = ((line, len(line.x) - len(self._drawable(line))) for line in self.series)
        return [f"Not drawn: {lost} of {line.name}'s {len(line.x)} points, {why}." for line, lost in counts if lost]

    def _drawable(self, series: Series) -> list[int]:
        def fits(value: float, log: bool) -> bool:
            return math.isfinite(value) and (value > 0 or not log)

        pairs = enumerate(zip(series.x, series.y, strict=True))
        return [index for index, (x, y) in pairs if fits(x, self.x.log) and fits(y, self.y.log)]


@dataclasses.dataclass(frozen=True)
class Chart:
    """Panels side by side, and a caption: what the marks mean, and what is not drawn."""

    panels: Sequence[Panel]
    caption: str = ""

    @property
    def width(self) -> float:
        """Inches of the figure: a column of a paper, or both for several panels."""
        return COLUMN if len(self.panels) == 1 else PAGE

    def missing(self) -> str:
        """What cannot be drawn, and is said instead."""
        return " ".join(sentence for panel in self.panels for sentence in panel.missing())

    def csv(self) -> str:
        """Every point with all digits."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        several = len(self.panels) > 1
        first = self.panels[0]
        names = ("panel", "series", "label", "x", "y") if several else ("series", "label", first.x.label, first.y.label)
        writer.writerow((*names, "lowest", "highest"))
        for panel in self.panels:
            for row in _points(panel):
                writer.writerow([panel.y.label, *row] if several else row)
        return text.getvalue()


def _points(panel: Panel) -> Iterator[list[Any]]:
    for series in panel.series:
        blank = [""] * len(series.x)
        columns = (series.labels or blank, series.x, series.y, series.low or blank, series.high or blank)
        yield from ([series.name, *cells] for cells in zip(*columns, strict=True))


@drawing.style()
def draw(chart: Chart) -> Figure:
    """The chart as a figure one column wide, or two columns wide if it has several panels."""
    columns = min(2, len(chart.panels))
    rows, width = math.ceil(len(chart.panels) / columns), chart.width
    most = max(len(panel.series) + len(panel.references) for panel in chart.panels)
    height = max(2.4, 1.0 + most * LINE / 72)
    figure, axes = drawing.subplots(rows, columns, width, rows * height)
    panels = [panel.drawable() for panel in chart.panels]
    for axis, panel in zip(axes, panels, strict=False):
        _plot(axis, panel, round(LETTERS * width / columns))
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    if missing := chart.missing():
        figure.supxlabel(textwrap.fill(missing, round(1.6 * LETTERS * width)), fontsize=6, color=drawing.GREY)
    figure.draw_without_rendering()
    for axis, panel in zip(axes, panels, strict=False):
        _label_ends(axis, panel)
    figure.draw_without_rendering()
    for axis, panel in zip(axes, panels, strict=False):
        _label_points(axis, panel)
    figure.set_layout_engine("none")  # it is laid out: each file need not do it again
    return figure


def _plot(axis: Axes, panel: Panel, letters: int) -> None:
    """Everything but the labels of series and points."""
    for series in panel.series:
        colour, marker, dashes = series.look
        line: dict[str, Any] = {"color": colour, "dashes": dashes} if dashes else {"color": colour}
        if series.low and series.band:
            axis.fill_between(series.x, series.low, series.high, color=colour, alpha=0.16, linewidth=0)
        elif series.low:
            axis.vlines(series.x, series.low, series.high, color=colour, linewidth=0.8, alpha=0.8)
        if series.fit:
            axis.plot(series.x, series.fit, color=colour, linewidth=0.8, dashes=(3, 2))
        if series.joined:
            axis.plot(series.x, series.y, **line)
        axis.plot(
            series.x, series.y, marker, color=colour, label=series.name, markeredgecolor="white", markeredgewidth=0.4
        )
    for _, y in panel.references:
        axis.axhline(y, color=drawing.GREY, linewidth=0.8, dashes=(1.5, 1.5))
    axis.set(
        xlabel=panel.x.label,
        ylabel=panel.y.label,
        xscale="log" if panel.x.log else "linear",
        yscale="log" if panel.y.log else "linear",
    )
    title = re.sub(r"(\d) ([kMB])\b", "\\1\N{NO-BREAK SPACE}\\2", panel.title)
    axis.set_title(textwrap.fill(title, letters), x=0)
    drawing.plain_axis(axis.xaxis, panel.x.log)
    drawing.plain_axis(axis.yaxis, panel.y.log)
    if panel.x.backwards:
        axis.invert_xaxis()
    if panel.y.backwards:
        axis.invert_yaxis()


def _label_ends(axis: Axes, panel: Panel) -> None:
    """Names of series at the right edge, each at the height of its line's end or as near as there is room."""
    last = min if panel.x.backwards else max
    ends = [(line.name, line.look, *last(zip(line.x, line.y, strict=True))) for line in panel.series]
    edge = axis.get_xlim()[1]
    ends += [(name, Look(drawing.GREY), edge, y) for name, y in panel.references]
    to_axes = axis.transData + axis.transAxes.inverted()
    heights = [float(to_axes.transform((x, y))[1]) for _, _, x, y in ends]
    figure: Any = axis.get_figure(root=True)
    least = LINE / (axis.get_window_extent().height * 72 / figure.dpi)
    for (name, look, x, y), height in zip(ends, drawing.spread_out(heights, least, 0.0, 1.0), strict=True):
        arrow = {
            "arrowstyle": "-",
            "color": look.colour,
            "linewidth": 0.5,
            "alpha": 0.7,
            "shrinkA": 0,
            "shrinkB": 2,
            "relpos": (0, 0.5),
        }
        axis.annotate(
            name,
            (x, y),
            (1.03, height),
            "data",
            "axes fraction",
            color=look.text,
            fontsize=6.5,
            va="center",
            arrowprops=arrow,
            parse_math=False,
        )


def _label_points(axis: Axes, panel: Panel) -> None:
    """Words at points, each at the side where it covers fewest other words and points."""
    from matplotlib.transforms import Bbox

    frame, boxes = axis.get_window_extent(), []
    points = [point for series in panel.series for point in zip(series.x, series.y, strict=True)]
    pixels = axis.transData.transform(points) if points else ()

    def covered(text: Annotation) -> float:
        box = text.get_window_extent()
        common = [shared.width * shared.height for other in boxes if (shared := Bbox.intersection(box, other))]
        outside = 4 - frame.count_contains(box.corners())
        return box.count_contains(pixels) + 4 * sum(common) / (box.width * box.height) + 10 * outside

    for series in panel.series:
        for x, y, label in zip(series.x, series.y, series.labels, strict=False):
            texts = [_word(axis, label, (x, y), side, series.look.text) for side in SIDES]
            best = min(texts, key=covered)
            boxes.append(best.get_window_extent())
            for text in texts:
                if text is not best:
                    text.remove()


def _word(axis: Axes, label: str, point: tuple[float, float], side: tuple[int, int], colour: str) -> Annotation:
    """A word at a side of a point: (right, up), each -1, 0 or 1."""
    across, up = side
    text = axis.annotate(
        label,
        point,
        (across * 4, up * 4),
        textcoords="offset points",
        fontsize=5.5,
        color=colour,
        ha=("center", "left", "right")[across],
        va=("center", "bottom", "top")[up],
        parse_math=False,
    )
    text.set_in_layout(False)
    return text
