"""Rows that others have added to the comparison of `gmlp reproduce alternatives`: a CSV file with a
line for each row.

A file may come from anybody, so that every cell is checked before it is shown.
"""

import csv
import dataclasses
import io
import math
import re
import statistics
from collections.abc import Mapping, Sequence

from gmlp_flax.analysis.charts import csv_text
from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from gmlp_flax.paper.alternatives import ROWS
from gmlp_flax.paper.recipes import SCALES

MOST_BYTES = 1 << 20
MOST_ROWS = 1000
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]{0,39}")
_WORDS = {  # column -> what its cells look like, and an example for messages
    "row": (NAME, "a letter, then letters, digits and _ . + -, at most 40"),
    "scale": (re.compile("|".join(SCALES)), f"one of {', '.join(SCALES)}"),
    "config": (re.compile("[0-9a-f]{12}"), "12 hexadecimal digits"),
    "setting": (re.compile("[0-9a-f]{12}"), "12 hexadecimal digits"),
    "commit": (re.compile("[0-9a-f]{40}(-changed)?|unknown"), "a git commit, or unknown"),
    "version": (re.compile(r"[0-9][0-9A-Za-z.+-]{0,39}|unknown"), "a version, or unknown"),
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
        DataError: it is not such a file, has too many rows, a cell that is not as it must be, a
            row twice, or a row that has the name of one of ours.
    """
    content = files.read_small(path, MOST_BYTES)
    try:
        text = content.decode("utf-8")
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path} is no CSV file in UTF-8 ({error}): {_EXPECTED}") from None
    if not lines or tuple(lines[0]) != COLUMNS:
        raise DataError(f"{path} has other columns than {','.join(COLUMNS)}: {_EXPECTED}")
    if len(lines) - 1 > MOST_ROWS:
        raise DataError(f"{path} has {len(lines) - 1:,} rows: expected {MOST_ROWS:,} or fewer")
    submissions: dict[str, Submission] = {}
    for number, cells in enumerate(lines[1:], start=2):
        where = f"{path}, line {number}"
        submission = _parse(cells, where)
        if submission.row in submissions:
            raise DataError(f"{where}: the row {submission.row} is there twice: remove one")
        submissions[submission.row] = submission
    return list(submissions.values())


_EXPECTED = "expected a file that gmlp reproduce alternatives --submit wrote"


def append(path: str, submission: Submission) -> None:
    """Adds a row to a file, which is made if it does not exist.

    Raises:
        DataError: the file is damaged, or has a row of this name.
        FileError: it cannot be written.
    """
    submissions = read(path) if files.exists(path) else []
    if any(known.row == submission.row for known in submissions):
        raise DataError(
            f"{path} has a row {submission.row}: give another --name, or remove its line first"
        )
    rows: list[Sequence[str]] = [COLUMNS]
    for known in (*submissions, submission):
        rows.append(known.cells())
    files.write(path, csv_text(rows).encode())


def check_name(name: str) -> None:
    """Raises DataError if a row may not have this name."""
    if not NAME.fullmatch(name):
        _, expected = _WORDS["row"]
        raise DataError(f"{name!r:.60} is no name of a row: expected {expected}")
    if name in ROWS:
        raise DataError(f"{name} is a row of ours: give your row another name")


def _parse(cells: Sequence[str], where: str) -> Submission:
    """The submission in the cells of a line; raises DataError."""
    if len(cells) != len(COLUMNS):
        raise DataError(f"{where} has {len(cells)} cells: expected {len(COLUMNS)}")
    by_name = dict(zip(COLUMNS, cells, strict=True))
    for name, (pattern, expected) in _WORDS.items():
        if not pattern.fullmatch(by_name[name]):
            raise _wrong(where, name, by_name, expected)
    if by_name["row"] in ROWS:
        raise DataError(f"{where}: {by_name['row']} is a row of ours: give it another name")
    submission = Submission(
        row=by_name["row"],
        scale=by_name["scale"],
        config=by_name["config"],
        setting=by_name["setting"],
        commit=by_name["commit"],
        version=by_name["version"],
        parameters=_whole(by_name, "parameters", where),
        tokens=_whole(by_name, "tokens", where),
        rate=_number(by_name, "rate", where),
        rates=_numbers(by_name, "rates", where),
        seeds=_seeds(by_name, where),
        perplexities=_numbers(by_name, "perplexities", where),
        median=_number(by_name, "median", where),
    )
    _check(submission, where)
    return submission


def _check(submission: Submission, where: str) -> None:
    """Raises DataError if the numbers of a row contradict each other."""
    perplexities = submission.perplexities
    if len(perplexities) != len(submission.seeds):
        raise DataError(
            f"{where}: there are {len(submission.seeds)} seeds and {len(perplexities)} "
            "perplexities: expected one for each seed"
        )
    if min(perplexities) < 1:
        raise DataError(f"{where}: a perplexity is {min(perplexities)}: expected at least 1")
    if submission.rate not in submission.rates:
        raise DataError(f"{where}: the rate {submission.rate} is not among the rates tried")
    median = statistics.median(perplexities)
    if not math.isclose(submission.median, median, rel_tol=TOLERANCE):
        raise DataError(
            f"{where}: the median is {submission.median}: its perplexities give {median}"
        )


def _wrong(where: str, name: str, cells: Mapping[str, str], expected: str) -> DataError:
    return DataError(f"{where}: {name} is {cells[name]!r:.60}: expected {expected}")


def _whole(cells: Mapping[str, str], name: str, where: str) -> int:
    """A whole number above 0."""
    if not re.fullmatch("[1-9][0-9]{0,17}", cells[name]):
        raise _wrong(where, name, cells, "a whole number above 0")
    return int(cells[name])


def _seeds(cells: Mapping[str, str], where: str) -> tuple[int, ...]:
    """Different whole numbers."""
    words = cells["seeds"].split()
    are_whole = all(re.fullmatch("[0-9]{1,10}", word) for word in words)
    seeds = tuple(map(int, words)) if are_whole else ()
    if not seeds or len(set(seeds)) < len(seeds):
        raise _wrong(where, "seeds", cells, "different whole numbers with blanks between them")
    return seeds


def _number(cells: Mapping[str, str], name: str, where: str) -> float:
    """A number above 0."""
    first, *others = _numbers(cells, name, where)
    if others:
        raise _wrong(where, name, cells, "one number")
    return first


def _numbers(cells: Mapping[str, str], name: str, where: str) -> tuple[float, ...]:
    """One or more finite numbers above 0."""
    values = []
    for word in cells[name].split():
        if not re.fullmatch(r"[0-9]{1,20}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,2})?", word):
            raise _wrong(where, name, cells, "numbers above 0 with blanks between them")
        values.append(float(word))
    if not values or min(values) <= 0 or not math.isfinite(max(values)):
        raise _wrong(where, name, cells, "numbers above 0 with blanks between them")
    return tuple(values)
