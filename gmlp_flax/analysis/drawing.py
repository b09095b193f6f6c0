"""One style for all figures: widths of a paper's columns, colours, plain numbers on axes, files.
And charts: what they show, as plain values, which pages show interactively, and how matplotlib
draws them.

A colour stands for a family of models, and is the same in every figure; readers who are
colour-blind can tell the colours apart. Within a family, a lighter or darker shade and a marker of
its own stand for depth or kind.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import math
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gmlp_flax.checkpoints import FIGURES
from gmlp_flax.io import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.25, 6.75  # inches: one column of a paper, both columns
DPI = 200
MOST_TICKS = 7  # on one axis
PLACE = "place by perplexity"
WHOLE = ("step", "layer", PLACE)  # axes whose values are whole numbers
IN_ROW = 6  # plots of a figure that has one for each layer
FORMATS = ("png", "svg", "pdf")
LINE = 9.5  # points from one line of a legend to the next
LETTERS = 14  # of a title, per inch
SIDES = (0, 1), (0, -1), (1, 0), (-1, 0)  # of a point: above, below, right, left

# Okabe and Ito's colours, and four more of which readers who are colour-blind can tell them apart.
FAMILIES = {
    "Transformer": "#d55e00",
    "gMLP": "#0072b2",
    "aMLP": "#009e73",
    "Mixer": "#cc79a7",
    "ResMLP": "#e69f00",
    "feed-forward": "#56b4e9",
    "FNet": "#663300",
    "Synthesizer": "#9900e6",
    "external attention": "#becc7a",
    "convolution": "#19004c",
}
GREY = "#4d4d4d"  # references, and models of no family
SIGNED, WEIGHTS = "RdBu", "Blues"  # colour maps: of weights that may be negative, of shares
MARKERS, DASHES = "os^DvPX*", ((), (4, 1.5), (1.5, 1.5), (5, 1.5, 1.5, 1.5))

STYLE: dict[Any, Any] = {
    "font.size": 7,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.2,
    "legend.frameon": False,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "pdf.fonttype": 42,
    "svg.hashsalt": "gmlp_flax",  # the same figure is the same file
}
TICKS = {"labelsize": 6.5, "major.width": 0.6, "major.size": 2.5, "minor.size": 0}
STYLE |= {f"{axis}tick.{name}": value for axis in "xy" for name, value in TICKS.items()}


class Look(NamedTuple):
    """How a series is drawn: its colour as #rrggbb, its marker and dashes in matplotlib's words."""

    colour: str
    marker: str = MARKERS[0]
    dashes: tuple[float, ...] = DASHES[0]

    @property
    def text(self) -> str:
        """A darker colour, for words on white."""
        return mixed(self.colour, "#000000", 0.25)


@contextlib.contextmanager
def style() -> Iterator[None]:
    """The style; figures must be made and saved in it. It is also a decorator: `@style()`."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        yield


def subplots(
    count: int, columns: int, width: float, row_height: float, margin: float = 0.0, **options
) -> tuple[Figure, list[Axes]]:
    """A figure without a display, and `count` axes in rows.

    Args:
        count, columns: the number of axes, and of those in a row.
        width: inches of the figure.
        row_height, margin: inches of each row, and of what is above and below all rows.
        options: of `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width, margin + rows * row_height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for axis in axes[count:]:
        axis.set_axis_off()
    return figure, axes[:count]


def save(figures: Mapping[str, Chart | Figure], workdir: str) -> list[str]:
    """Writes RUN/figures/NAME.png, .svg and .pdf for each figure; returns the paths of the first of
    each."""
    folder = os.path.join(workdir, FIGURES)
    for name, data in contents(figures).items():
        files.write(os.path.join(folder, name), data)
    return [os.path.join(folder, f"{name}.{FORMATS[0]}") for name in figures]


@style()
def contents(figures: Mapping[str, Chart | Figure]) -> dict[str, bytes]:
    """Figures, by name, as files NAME.png, .svg and .pdf, without the date."""
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    named = {}
    for name, figure in figures.items():
        drawn = draw(figure) if isinstance(figure, Chart) else figure
        for kind in FORMATS:
            file = io.BytesIO()
            drawn.savefig(file, format=kind, metadata=dates.get(kind))
            named[f"{name}.{kind}"] = file.getvalue()
    return named


@style()
def draw_matrices(
    matrices: np.ndarray, titles: Iterable[str], colours: str, heading: str = ""
) -> Figure:
    """Matrices [count, n, n] with a title each, on one scale of the colour map `colours`."""
    columns = min(IN_ROW, len(matrices))
    width = COLUMN if columns <= 2 else PAGE
    figure, axes = subplots(
        len(matrices), columns, width, 0.25 + 0.85 * width / columns, margin=0.4
    )
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
    scaled_images(figure, axes, matrices, colours)
    figure.suptitle(heading, fontsize=7.5)
    return figure


def scaled_images(
    figure: Figure, axes: Sequence[Axes], images: Iterable[np.ndarray], colours: str
) -> Colorbar:
    """Draws weights [rows, columns], an image on each axis; returns the bar that explains their one
    colour scale."""
    images = list(images)
    largest = max(float(np.nanmax(np.abs(image))) for image in images)
    for axis, image in zip(axes, images, strict=True):
        drawn = axis.imshow(
            image, cmap=colours, vmin=-largest if colours == SIGNED else 0.0, vmax=largest
        )
        axis.grid(False)
        axis.set(xticks=[], yticks=[])
        for spine in axis.spines.values():
            spine.set(visible=True, linewidth=0.4)
    bar = figure.colorbar(drawn, ax=axes, label="weight", aspect=30, pad=0.02, fraction=0.05)
    bar.outline.set_linewidth(0.4)
    return bar


def looks(families: Sequence[str]) -> list[Look]:
    """A look for each of some series, whose families are given: no two are the same."""
    chosen = []
    colours = [FAMILIES.get(family, GREY) for family in families]
    for number, base in enumerate(colours):
        index, count = colours[:number].count(base), colours.count(base)
        # of white, if negative, or black
        step = 0.0 if count == 1 else 0.7 * index / (count - 1) - 0.35
        colour = mixed(base, "#ffffff" if step < 0 else "#000000", abs(step))
        chosen.append(Look(colour, MARKERS[index % len(MARKERS)], DASHES[index % len(DASHES)]))
    return chosen


def mixed(colour: str, other: str, share: float) -> str:
    """A colour with a share of another."""
    pairs = zip(bytes.fromhex(colour[1:]), bytes.fromhex(other[1:]), strict=True)
    return "#" + bytes(round((1 - share) * one + share * two) for one, two in pairs).hex()


def plain(value: float) -> str:
    """A number as an axis shows it: 50, 0.002, 1.5 M."""
    for size, unit in ((1e9, " B"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == ' k' else size):.3g}{unit}"
    return f"{value:.4f}".rstrip("0").rstrip(".") if 1e-4 <= abs(value) < 1 else f"{value:.4g}"


def plain_axis(axis: Axis, log: bool) -> None:
    """Gives an axis plain numbers: 50, 100, 200; over many decades powers of ten alone."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if log:
        low, high = sorted(axis.get_view_interval())
        digits = (1, 2, 5) if high / low < 200 else (1, 3) if high / low < 2000 else (1,)
        axis.set_major_locator(LogLocator(subs=digits, numticks=MOST_TICKS))
        axis.set_minor_locator(NullLocator())
    else:
        # labels such as "1.25 M" that have room on a column
        whole, most = axis.get_label_text() in WHOLE, 6
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10], integer=whole))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


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

    def drawable(self, series: Series) -> Series:
        """Without the points that cannot be drawn: not finite, or not positive on a logarithmic
        axis."""
        points = np.array([series.x, series.y], float)
        logs = np.array([[self.x.log], [self.y.log]])
        kept = np.flatnonzero((np.isfinite(points) & ((points > 0) | ~logs)).all(axis=0))
        columns = ("x", "y", "low", "high", "labels", "fit")
        values = {
            name: [column[index] for index in kept]
            for name in columns
            if (column := getattr(series, name))
        }
        return dataclasses.replace(series, **values)


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows of cells as CSV; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


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
                if lost := len(line.x) - len(panel.drawable(line).x):
                    sentences.append(
                        f"Not drawn: {lost} of {line.name}'s {len(line.x)} points, {why}."
                    )
        return " ".join(sentences)

    def csv(self) -> str:
        """Every point with all digits."""
        several, first = len(self.panels) > 1, self.panels[0]
        names = ("x", "y") if several else (first.x.label, first.y.label)
        rows: list[Sequence[Any]] = [("panel", "series", "label", *names, "lowest", "highest")]
        for panel in self.panels:
            for line in panel.series:
                blank = [""] * len(line.x)
                columns = (
                    line.labels or blank,
                    line.x,
                    line.y,
                    line.low or blank,
                    line.high or blank,
                )
                rows += [(panel.y.label, line.name, *cells) for cells in zip(*columns, strict=True)]
        return csv_text(rows if several else [row[1:] for row in rows])


@style()
def draw(chart: Chart) -> Figure:
    """The chart as a figure one column wide, or two columns wide if it has several panels."""
    columns = min(2, len(chart.panels))
    most = max(len(panel.series) + len(panel.references) for panel in chart.panels)
    figure, axes = subplots(
        len(chart.panels), columns, chart.width, max(2.4, 1.0 + most * LINE / 72)
    )
    for axis, panel in zip(axes, chart.panels, strict=True):
        _plot(figure, axis, panel, round(LETTERS * chart.width / columns))
    if missing := chart.missing():
        figure.supxlabel(
            textwrap.fill(missing, round(1.6 * LETTERS * chart.width)), fontsize=6, color=GREY
        )
    return figure


def _plot(figure: Figure, axis: Axes, panel: Panel, letters: int) -> None:
    """Draws a panel. The legend has the order of the lines' ends."""
    from matplotlib.transforms import Bbox

    handles = []
    lines = [line for line in map(panel.drawable, panel.series) if len(line.x)]
    for series in lines:
        colour, marker, dashes = series.look
        shape: dict[str, Any] = {"dashes": dashes} if dashes else {}
        if series.low:
            axis.vlines(series.x, series.low, series.high, color=colour, linewidth=0.8, alpha=0.8)
        if series.fit:
            axis.plot(series.x, series.fit, color=colour, linewidth=0.8, dashes=(3, 2))
        shape |= {
            "marker": marker,
            "markeredgecolor": "white",
            "markeredgewidth": 0.4,
            "label": series.name,
        }
        [drawn] = axis.plot(series.x, series.y, "-" if series.joined else "", color=colour, **shape)
        last = (min if panel.x.backwards else max)(zip(series.x, series.y, strict=True))
        handles.append((last[1], drawn))
    for name, y in panel.references:
        handles.append(
            (y, axis.axhline(y, color=GREY, linewidth=0.8, dashes=(1.5, 1.5), label=name))
        )
    handles.sort(key=lambda handle: handle[0], reverse=not panel.y.backwards)
    if handles:
        axis.legend(
            handles=[one for _, one in handles],
            loc="upper left",
            bbox_to_anchor=(1.02, 1),
            borderaxespad=0,
        )
    x_scale, y_scale = ("log" if scale.log else "linear" for scale in (panel.x, panel.y))
    axis.set(xlabel=panel.x.label, ylabel=panel.y.label, xscale=x_scale, yscale=y_scale)
    title = re.sub(r"(\d) ([kMB])\b", "\\1\N{NO-BREAK SPACE}\\2", panel.title)
    axis.set_title(textwrap.fill(title, letters), x=0)
    for scale, its_axis in ((panel.x, axis.xaxis), (panel.y, axis.yaxis)):
        plain_axis(its_axis, scale.log)
        its_axis.set_inverted(scale.backwards)
    # Words stand on that side of their point on which they cover the fewest other words and points.
    figure.draw_without_rendering()
    taken = [
        Bbox([at - 4, at + 4])
        for line in lines
        for at in axis.transData.transform(np.c_[line.x, line.y])
    ]
    for line in lines:
        for x, y, label in zip(line.x, line.y, line.labels, strict=False):
            text = axis.annotate(
                label, (x, y), (0, 0), textcoords="offset points", parse_math=False
            )
            text.set(fontsize=5.5, color=line.look.text, ha="center", va="center", in_layout=False)
            box = text.get_window_extent()
            boxes = [
                box.translated(a * (box.width / 2 + 8), b * (box.height / 2 + 8)) for a, b in SIDES
            ]
            best = min(
                boxes, key=lambda box: sum(map(box.overlaps, taken)) + (box.x1 > axis.bbox.x1)
            )
            text.set_position(((best.x0 - box.x0) * 72 / DPI, (best.y0 - box.y0) * 72 / DPI))
            taken.append(best)
