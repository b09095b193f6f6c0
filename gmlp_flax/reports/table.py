"""Tables of a report: cells, how they are shown, and Markdown and CSV."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gmlp_flax.analysis.charts import csv_text

DIGITS = 3  # of a number for reading
MINUS = "\u2212"
STATISTICS = ("deviation", "lowest", "highest")  # of a Spread, besides its centre
MEAN = "mean"
MEDIAN = "median"


class Printed(float):
    """A number that a paper prints or a config sets: it is shown as it is."""


class Difference(float):
    """Ours - the paper's: it is shown with its sign."""


class Spread(NamedTuple):
    """A number over seeds or repeats.

    Attributes:
        centre: the mean or the median.
        values: one for each seed or repeat.
        statistic: what the centre is, MEAN or MEDIAN.
    """

    centre: float
    values: tuple[float, ...]
    statistic: str = MEAN

    @classmethod
    def mean(cls, values: Iterable[float]) -> Spread:
        """The spread of one or more numbers around their mean."""
        values = tuple(values)
        centre = statistics.mean(values)
        return cls(centre, values)

    @classmethod
    def median(cls, values: Iterable[float]) -> Spread:
        """The spread of one or more numbers around their median."""
        values = tuple(values)
        centre = statistics.median(values)
        return cls(centre, values, MEDIAN)

    @property
    def deviation(self) -> float | None:
        """The standard deviation between them; None for one."""
        if len(self.values) < 2:
            return None
        return statistics.stdev(self.values)


Cell = str | float | int | Spread | None
Cells = dict[str, Cell]  # title of a column -> cell


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
    def of_models(
        cls,
        models: Mapping[str, Cells],
        over: str = "seeds",
    ) -> Table:
        """A line for each model; columns that are empty in all of them are left out.

        Args:
            models: name -> its cells, in the order of the columns.
            over: what the numbers of a Spread differ by.
        """
        titles: dict[str, None] = {}  # in order
        full = set()
        for cells in models.values():
            for title, cell in cells.items():
                titles[title] = None
                if cell is not None:
                    full.add(title)
        kept = [title for title in titles if title in full]
        rows = []
        for name, cells in models.items():
            row: list[Cell] = [name]
            for title in kept:
                row.append(cells.get(title))
            rows.append(row)
        columns = ("model", *kept)
        return cls(columns, rows, over)

    def column(self, index: int) -> list[Cell]:
        """The cells of a column."""
        return [row[index] for row in self.rows]

    def markdown(self) -> str:
        """The table with three digits, with an explanation of ± below."""
        rule = ["---"] * len(self.columns)
        lines = [_markdown_line(self.columns), _markdown_line(rule)]
        for row in self.rows:
            cells = [shown(cell) for cell in row]
            lines.append(_markdown_line(cells))
        legend = self.legend()
        if legend:
            lines.append(f"\n{legend}\n")
        return "".join(lines)

    def legend(self) -> str:
        """An explanation of its ±, which names the columns of medians if others have means; empty if
        it has no ±."""
        means = self._columns_of(MEAN)
        medians = self._columns_of(MEDIAN)
        if not means and not medians:
            return ""
        statistic = f"{MEAN} over the {self.over}"
        if not means:
            statistic = f"{MEDIAN} over the {self.over}"
        elif medians:
            names = ", ".join(medians)
            statistic += f" (in {names}: the {MEDIAN})"
        return (
            f"The number before ± is the {statistic}, and the number after it is their standard "
            "deviation."
        )

    def _columns_of(self, statistic: str) -> list[str]:
        """The names of the columns in which a cell has a ± after this statistic."""
        names = []
        for index, name in enumerate(self.columns):
            have_deviation = [_has_deviation(cell, statistic) for cell in self.column(index)]
            if any(have_deviation):
                names.append(name)
        return names

    def csv(self) -> str:
        """The table with all digits. A column with a number over seeds becomes five."""
        head: list[str] = []
        lines: list[list[Cell]] = [[] for _ in self.rows]
        for index, name in enumerate(self.columns):
            cells = self.column(index)
            head.append(name)
            has_spread = any(isinstance(cell, Spread) for cell in cells)
            if has_spread:
                for statistic in (*STATISTICS, self.over):
                    head.append(f"{name} {statistic}")
            for line, cell in zip(lines, cells, strict=True):
                if has_spread:
                    line.extend(_statistics(cell))
                else:
                    line.append(cell)
        return csv_text([head, *lines])


def _has_deviation(cell: Cell, statistic: str) -> bool:
    """Whether a cell has a number over several seeds or repeats, with this statistic as centre."""
    if not isinstance(cell, Spread) or cell.deviation is None:
        return False
    return cell.statistic == statistic


def _markdown_line(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    line = " | ".join(escaped)
    return f"| {line} |\n"


def _statistics(cell: Cell) -> list[Cell]:
    """The values of a cell in five columns: its centre, STATISTICS and the count."""
    if not isinstance(cell, Spread):
        return [cell, None, None, None, None]
    return [
        cell.centre,
        cell.deviation,
        min(cell.values),
        max(cell.values),
        len(cell.values),
    ]


def shown(cell: Cell) -> str:
    """A cell for reading: three digits of a number, all digits of a whole number."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Spread):
        return _shown_spread(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    return _shown_number(cell)


def _shown_number(number: float) -> str:
    if not math.isfinite(number):
        return "not finite"
    if isinstance(number, Printed):
        return f"{number:,.10g}"
    if isinstance(number, Difference):
        return _shown_difference(number)
    if 0 < abs(number) < 1e-4:
        return _with_minus(f"{number:.2e}")
    digits = decimals(number)
    return _with_minus(f"{number:,.{digits}f}")


def _with_minus(text: str) -> str:
    """A number with a minus sign in place of a hyphen."""
    return text.replace("-", MINUS)


def _shown_difference(difference: Difference) -> str:
    digits = min(2, decimals(difference))
    text = f"{difference:+,.{digits}f}"
    is_zero = not text.strip("+-0.")
    if is_zero:
        return "0"
    return _with_minus(text)


def _shown_spread(spread: Spread) -> str:
    centre = shown(float(spread.centre))
    deviation = spread.deviation
    if deviation is None or not math.isfinite(deviation):
        return centre
    digits = decimals(spread.centre)
    if round(deviation, digits) == 0:
        needed = decimals(deviation, 1)
        digits = min(needed, 6)
    return f"{centre} ± {deviation:,.{digits}f}"


def decimals(value: float, digits: int = DIGITS) -> int:
    """How many decimals show this many digits of a number."""
    most = digits - 1
    rounded = f"{value:.{most}e}"
    size = abs(float(rounded))
    if size == 0:
        return most
    exponent = math.floor(math.log10(size))
    return max(0, most - exponent)


def sort_key(cell: Cell) -> str:
    """What a page sorts a cell by: all its digits; empty for an empty cell."""
    if cell is None:
        return ""
    if isinstance(cell, Spread):
        cell = cell.centre
    if isinstance(cell, float):
        return str(float(cell))  # without the class of a Printed
    return str(cell)


def difference(ours: float, papers: float | None) -> Difference | None:
    """Ours - the paper's; None if the paper prints no number."""
    if papers is None:
        return None
    return Difference(ours - papers)


def printed(value: float | None) -> Printed | None:
    """A paper's number; None if it prints none."""
    if value is None:
        return None
    return Printed(value)
