"""Helpers that all figures share: subplots, points with tooltips, files."""

from __future__ import annotations

import html
import io
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gmlp_flax.training.run_folder import FIGURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def subplots(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure without a display, and its axes in row-major order; width and height are inches of one subplot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def save(figure: Figure, workdir: str, name: str) -> str:
    """Writes RUN/figures/NAME and returns its path."""
    path = os.path.join(workdir, FIGURES, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    figure.savefig(path, dpi=120)
    return path


def points_with_tips(axis: Axes, x: Sequence[float], y: Sequence[float], tips: Sequence[str], **style) -> None:
    """Points that show a text under the mouse pointer, if `svg` writes the figure; `style` is passed to `Axes.plot`."""
    for each_x, each_y, tip in zip(x, y, tips, strict=True):
        (point,) = axis.plot([each_x], [each_y], "o", **style)
        point.set_gid(f"tip:{tip}")


def svg(figure: Figure) -> str:
    """The figure as SVG. The tips of its points are titles, which browsers show under the mouse pointer."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "gmlp_flax"}):  # the same figure is the same file
        figure.savefig(text, format="svg", metadata={"Date": None})
    marked = r"""<g id=(["'])tip:(.*?)\1>"""
    return re.sub(marked, lambda match: f"<g><title>{html.escape(html.unescape(match[2]))}</title>", text.getvalue())
