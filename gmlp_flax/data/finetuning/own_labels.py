"""Classes of labelled text of the user's own: which values of a column are classes, and which are refused."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any

from gmlp_flax.errors import DataError

MOST_LABELS = 1000  # a column with more values than these does not hold classes
MISSING = ("", "nan", "NaN", "<NA>", "#N/A", "NaT")  # what pandas and Excel write for a cell without a value
_PERHAPS_MISSING = ("none", "null", "na", "n/a", "-", "?", "-1")  # or classes
_WHOLE = re.compile(r"([+-]?\d{1,18})\.0*")
_NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?")
_JOINTS = re.compile(r"\s*[|;,+/]\s*")


def class_name(value: Any) -> str:
    """The name of a class: in NFC, without blanks around it, and 1 for 1.0, which pandas writes if cells are empty."""
    name = unicodedata.normalize("NFC", str(value)).strip()
    whole = _WHOLE.fullmatch(name)
    return str(int(whole[1])) if whole else name


def classes(values: Mapping[str, int], column: str) -> tuple[tuple[str, ...], list[str]]:
    """The classes of a column: numbers by size, then words by letters; and a line for each assumption about them.

    Args:
        values: each value of the column in the training data -> its number of rows.
        column: its name, for messages.

    Raises:
        DataError: the values are no classes, a class has a single row, or two are the same but for their spelling.
    """
    counts: Counter[str] = Counter()
    for value, rows in values.items():
        counts[class_name(value)] += rows
    _refuse(counts, f"in the column of labels, {column!r}")
    notes = []
    if changed := [value for value in values if value != class_name(value)]:
        listed = ", ".join(f"{value!a} as {class_name(value)!r}" for value in changed[:3])
        notes.append(f"{sum(values[value] for value in changed):,} labels are read in another form: {listed}")
    parts = Counter(part for name in counts for part in _JOINTS.split(name))
    joined = [name for name in counts if any(parts[part] > 1 for part in _JOINTS.split(name) if part != name)]
    missing = [name for name in counts if name.lower() in _PERHAPS_MISSING]
    for names, meaning in ((joined, "several labels, which are not offered"), (missing, "no label: empty their cells")):
        if names:
            listed = ", ".join(f"{name[:60]!r} ({counts[name]:,} rows)" for name in names[:3])
            notes.append(f"{listed}, taken as {len(names)} classes, may mean {meaning}")
    numbers = {name: int(name) for name in counts if re.fullmatch(r"-?\d{1,18}", name)}
    return tuple(sorted(counts, key=lambda name: (name not in numbers, numbers.get(name, 0), name))), notes


def _refuse(counts: Counter[str], where: str) -> None:
    total, single = sum(counts.values()), sorted(name for name, rows in counts.items() if rows < 2)
    scores = [name for name in counts if not re.fullmatch(r"[+-]?\d+", name)]
    if scores and all(map(_NUMBER.fullmatch, counts)):
        advice = "expected classes; to predict numbers give --config=finetune_glue:own_number"
        raise DataError(f"real numbers such as {scores[0]!r} {where}: {advice}")
    if not 2 <= len(counts) <= MOST_LABELS or len(counts) == total:
        raise DataError(f"{len(counts)} different values in {total} rows {where}: expected 2 to {MOST_LABELS} classes")
    if single:
        more = f", as have {len(single) - 1} more classes" if len(single) > 1 else ""
        raise DataError(f"one row of the class {single[0][:60]!r}{more} {where}: add another, or remove it")
    spelled: dict[str, str] = {}
    for name in counts:
        bare = " ".join(unicodedata.normalize("NFKC", name).casefold().replace("\u200b", "").split())
        if (other := spelled.setdefault(bare, name)) != name:
            raise DataError(
                f"two labels, {other!r} ({counts[other]} rows) and {name!r} ({counts[name]}), {where}, that differ "
                "only in capitals, blanks or forms of characters: write them alike"
            )
