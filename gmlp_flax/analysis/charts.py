"""Charts: what they show, as plain values, and how matplotlib draws them. Pages show the same values interactively."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.drawing import COLUMN, PAGE, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE = 9.5  # points from one line of a legend to the next
LETTERS = 14  # of a title, per inch


class Scale(NamedTuple):
    """An axis of a panel: its label, whether it is logarithmic, and whether it runs backwards."""

    label: str
    log: bool = False
    backwards: bool = False


@dataclasses.dataclass(frozen=True)
class Series:
    """Points that belong together.

    Attributes:
        name: in the legend.
        look: colour, marker and dashes.
        x, y: the points.
        low, high: the range of each point over seeds; empty if there is none.
        labels: words at the points; empty for none.
        joined: whether a line joins the points.
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
        lines = (line.subset(self.drawable_points(line)) for line in self.series)
        return dataclasses.replace(self, series=[line for line in lines if len(line.x)])

    def drawable_points(self, series: Series) -> list[int]:
        """The indices of the points that can be drawn."""

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
        """A sentence for each series with points that cannot be drawn."""
        sentences = []
        for panel in self.panels:
            why = "not finite and positive" if panel.x.log or panel.y.log else "not finite"
            for line in panel.series:
                if lost := len(line.x) - len(panel.drawable_points(line)):
                    sentences.append(f"Not drawn: {lost} of {line.name}'s {len(line.x)} points, {why}.")
        return " ".join(sentences)

    def csv(self) -> str:
        """Every point with all digits."""
        several, first = len(self.panels) > 1, self.panels[0]
        names = ("x", "y") if several else (first.x.label, first.y.label)
        rows: list[Sequence[Any]] = [("panel", "series", "label", *names, "lowest", "highest")]
        for panel in self.panels:
            for line in panel.series:
                blank = [""] * len(line.x)
                columns = (line.labels or blank, line.x, line.y, line.low or blank, line.high or blank)
                rows += [(panel.y.label, line.name, *cells) for cells in zip(*columns, strict=True)]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows if several else [row[1:] for row in rows])
        return text.getvalue()


@drawing.style()
def draw(chart: Chart) -> Figure:
    """The chart as a figure one column wide, or two columns wide if it has several panels."""
    columns = min(2, len(chart.panels))
    most = max(len(panel.series) + len(panel.references) for panel in chart.panels)
    figure, axes = drawing.subplots(len(chart.panels), columns, chart.width, max(2.4, 1.0 + most * LINE / 72))
    for axis, panel in zip(axes, chart.panels, strict=True):
        _plot(axis, panel.drawable(), round(LETTERS * chart.width / columns))
    if missing := chart.missing():
        figure.supxlabel(textwrap.fill(missing, round(1.6 * LETTERS * chart.width)), fontsize=6, color=drawing.GREY)
    return figure


def _plot(axis: Axes, panel: Panel, letters: int) -> None:
    """Draws a panel. The legend has the order of the lines' ends."""
    handles = []
    for series in panel.series:
        colour, marker, dashes = series.look
        line: dict[str, Any] = {"dashes": dashes} if dashes else {}
        if series.low:
            axis.vlines(series.x, series.low, series.high, color=colour, linewidth=0.8, alpha=0.8)
        if series.fit:
            axis.plot(series.x, series.fit, color=colour, linewidth=0.8, dashes=(3, 2))
        line |= {"marker": marker, "markeredgecolor": "white", "markeredgewidth": 0.4, "label": series.name}
        [drawn] = axis.plot(series.x, series.y, "-" if series.joined else "", color=colour, **line)
        last = (min if panel.x.backwards else max)(zip(series.x, series.y, strict=True))
        handles.append((last[1], drawn))
    for name, y in panel.references:
        handles.append((y, axis.axhline(y, color=drawing.GREY, linewidth=0.8, dashes=(1.5, 1.5), label=name)))
    handles.sort(key=lambda handle: handle[0], reverse=not panel.y.backwards)
    if handles:
        axis.legend(handles=[line for _, line in handles], loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0)
    x_scale, y_scale = ("log" if scale.log else "linear" for scale in (panel.x, panel.y))
    axis.set(xlabel=panel.x.label, ylabel=panel.y.label, xscale=x_scale, yscale=y_scale)
    title = re.sub(r"(\d) ([kMB])\b", "\\1\N{NO-BREAK SPACE}\\2", panel.title)
    axis.set_title(textwrap.fill(title, letters), x=0)
    for scale, its_axis in ((panel.x, axis.xaxis), (panel.y, axis.yaxis)):
        drawing.plain_axis(its_axis, scale.log)
        its_axis.set_inverted(scale.backwards)
    # Words stand above and below points in turn, from left to right.
    words = [
        (x, y, label, series.look.text)
        for series in panel.series
        for x, y, label in zip(series.x, series.y, series.labels, strict=False)
    ]
    for number, (x, y, label, colour) in enumerate(sorted(words)):
        offset, side = ((0, -4), "top") if number % 2 else ((0, 4), "bottom")
        text = axis.annotate(label, (x, y), offset, textcoords="offset points", parse_math=False)
        text.set(fontsize=5.5, color=colour, ha="center", va=side, in_layout=False)
