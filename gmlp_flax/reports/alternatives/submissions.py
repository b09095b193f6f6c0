"""Rows that others have added to the comparison of `gmlp reproduce alternatives`: a CSV file with a
line for each row.

A file may come from anybody, so every cell is checked before it is shown.
"""

import csv
import dataclasses
import io
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gmlp_flax.analysis.charts import csv_text
from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from gmlp_flax.paper.alternatives import ROWS
from gmlp_flax.paper.recipes import SCALES

MOST_BYTES = 1 << 20
MOST_ROWS = 1000


class _Word(NamedTuple):
    """What a cell with a word looks like, as a pattern and for messages."""

    pattern: str
    expected: str

    def matches(self, cell: str) -> bool:
        return re.fullmatch(self.pattern, cell) is not None


_HASH = _Word("[0-9a-f]{12}", "12 hexadecimal digits")
_WORDS = {
    "row": _Word(
        "[A-Za-z][A-Za-z0-9_.+-]{0,39}", "a letter, then letters, digits and _ . + -, at most 40"
    ),
    "scale": _Word("|".join(SCALES), f"one of {', '.join(SCALES)}"),
    "config": _HASH,
    "setting": _HASH,
    "commit": _Word("[0-9a-f]{40}(-changed)?|unknown", "a git commit, or unknown"),
    "version": _Word("[0-9][0-9A-Za-z.+-]{0,39}|unknown", "a version, or unknown"),
}
_LISTS = ("rates", "seeds", "perplexities")  # numbers with blanks between them
TOLERANCE = 1e-6  # of the median, relative


@dataclasses.dataclass(frozen=True)
class Submission:
    """A row of the comparison that somebody trained.

    Attributes:
        row: its name.
        scale: of the comparison.
        config: a hash of the config, without the seed and the paths of data.
        setting: a hash of what all rows must have in common: steps, batches, masks, text,
            tokenizer and evaluation.
        commit: the git commit of the code, "-changed" if files were changed; or "unknown".
        version: of the package.
        parameters: of the encoder.
        tokens: that each seed was trained on.
        rate: the peak learning rate of the runs.
        rates: all peak learning rates that were tried, the tuning budget.
        seeds: of the runs.
        perplexities: of masked tokens at the end, one for each seed.
        median: of these.
    """

    row: str
    scale: str
    config: str
    setting: str
    commit: str
    version: str
    parameters: int
    tokens: int
    rate: float
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    perplexities: tuple[float, ...]
    median: float

    def cells(self) -> list[str]:
        """Its cells, in the order of COLUMNS."""
        cells = []
        for name in COLUMNS:
            value = getattr(self, name)
            if name in _LISTS:
                cells.append(" ".join(map(repr, value)))
            else:
                cells.append(str(value))
        return cells


COLUMNS = tuple(field.name for field in dataclasses.fields(Submission))


def read(path: str) -> list[Submission]:
    """The rows of a file.

    Raises:
        DataError: it is not such a file, has too many rows, a malformed cell, a duplicate row, or a
            row that has the name of one of ours.
    """
    header, *lines = _read_lines(path)
    if tuple(header) != COLUMNS:
        columns = ",".join(COLUMNS)
        raise DataError(f"{path} has other columns than {columns}: {_EXPECTED}")
    count = len(lines)
    if count > MOST_ROWS:
        raise DataError(f"{path} has {count:,} rows: expected {MOST_ROWS:,} or fewer")
    submissions: dict[str, Submission] = {}
    for number, cells in enumerate(lines, start=2):
        where = f"{path}, line {number}"
        submission = _parse(cells, where)
        row = submission.row
        if row in submissions:
            raise DataError(f"{where}: the row {row} is there twice: remove one")
        submissions[row] = submission
    return list(submissions.values())


def _read_lines(path: str) -> list[list[str]]:
    """The cells of each line, at least one line; an empty file has one without cells."""
    content = files.read_small(path, MOST_BYTES)
    try:
        text = content.decode("utf-8-sig")  # spreadsheets write a byte order mark
        stream = io.StringIO(text, newline="")
        reader = csv.reader(stream, strict=True)
        lines = list(reader)
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8 ({error}): {_EXPECTED}") from None
    return lines or [[]]


_EXPECTED = "expected a file that gmlp reproduce alternatives --submit wrote"


def append(path: str, submission: Submission) -> None:
    """Adds a row to a file, which is made if it does not exist.

    Raises:
        DataError: the file is damaged, or has a row of this name.
        FileError: it cannot be written.
    """
    submissions = read(path) if files.exists(path) else []
    rows: list[Sequence[str]] = [COLUMNS]
    for known in submissions:
        if known.row == submission.row:
            raise DataError(
                f"{path} has a row {submission.row}: give another --name, or remove its line first"
            )
        rows.append(known.cells())
    rows.append(submission.cells())
    text = csv_text(rows)
    files.write(path, text.encode())


def check_name(name: str) -> None:
    """Raises DataError if a row may not have this name."""
    word = _WORDS["row"]
    if not word.matches(name):
        raise DataError(f"{name!r:.60} is not the name of a row: expected {word.expected}")
    if name in ROWS:
        raise DataError(f"{name} is a row of ours: give your row another name")


def _parse(cells: Sequence[str], where: str) -> Submission:
    """The submission in the cells of a line; raises DataError."""
    if len(cells) != len(COLUMNS):
        raise DataError(f"{where} has {len(cells)} cells: expected {len(COLUMNS)}")
    line = _Line(where, dict(zip(COLUMNS, cells, strict=True)))
    words = {name: line.word(name) for name in _WORDS}
    row = words["row"]
    if row in ROWS:
        raise DataError(f"{where}: {row} is a row of ours: give it another name")
    submission = Submission(
        **words,
        parameters=line.whole("parameters"),
        tokens=line.whole("tokens"),
        rate=line.number("rate"),
        rates=line.numbers("rates"),
        seeds=line.different("seeds"),
        perplexities=line.numbers("perplexities"),
        median=line.number("median"),
    )
    _check(submission, where)
    return submission


def _check(submission: Submission, where: str) -> None:
    """Raises DataError if the numbers of a row contradict each other."""
    perplexities = submission.perplexities
    seed_count = len(submission.seeds)
    if len(perplexities) != seed_count:
        raise DataError(
            f"{where}: there are {seed_count} seeds and {len(perplexities)} "
            "perplexities: expected one for each seed"
        )
    lowest = min(perplexities)
    if lowest < 1:
        raise DataError(f"{where}: a perplexity is {lowest}: expected at least 1")
    if submission.rate not in submission.rates:
        raise DataError(f"{where}: the rate {submission.rate} is not among the rates tried")
    median = statistics.median(perplexities)
    if not math.isclose(submission.median, median, rel_tol=TOLERANCE):
        raise DataError(
            f"{where}: the median is {submission.median}: its perplexities give {median}"
        )


class _Line(NamedTuple):
    """The cells of a line by their columns, and its place for messages. The methods read a cell, or
    raise DataError."""

    where: str
    cells: Mapping[str, str]

    def wrong(self, name: str, expected: str) -> DataError:
        cell = self.cells[name]
        return DataError(f"{self.where}: {name} is {cell!r:.60}: expected {expected}")

    def word(self, name: str) -> str:
        """One of _WORDS."""
        cell = self.cells[name]
        word = _WORDS[name]
        if not word.matches(cell):
            raise self.wrong(name, word.expected)
        return cell

    def whole(self, name: str) -> int:
        """A whole number above 0."""
        cell = self.cells[name]
        if not re.fullmatch("[1-9][0-9]{0,17}", cell):
            raise self.wrong(name, "a whole number above 0")
        return int(cell)

    def different(self, name: str) -> tuple[int, ...]:
        """Different whole numbers, one or more."""
        expected = "different whole numbers with blanks between them"
        numbers: dict[int, None] = {}  # in order
        cell = self.cells[name]
        for word in cell.split():
            if not re.fullmatch("[0-9]{1,10}", word):
                raise self.wrong(name, expected)
            number = int(word)
            if number in numbers:
                raise self.wrong(name, expected)
            numbers[number] = None
        if not numbers:
            raise self.wrong(name, expected)
        return tuple(numbers)

    def number(self, name: str) -> float:
        """A number above 0."""
        first, *others = self.numbers(name)
        if others:
            raise self.wrong(name, "one number")
        return first

    def numbers(self, name: str) -> tuple[float, ...]:
        """One or more finite numbers above 0."""
        expected = "numbers above 0 with blanks between them"
        values = []
        cell = self.cells[name]
        for word in cell.split():
            if not re.fullmatch(r"[0-9]{1,20}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,2})?", word):
                raise self.wrong(name, expected)
            value = float(word)
            if value <= 0 or not math.isfinite(value):
                raise self.wrong(name, expected)
            values.append(value)
        if not values:
            raise self.wrong(name, expected)
        return tuple(values)
