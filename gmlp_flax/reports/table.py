"""Tables of a report: cells, how they are read, and Markdown and CSV."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gmlp_flax.analysis.drawing import csv_text

MINUS = "\u2212"


class Printed(float):
    """A number that a paper prints or a config sets: it is shown as it is."""


class Difference(float):
    """Ours - the paper's: it is shown with its sign."""


class Spread(NamedTuple):
    """A number over seeds or repeats: its mean or median, and the value of each."""

    centre: float
    values: tuple[float, ...]

    @classmethod
    def mean(cls, values: Iterable[float]) -> Spread:
        """Of numbers, at least one, with their mean."""
        values = tuple(values)
        return cls(statistics.mean(values), values)

    @classmethod
    def median(cls, values: Iterable[float]) -> Spread:
        """Of numbers, at least one, with their median."""
        values = tuple(values)
        return cls(statistics.median(values), values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation between them; None for one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


Cell = str | float | int | Spread | None
Columns = dict[str, Mapping[str, Cell]]  # title -> row -> cell


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns and rows of cells; None is an empty cell.

    Attributes:
        columns: names.
        rows: cells in the order of the columns; the first names the row.
        over: what the numbers of a Spread differ by.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    over: str = "seeds"

    @classmethod
    def of_columns(cls, rows: Iterable[str], columns: Columns, over: str = "seeds") -> Table:
        """A line for each model of `rows`; columns that are empty in all of them are left out."""
        rows = list(rows)
        full = [
            title
            for title, cells in columns.items()
            if any(cells.get(row) is not None for row in rows)
        ]
        return cls(
            ("model", *full),
            [[row, *(columns[title].get(row) for title in full)] for row in rows],
            over,
        )

    def markdown(self) -> str:
        """With three digits; what ± is stands below."""
        cells = [
            self.columns,
            ["---"] * len(self.columns),
            *(list(map(shown, row)) for row in self.rows),
        ]
        lines = "".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in cells
        )
        return lines + (f"\n{legend}\n" if (legend := self.legend()) else "")

    def legend(self) -> str:
        """What its ± is; empty if it has none."""
        if not any(
            isinstance(cell, Spread) and cell.deviation is not None
            for row in self.rows
            for cell in row
        ):
            return ""
        centre = (
            "the number before it is their mean, or the median of finetuned scores and of costs"
        )
        return f"± is the standard deviation between {self.over}; {centre}."

    def csv(self) -> str:
        """With all digits. A number over seeds takes five columns."""
        spread = [
            any(isinstance(row[index], Spread) for row in self.rows)
            for index in range(len(self.columns))
        ]
        columns: list[str] = []
        for name, wide in zip(self.columns, spread, strict=True):
            more = ("deviation", "lowest", "highest", self.over) if wide else ()
            columns += [name, *(f"{name} {statistic}" for statistic in more)]
        rows = (zip(row, spread, strict=True) for row in self.rows)
        return csv_text(
            [
                columns,
                *([value for cell, wide in row for value in _values(cell, wide)] for row in rows),
            ]
        )


def shown(cell: Cell) -> str:
    """A cell for reading: three digits of a number, all digits of a whole number."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    if isinstance(cell, Spread):
        return _shown_spread(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    if not math.isfinite(cell):
        return "not finite"
    if isinstance(cell, Printed):
        return f"{cell:,.10g}"
    if isinstance(cell, Difference):
        text = f"{cell:+,.{min(2, decimals(cell))}f}"
        return "0" if not text.strip("+-0.") else text.replace("-", MINUS)
    if 0 < abs(cell) < 1e-4:
        return f"{cell:.2e}".replace("-", MINUS)
    return f"{cell:,.{decimals(cell)}f}".replace("-", MINUS)


def decimals(value: float, digits: int = 3) -> int:
    """How many decimals show this many digits of a number."""
    rounded = abs(float(f"{value:.{digits - 1}e}"))
    return max(0, digits - 1 - math.floor(math.log10(rounded))) if rounded else digits - 1


def sort_key(cell: Cell) -> str:
    """What a page sorts a cell by: all its digits; empty for an empty cell."""
    value = cell.centre if isinstance(cell, Spread) else cell
    return "" if value is None else str(float(value)) if isinstance(value, float) else str(value)


def difference(ours: float, papers: float | None) -> Difference | None:
    """Ours - the paper's; None if the paper prints no number."""
    return None if papers is None else Difference(ours - papers)


def printed(value: float | None) -> Printed | None:
    """A paper's number; None if it prints none."""
    return None if value is None else Printed(value)


def _shown_spread(cell: Spread) -> str:
    centre, deviation = shown(float(cell.centre)), cell.deviation
    if deviation is None or not math.isfinite(deviation):
        return centre
    digits = decimals(cell.centre)
    if round(deviation, digits) == 0:
        digits = min(decimals(deviation, 1), 6)
    return f"{centre} ± {deviation:,.{digits}f}"


def _values(cell: Cell, wide: bool) -> list[str | float | int | None]:
    if isinstance(cell, Spread):
        return [cell.centre, cell.deviation, min(cell.values), max(cell.values), len(cell.values)]
    return [cell, *([None] * 4 if wide else [])]
