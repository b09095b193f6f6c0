"""A report of a table or a figure of the paper: files that open without a network."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.page import page
from gmlp_flax.analysis.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Report:
    """A table, what is to be said of it, and its figures by name."""

    title: str
    notes: Sequence[str]
    table: Table
    figures: Mapping[str, Figure]

    def write(self, folder: str) -> str:
        """Writes table.md, table.csv, a PNG and an SVG of each figure, and index.html; returns the latter's path."""
        os.makedirs(folder, exist_ok=True)
        drawn = {name: drawing.svg(figure) for name, figure in self.figures.items()}
        text = "".join(f"{note}\n\n" for note in self.notes)
        files = {
            "table.md": f"# {self.title}\n\n{self.table.markdown()}\n{text}".rstrip() + "\n",
            "table.csv": self.table.csv(),
            **{f"{name}.svg": each for name, each in drawn.items()},
            "index.html": page(self.title, self.notes, self.table, list(drawn.values())),
        }
        for name, figure in self.figures.items():
            figure.savefig(os.path.join(folder, f"{name}.png"), dpi=120)
        for name, content in files.items():
            with open(os.path.join(folder, name), "w") as file:
                file.write(content)
        return os.path.join(folder, "index.html")
