"""A report of a table or figure of the paper, and its files: Markdown, CSV, and a web page that needs no network."""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gmlp_flax.analysis import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = str | float | int | None

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222; }
.wide { overflow-x: auto; margin: 1em 0; }
table { border-collapse: collapse; }
th, td { padding: .25em .8em; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
th { cursor: pointer; user-select: none; white-space: nowrap; }
th[aria-sort=ascending]::after { content: " \\2191"; }
th[aria-sort=descending]::after { content: " \\2193"; }
figure { margin: 1.5em 0; } figure svg { max-width: 100%; height: auto; }
"""

# Numbers sort as numbers and empty cells stay last; a second click reverses the order.
SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(each => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => row.cells[column].dataset.key;
    const compare = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => (key(a) === "") - (key(b) === "") || (down ? -1 : 1) * compare(key(a), key(b)));
    table.tBodies[0].append(...rows);
  }));
}
"""


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns and rows of cells; None is an empty cell."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def markdown(self) -> str:
        """With rounded numbers."""
        cells = [self.columns, ["---"] * len(self.columns), *(map(shown, row) for row in self.rows)]
        return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in cells)

    def csv(self) -> str:
        """With all digits."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(["" if cell is None else cell for cell in row] for row in self.rows)
        return text.getvalue()

    def html(self) -> str:
        """With rounded numbers; columns sort by all digits."""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        body = "\n".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in self.rows)
        return f"<table class=sortable><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


@dataclasses.dataclass(frozen=True)
class Report:
    """A table, notes on it, and figures by name."""

    title: str
    notes: Sequence[str]
    table: Table
    figures: Mapping[str, Figure]

    def write(self, folder: str) -> str:
        """Writes table.md, table.csv, a PNG and an SVG of each figure, and index.html.

        Returns:
            The path of index.html.
        """
        os.makedirs(folder, exist_ok=True)
        drawn = {name: drawing.svg(figure) for name, figure in self.figures.items()}
        text = "".join(f"{note}\n\n" for note in self.notes)
        files = {
            "table.md": f"# {self.title}\n\n{self.table.markdown()}\n{text}".rstrip() + "\n",
            "table.csv": self.table.csv(),
            **{f"{name}.svg": svg for name, svg in drawn.items()},
            "index.html": page(self.title, self.notes, self.table, list(drawn.values())),
        }
        for name, figure in self.figures.items():
            figure.savefig(os.path.join(folder, f"{name}.png"), dpi=120)
        for name, content in files.items():
            with open(os.path.join(folder, name), "w") as file:
                file.write(content)
        return os.path.join(folder, "index.html")


def page(title: str, notes: Sequence[str], table: Table, figures: Sequence[str]) -> str:
    """The text of index.html: the table, which sorts by a click on a column, then `figures` (SVG), then the notes."""
    listed = "\n".join(f"<li>{html.escape(note)}</li>" for note in notes)
    drawn = "\n".join(f"<figure>{figure[figure.index('<svg') :]}</figure>" for figure in figures)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f'<link rel="icon" href="data:,">\n<style>{STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1>\n'
        f'<div class="wide">{table.html()}</div>\n{drawn}\n<ul>\n{listed}\n</ul>\n'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def shown(cell: Cell) -> str:
    """A cell for reading: five digits of a number, all digits of a whole number."""
    if cell is None:
        return ""
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.5g}" if isinstance(cell, float) else cell


def difference(ours: float, papers: float | None) -> float | None:
    """Ours - the paper's; None if the paper prints no number."""
    return None if papers is None else ours - papers


def _html_cell(cell: Cell) -> str:
    key = "" if cell is None else html.escape(str(cell))
    return f'<td data-key="{key}">{html.escape(shown(cell))}</td>'
