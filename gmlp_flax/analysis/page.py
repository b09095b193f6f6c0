"""A report as one HTML file that needs no network: text, sortable tables, figures whose points tell their values."""

from __future__ import annotations

import html
from collections.abc import Sequence

from gmlp_flax.analysis.tables import Table

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

# Numbers sort as numbers and empty cells stay last; a second click turns the order round.
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


def page(title: str, notes: Sequence[str], table: Table, figures: Sequence[str]) -> str:
    """The file's text.

    Args:
        title: of the report.
        notes: a list, shown below the figures.
        table: of the report.
        figures: as SVG.
    """
    listed = "\n".join(f"<li>{html.escape(note)}</li>" for note in notes)
    drawn = "\n".join(f"<figure>{figure[figure.index('<svg') :]}</figure>" for figure in figures)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f'<link rel="icon" href="data:,">\n<style>{STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1>\n'
        f'<div class="wide">{table.html()}</div>\n{drawn}\n<ul>\n{listed}\n</ul>\n'
        f"<script>{SCRIPT}</script></body></html>\n"
    )
