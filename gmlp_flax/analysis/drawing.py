"""The little that all figures share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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
    path = os.path.join(workdir, "figures", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
