"""The style of all figures: the widths of a paper's columns, fonts, plain numbers on axes; and
weights as images.

Figures are drawn without a display and look the same whatever matplotlib settings a user has.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure

COLUMN = 3.25  # inches: one column of a paper
PAGE = 6.75  # inches: both columns
DPI = 200
POINTS = 72  # of an inch
HEADING_SIZE = 7.5  # points
IN_ROW = 6  # plots of a figure that has one for each layer
MOST_TICKS = 6  # on a linear axis: labels such as "1.25 M" fit into a column
MOST_LOG_TICKS = 7
SIGNED = "RdBu"  # colour map of weights that may be negative
WEIGHTS = "Blues"  # colour map of shares
ON_IMAGE = "on-image"  # gid of marks over an image, which keep their colour on a dark page

STYLE: dict[Any, Any] = {
    "font.size": 7,
    "axes.titlesize": HEADING_SIZE,
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
    "text.parse_math": False,  # names may have dollar signs
    "svg.hashsalt": "gmlp_flax",  # the same figure is the same file
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Sets the style. Make and save figures inside the block. It is also a decorator, `@style()`."""
    _import_matplotlib()
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def _import_matplotlib() -> None:
    """Imports matplotlib regardless of MPLBACKEND: an unknown backend there would be an error, and
    files need no backend."""
    if "matplotlib" in sys.modules:
        return
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    if backend:
        with contextlib.suppress(ValueError):
            matplotlib.rcParams["backend"] = backend  # for the pyplot of our caller


def subplots(
    count: int,
    columns: int,
    width: float,
    row_height: float,
    margin: float = 0.0,
    **options: Any,
) -> tuple[Figure, list[Axes]]:
    """Makes a figure without a display, and `count` axes in rows.

    Args:
        count, columns: the number of axes, and of axes in a row.
        width: inches of the figure.
        row_height, margin: inches of each row, and of the space above and below all rows.
        options: of `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    rows = math.ceil(count / columns)
    height = margin + rows * row_height
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    axes = list(grid.flat)
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes[:count]


# Weights as images.


@style()
def draw_matrices(
    matrices: np.ndarray,
    titles: Iterable[str],
    colours: str,
    heading: str = "",
) -> Figure:
    """Draws matrices [count, n, n] with a title each, on one scale of the colour map `colours`."""
    columns = min(IN_ROW, len(matrices))
    width = COLUMN if columns <= 2 else PAGE
    row_height = 0.25 + 0.85 * width / columns
    figure, axes = subplots(len(matrices), columns, width, row_height, margin=0.4)
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
    scaled_images(figure, axes, matrices, colours)
    figure.suptitle(heading, fontsize=HEADING_SIZE)
    return figure


def scaled_images(
    figure: Figure,
    axes: Sequence[Axes],
    images: Iterable[np.ndarray],
    colours: str,
) -> Colorbar:
    """Draws weights [rows, columns], an image on each axis, on one scale of the colour map
    `colours`; returns the bar that explains the scale."""
    images = list(images)
    largest = max(float(np.nanmax(np.abs(image))) for image in images)
    smallest = -largest if colours == SIGNED else 0.0
    for axis, image in zip(axes, images, strict=True):
        drawn = axis.imshow(
            image,
            cmap=colours,
            vmin=smallest,
            vmax=largest,
        )
        axis.grid(False)
        axis.set(xticks=[], yticks=[])
        for spine in axis.spines.values():
            spine.set(visible=True, linewidth=0.4)
    bar = figure.colorbar(
        drawn,
        ax=axes,
        label="weight",
        aspect=30,
        pad=0.02,
        fraction=0.05,
    )
    bar.outline.set_linewidth(0.4)
    return bar


# Plain numbers.

UNITS = ((1e9, 1e9, " B"), (1e6, 1e6, " M"), (1e4, 1e3, " k"))  # from, divisor, name


def plain(value: float) -> str:
    """A number as an axis shows it: 50, 0.002, 1.5 M."""
    size = abs(value)
    for smallest, divisor, unit in UNITS:
        if size >= smallest:
            return f"{value / divisor:.3g}{unit}"
    if 1e-4 <= size < 1:
        return f"{value:.4f}".rstrip("0").rstrip(".")
    return f"{value:.4g}"


def plain_axis(
    axis: Axis,
    log: bool,
    whole: bool = False,
) -> None:
    """Gives an axis plain numbers: 50, 100, 200.

    Args:
        axis: whose limits are set.
        log: whether it is logarithmic; over many decades it has only powers of ten.
        whole: whether its values are whole numbers.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    if log and _has_round_numbers(low, high):
        axis.set_major_locator(LogLocator(subs=_digits(high / low), numticks=MOST_LOG_TICKS))
    else:
        axis.set_major_locator(MaxNLocator(MOST_TICKS, steps=[1, 2, 5, 10], integer=whole))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def _has_round_numbers(low: float, high: float) -> bool:
    """Whether two or more of 1, 2, 5, 10, 20, ... are in a range of positive numbers. LogLocator
    gives a smaller range as many ticks as matplotlib gives any axis, which is too many for ours."""
    decade = 10.0 ** math.floor(math.log10(low))
    round_numbers = [digit * decade for digit in (1, 2, 5, 10, 20, 50)]
    within = [number for number in round_numbers if low <= number <= high]
    return len(within) >= 2


def _digits(ratio: float) -> tuple[int, ...]:
    """The first digits of the numbers on a logarithmic axis that spans such a ratio."""
    if ratio < 200:
        return (1, 2, 5)
    if ratio < 2000:
        return (1, 3)
    return (1,)
