"""Random labelled tables, as pandas, the package datasets, Excel and scripts write them: what is
read is compared with what was written and, of .csv and .tsv, with what pandas reads (without it,
with a reading character by character). A table in no documented form must be refused."""

from __future__ import annotations

import bz2
import csv
import dataclasses
import gzip
import importlib.util
import io
import json
import lzma
import math
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gmlp_flax.data import rows as table_rows
from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.finetuning.text_tasks import custom_task
from gmlp_flax.data.readers import labelled_text
from gmlp_flax.data.splits import WORDS
from gmlp_flax.errors import DataError
from gmlp_flax.io.records import BadRecords
from tests.data import writers

PLAIN = [
    "good",
    "möchte",
    "映画",
    "it's",
    "x; y",
    "p|q",
    "🎬",
    "u\u0308ber",
    "\u2028",
    "\x85",
    "nan",
]
WORDS_OF_TEXTS = [*PLAIN, 'said "no"', '"quoted"', '"', "a, b", '5" nails', "\\N", "\ufeff", "=1+1"]
WORDS_WITH_BREAKS = [*WORDS_OF_TEXTS, "two\nlines", "a\ttab", "c\r\nd"]
# Kind of labels -> values to draw from.
LABELS: dict[str, list[Any]] = {
    "integers": [0, 1, -1, 10, 2**40],
    "words": ["neg", "pos", "so so", "007", "1.0", "nan"],
    "blanks": ["neg", " neg", "pos ", "\u00a0pos"],
    "floats": [0.0, 1.0, 0.5, 1e22],
    "gaps": [0.5, 1.0, math.nan],
    "booleans": [True, False],
    "missing": ["a", "b", "", " ", None],
    "forms": ["u\u0308ber", "\u00fcber", "x"],
    "joined": ["a", "b|c", "['a']", "b"],
    "capitals": ["Pos", "pos", "neg"],
    "lists": [["a"], ["a", "b"]],
}
NUMBERS = ("integers", "floats", "gaps")
SPLITS = ("Train", "dev", "TEST", "valid")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
COLUMNAR = (".parquet", ".arrow")
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}

Found = dict[str, list[tuple[str, Any, str]]]  # split -> text, class or number, and id of each row


@dataclasses.dataclass
class Table:
    """A table, and how it is written.

    Attributes:
        suffix: of its file, before that of its compression.
        kind: of its labels.
        rows: that are written.
        delimiter: between cells.
        quoting: of the library csv; None for cells that are joined as they are.
        line_end: of a table with cells.
        encoding: of the file.
        bad: the position of a row that cannot be used; None without one.
        as_numbers: whether the labels are numbers to predict.
    """

    suffix: str
    kind: str
    rows: list[dict[str, Any]]
    delimiter: str = ","
    quoting: int | None = csv.QUOTE_MINIMAL
    line_end: str = "\n"
    encoding: str = "utf-8"
    bad: int | None = None
    as_numbers: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether it is in no documented form."""
        if self.kind == "capitals" or self.encoding not in ("utf-8", "utf-8-sig"):
            return True
        if self.suffix in DELIMITERS:
            return self.delimiter != DELIMITERS[self.suffix]
        return self.kind == "lists"  # whose text is a label in a cell

    def lines(self) -> list[str]:
        """The header of cells, and all rows."""
        if self.suffix not in DELIMITERS:
            return [json.dumps(row, ensure_ascii=False) + "\n" for row in self.rows]
        header = list(self.rows[0])
        lines = [self.line(header)]
        for row in self.rows:
            cells = [cell_of(value) for value in row.values()]
            lines.append(self.line(cells))
        return lines

    def line(self, cells: list[str]) -> str:
        """A row of cells."""
        if self.quoting is None:
            return self.delimiter.join(cells) + self.line_end
        content = io.StringIO()
        writer = csv.writer(
            content, delimiter=self.delimiter, quoting=self.quoting, lineterminator=self.line_end
        )
        writer.writerow(cells)
        return content.getvalue()

    def expected(self) -> Found:
        """What must be read."""
        found: Found = {}
        for position, row in enumerate(self.rows):
            split = WORDS[row["split"].lower()] if "split" in row else ""
            label = self.label(row["label"])
            is_behind = self.bad is not None and position >= self.bad
            found.setdefault(split, [])
            if label is not None:
                own_id = str(position + is_behind)
                found[split].append((row["text"].strip(), label, own_id))
        return found

    def label(self, value: Any) -> Any:
        """The class or the number that a label stands for; None without one."""
        text = cell_of(value)
        if text and not isinstance(value, str) and self.suffix not in DELIMITERS:
            text = json.dumps(value)
        text = unicodedata.normalize("NFC", text).strip()
        if not text:
            return None
        return float(np.float32(text)) if self.as_numbers else text


def cell_of(value: Any) -> str:
    """A value as pandas writes it into a cell."""
    return "" if value is None or value != value else str(value)


def make(folder: Path) -> Callable[[random.Random], None]:
    def check(rng: random.Random) -> None:
        table = draw(rng)
        path = write(folder, table, rng)
        try:
            found = read(path, table)
        except DataError as error:
            assert "\n" not in str(error)
            assert table.is_refused, error
            raise
        assert not table.is_refused
        assert found == table.expected()
        if table.suffix in DELIMITERS and table.bad is None:
            compare_cells(path, table)

    return check


def draw(rng: random.Random) -> Table:
    """A table."""
    suffix = rng.choice([".csv", ".csv", ".tsv", ".tsv", ".jsonl", ".parquet", ".arrow"])
    kind = rng.choice(list(LABELS))
    table = Table(suffix, kind, [])
    words = WORDS_WITH_BREAKS
    if suffix in DELIMITERS:
        table.delimiter = rng.choice([DELIMITERS[suffix]] * 9 + [";"])
        table.line_end = rng.choice(["\n", "\r\n"])
        table.quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC, None])
    if table.quoting is None:
        words = PLAIN
    if suffix not in COLUMNAR:
        table.encoding = rng.choice(["utf-8"] * 9 + ["utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
    if table.encoding == "latin-1":
        words = ["café"]
    table.rows = draw_rows(rng, kind, words, table.quoting is None)
    if suffix not in COLUMNAR and rng.random() < 0.2:
        table.bad = rng.randrange(len(table.rows) + 1)
    table.as_numbers = kind in NUMBERS and rng.random() < 0.5
    return table


def draw_rows(
    rng: random.Random, kind: str, words: list[str], are_plain: bool
) -> list[dict[str, Any]]:
    """Rows with text and label, and perhaps other columns, in any order; in each split all labels
    occur."""
    other = "x y" if are_plain else 'the "x", y'
    columns = ["text", "label", *rng.sample(["number", "split", other], rng.randrange(3))]
    rng.shuffle(columns)
    values = LABELS[kind] * len(SPLITS)
    if kind == "lists" and are_plain:
        values = [str(value).replace(", ", "+") for value in values]
    rows = []
    for position, label in enumerate(values + rng.choices(values, k=rng.randrange(20))):
        text = " ".join(rng.choices(words, k=rng.randrange(1, 5)))
        row = {
            "text": f"{text} {position}",
            "label": label,
            "number": position / 4,
            "split": SPLITS[position // len(LABELS[kind]) % len(SPLITS)],
            other: rng.choice(words),
        }
        rows.append({name: row[name] for name in columns})
    return rows


def write(folder: Path, table: Table, rng: random.Random) -> Path:
    """Writes a table, perhaps compressed."""
    path = folder / f"table{table.suffix}"
    if table.suffix == ".parquet":
        rows_of_group = rng.choice([1, 7, 99])
        arrow_table = pa.Table.from_pylist(table.rows)
        pq.write_table(arrow_table, path, row_group_size=rows_of_group)
        return path
    if table.suffix == ".arrow":
        new = rng.choice([pa.ipc.new_stream, pa.ipc.new_file])
        rows_of_batch = rng.choice([1, 7, None])
        arrow_table = pa.Table.from_pylist(table.rows)
        writers.arrow(path, arrow_table, new, rows=rows_of_batch)
        return path
    lines = table.lines()
    if table.bad is not None:
        if table.suffix in DELIMITERS:
            lines.insert(table.bad + 1, "one cell\n")
        else:
            lines.insert(table.bad, '{"text": 3\n')
    packing = rng.choice(list(PACKERS))
    content = "".join(lines).encode(table.encoding, "replace")
    path = folder / f"table{table.suffix}{packing}"
    path.write_bytes(PACKERS[packing](content))
    return path


def read(path: Path, table: Table) -> Found:
    """What is read; one bad row is allowed."""
    task = custom_task(("text",), "label", numbers=table.as_numbers)
    splits = labelled_text.read(str(path), task, BadRecords(1))
    found: Found = {}
    for split, dataset in splits.items():
        rows = zip(texts_of(dataset), labels_of(dataset), ids_of(dataset), strict=True)
        found[split] = list(rows)
    return found


def texts_of(dataset: Dataset) -> list[str]:
    return [row.texts[0] for row in dataset.examples.rows]


def labels_of(dataset: Dataset) -> list[Any]:
    labels = dataset.labels.tolist()
    if not dataset.classes:
        return labels
    return [dataset.classes[label] for label in labels]


def ids_of(dataset: Dataset) -> list[str]:
    return [row.id for row in dataset.examples.rows]


def compare_cells(path: Path, table: Table) -> None:
    """Compares all cells with those that another program reads."""
    text = "".join(table.lines())
    header, *rows = read_cells(text, table.delimiter)
    expected = [dict(zip(header, cells, strict=True)) for cells in rows]
    found = [entry.row for entry in table_rows.read_rows(str(path))]
    assert found == expected


def read_cells(text: str, delimiter: str) -> list[list[str]]:
    """The cells of a quoted table; by pandas, if it is installed."""
    if importlib.util.find_spec("pandas") is None:
        return slow_cells(text, delimiter)
    import pandas  # type: ignore[reportMissingImports] - by hand

    table = pandas.read_csv(
        io.StringIO(text, newline=""), sep=delimiter, header=None, dtype=str, keep_default_na=False
    )
    return table.to_numpy().tolist()


def slow_cells(text: str, delimiter: str) -> list[list[str]]:
    """The cells of a quoted table, character by character."""
    rows = []
    row = []
    cell = ""
    is_quoted = False
    is_inside = False
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if is_inside:
            if character != '"':
                cell += character
            elif text[position : position + 1] == '"':
                cell += character
                position += 1
            else:
                is_inside = False
        elif character == '"' and not cell and not is_quoted:
            is_quoted = True
            is_inside = True
        elif character in (delimiter, "\n"):
            row.append(cell if is_quoted else cell.removesuffix("\r"))
            cell = ""
            is_quoted = False
            if character == "\n":
                rows.append(row)
                row = []
        elif character != "\r" or not is_quoted:
            cell += character
    return rows
