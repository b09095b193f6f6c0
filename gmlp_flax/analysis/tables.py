"""A table in the three forms that reports take: Markdown, CSV, and HTML whose columns sort."""

from __future__ import annotations

import csv
import dataclasses
import html
import io
from collections.abc import Sequence

Cell = str | float | int | None


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
        """With rounded numbers, sorted by all digits."""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        body = "\n".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in self.rows)
        return f"<table class=sortable><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


def shown(cell: Cell) -> str:
    """A cell for reading: five digits of a number, all of a whole one."""
    if cell is None:
        return ""
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.5g}" if isinstance(cell, float) else cell


def difference(ours: float, papers: float | None) -> float | None:
    """Ours - the paper's; None where it has none."""
    return None if papers is None else ours - papers


def _html_cell(cell: Cell) -> str:
    key = "" if cell is None else html.escape(str(cell))
    return f'<td data-key="{key}">{html.escape(shown(cell))}</td>'
