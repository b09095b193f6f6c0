"""One style for all figures: widths of a paper's columns, colours, plain numbers on axes, files.

A colour stands for a family of models, and is the same in every figure; readers who are colour-blind can tell the
colours apart. Within a family, a lighter or darker shade and a marker of its own stand for depth or kind.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gmlp_flax.checkpoints.names import FIGURES
from gmlp_flax.io import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.25, 6.75  # inches: one column of a paper, both columns
DPI = 200
MOST_TICKS = 7  # on one axis
FORMATS = ("png", "svg", "pdf")

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
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#444444",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
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
    rows: int, columns: int, width: float = COLUMN, height: float = 2.4, **options
) -> tuple[Figure, list[Axes]]:
    """A figure without a display, and its axes in row-major order.

    Args:
        rows, columns: of axes.
        width, height: inches of the figure.
        options: of `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


@style()
def save(figure: Figure, workdir: str, name: str) -> str:
    """Writes RUN/figures/NAME.png, .svg and .pdf; returns the path of the first."""
    folder = os.path.join(workdir, FIGURES)
    for kind in FORMATS:
        files.write(os.path.join(folder, f"{name}.{kind}"), content(figure, kind))
    return os.path.join(folder, f"{name}.{FORMATS[0]}")


@style()
def content(figure: Figure, kind: str) -> bytes:
    """A figure as a file of one of FORMATS, without the date."""
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    file = io.BytesIO()
    figure.savefig(file, format=kind, metadata=dates.get(kind))
    return file.getvalue()


def scaled_images(
    figure: Figure, images: Sequence[tuple[Axes, np.ndarray]], colours: str, label: str, bar: Sequence[Axes]
) -> None:
    """Draws arrays [rows, columns] as images with one colour scale, which a bar beside the axes `bar` explains."""
    largest = max(float(np.abs(image).max()) for _, image in images)
    low = -largest if colours == SIGNED else 0.0
    for axis, image in images:
        drawn = axis.imshow(image, cmap=colours, vmin=low, vmax=largest)
        axis.grid(False)
        axis.set(xticks=[], yticks=[])
        for spine in axis.spines.values():
            spine.set(visible=True, linewidth=0.4)
    colour_bar = figure.colorbar(drawn, ax=bar, label=label, aspect=30, pad=0.02, fraction=0.05)
    colour_bar.outline.set_linewidth(0.4)


def looks(families: Sequence[str]) -> list[Look]:
    """A look for each of some series, whose families are given: no two are the same."""
    chosen = []
    colours = [FAMILIES.get(family, GREY) for family in families]
    for number, base in enumerate(colours):
        index, count = colours[:number].count(base), colours.count(base)
        step = 0.0 if count == 1 else 0.7 * index / (count - 1) - 0.35  # of white, if negative, or black
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


def plain_ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis from `low` to `high`: 50, 100, 200; over many decades powers of ten alone,
    over a small part of one 56, 58, 60."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in decades for digit in digits if low <= digit * 10.0**power <= high]
        if len(ticks) <= MOST_TICKS:
            break
    if len(ticks) > MOST_TICKS:
        ticks = ticks[:: math.ceil(len(ticks) / MOST_TICKS)]
    if len(ticks) >= 3:
        return ticks
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough)
    return [step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1)]


def plain_axis(axis: Axis, log: bool) -> None:
    """Gives an axis plain numbers; call it after the limits are final."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    if log:
        low, high = sorted(axis.get_view_interval())
        axis.set_ticks(plain_ticks(low, high))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(6))  # as many labels such as "1.25 M" have room on a column
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def spread_out(heights: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Moves heights apart until neighbours have the distance `least`, in the same order, as little as it can; between
    `low` and `high` if there is room."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    groups: list[tuple[list[int], float]] = []  # members in order, and where the first stands
    for index in order:
        members, start = [index], heights[index]
        while groups and groups[-1][1] + len(groups[-1][0]) * least > start:
            members = groups.pop()[0] + members
            start = sum(heights[member] - rank * least for rank, member in enumerate(members)) / len(members)
            start = max(low, min(start, high - (len(members) - 1) * least))
        groups.append((members, start))
    moved = {member: start + rank * least for members, start in groups for rank, member in enumerate(members)}
    return [moved[index] for index in range(len(heights))]
