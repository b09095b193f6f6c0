"""Figures as files: PNG, SVG and PDF."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gmlp_flax.analysis.charts import Chart
from gmlp_flax.analysis.drawing import style
from gmlp_flax.analysis.plotting import draw
from gmlp_flax.checkpoints import FIGURES
from gmlp_flax.errors import RunError, decode_errors
from gmlp_flax.io import files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: tuple[str, ...] = ("png", "svg", "pdf")
# The same figure is the same file: without a date.
METADATA = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def save(figures: Mapping[str, Chart | Figure], workdir: str) -> list[str]:
    """Writes RUN/figures/NAME.png, NAME.svg and NAME.pdf for each figure; returns the paths of the
    PNG files.

    Raises:
        RunError: a figure cannot be drawn or written.
    """
    folder = os.path.join(workdir, FIGURES)
    paths = []
    for name, figure in figures.items():
        write(name, figure, folder)
        path = os.path.join(folder, f"{name}.png")
        paths.append(path)
    return paths


def write(
    name: str,
    figure: Chart | Figure,
    folder: str,
) -> None:
    """Writes a figure as NAME.png, NAME.svg and NAME.pdf.

    Raises:
        RunError: it cannot be drawn or written.
    """
    rendered = contents(name, figure)
    for kind, content in rendered.items():
        path = os.path.join(folder, f"{name}.{kind}")
        files.write(path, content)


def drawing_errors(name: str) -> contextlib.AbstractContextManager[None]:
    """Turns every error of drawing a figure in the block into a RunError of one line."""
    problem = f"the figure {name} was not drawn"
    return decode_errors(problem, "nothing else is lost", RunError)


def contents(name: str, figure: Chart | Figure) -> dict[str, bytes]:
    """A figure in each of FORMATS.

    Raises:
        RunError: it cannot be drawn.
    """
    rendered = {}
    with drawing_errors(name), style():
        drawn = draw(figure) if isinstance(figure, Chart) else figure
        for kind in FORMATS:
            file = io.BytesIO()
            drawn.savefig(file, format=kind, metadata=METADATA[kind])
            rendered[kind] = file.getvalue()
    return rendered
