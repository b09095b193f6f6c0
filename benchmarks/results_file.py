"""The CSV files of `gmlp benchmark --csv`: measured rows, each with its machine."""

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

from gmlp_flax.analysis.charts import csv_text
from gmlp_flax.benchmarks.machine import Machine
from gmlp_flax.errors import DataError
from gmlp_flax.io import files

MEASURED = ("part", "name", "median", "min", "max", "unit", "goal", "verdict")
COLUMNS = (*MEASURED, "processor", "cores", "instructions", "software", "date", "idle")
KEY = ("part", "name", "processor")  # a row replaces an older one that has the same

Line = Mapping[str, str]


@dataclasses.dataclass
class ResultsFile:
    """A file that rows are added to.

    Attributes:
        path: of the file, which may not exist yet.
        lines: those in it, by the columns of KEY.
    """

    path: str
    lines: dict[tuple[str, ...], Line]

    @classmethod
    def open(cls, path: str) -> "ResultsFile":
        """The file with the lines that it has. It is written at once, so that a path that cannot be
        written costs no measurement.

        Raises:
            DataError: it is not such a file.
            FileError: it cannot be written.
        """
        lines = {}
        if files.exists(path):
            for line in read(path):
                lines[_key(line)] = line
        opened = cls(path, lines)
        opened.write()
        return opened

    def add(self, entry: Mapping[str, Any], machine: Machine) -> None:
        """Adds a row, or replaces that of the same machine, and writes the file.

        Args:
            entry: what `timing.row` returns, with its part.
            machine: what it was measured on.
        """
        cells = dict(entry) | machine.columns()
        for name in ("median", "min", "max"):
            cells[name] = f"{entry[name]:.4g}"
        line = {name: str(cells[name]) for name in COLUMNS}
        self.lines[_key(line)] = line
        self.write()

    def write(self) -> None:
        """Writes all lines."""
        rows: list[Sequence[str]] = [COLUMNS]
        for kept in self.lines.values():
            rows.append([kept[name] for name in COLUMNS])
        files.write(self.path, csv_text(rows).encode())


def _key(line: Line) -> tuple[str, ...]:
    return tuple(line[name] for name in KEY)


def read(path: str) -> Sequence[Line]:
    """The lines of such a file.

    Raises:
        DataError: it has other columns.
    """
    text = files.read_small(path).decode("utf-8", "replace")
    reader = csv.DictReader(io.StringIO(text))
    columns = tuple(reader.fieldnames or ())
    if columns != COLUMNS:
        expected = ", ".join(COLUMNS)
        raise DataError(
            f"{path} is not a file of gmlp benchmark --csv: expected the columns {expected}"
        )
    lines = list(reader)
    for number, line in enumerate(lines, start=2):
        if None in line or None in line.values():
            raise DataError(f"{path}, line {number}: expected {len(COLUMNS)} cells")
    return lines
