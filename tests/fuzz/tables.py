"""Random labelled tables, as pandas, Excel and scripts write them: the texts and labels that are
read are compared with those written and, if pandas is installed, with what it reads. A table that
can be read in two ways may be refused."""

from __future__ import annotations

import collections
import csv
import importlib.util
import io
import math

from gmlp_flax.data.finetuning.glue import own_task
from gmlp_flax.data.finetuning.sentences import UNLABELLED, open_sentences
from gmlp_flax.data.splits import Side
from gmlp_flax.errors import DataError
from gmlp_flax.io.records import BadRecords

WORDS = [
    "good",
    "möchte",
    "cafés",
    "映画",
    "🎬",
    'said "no"',
    '"quoted"',
    '"',
    "a, b",
    "x; y",
    "it's",
    '5" nails',
    "p|q",
]
BREAKS = ["two\nlines", "a\ttab"]
# Kind of labels -> values to draw from, and what each is read as; None: the table must be refused,
# "": no label.
LABELS = {
    "integers": {0: "0", 1: "1", -1: "-1", 10: "10"},
    "words": {"neg": "neg", "pos": "pos", "so so": "so so"},
    "blanks": {"neg": "neg", " neg": "neg", "pos ": "pos"},
    "floats": {0.0: "0", 1.0: "1", math.nan: ""},
    "booleans": {True: "True", False: "False"},
    "joined": {"a": "a", "b|c": "b|c", "b": "b"},
    "forms": {"u\u0308ber": "\u00fcber", "\u00fcber": "\u00fcber", "x": "x"},
    "scores": {0.5: None, 2.25: None, 5.0: None},
    "capitals": {"Pos": None, "pos": None, "neg": None},
    "lists": {"['a', 'b']": None, "['a']": None},
}
REFUSED = {"scores", "capitals", "lists"}
ENCODINGS = ("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1", "utf-16-le")


def read_table(text: str, delimiter: str) -> list[list[str]]:
    """The cells of a quoted table, character by character; by pandas if it is installed."""
    if importlib.util.find_spec("pandas"):
        import pandas  # type: ignore[reportMissingImports] - by hand

        options = dict(
            sep=delimiter, header=None, dtype=str, keep_default_na=False, lineterminator="\n"
        )
        return pandas.read_csv(io.StringIO(text), **options).to_numpy().tolist()
    rows, row, cell, inside, at = [], [], "", False, 0
    while at < len(text):
        char, at = text[at], at + 1
        if inside and char == '"' and text[at : at + 1] == '"':
            cell, at = cell + char, at + 1
        elif char == '"' and (inside or not cell):
            inside = not inside
        elif not inside and char in (delimiter, "\n"):
            row, cell = [*row, cell], ""
            if char == "\n":
                rows, row = [*rows, row], []
        else:
            cell += char
    return rows


def make(folder):
    def check(rng):
        delimiter, suffix = rng.choice(
            [(",", "csv"), (";", "csv"), ("\t", "csv"), *[("\t", "tsv")] * 4, (",", "txt")]
        )
        kind = rng.choice(list(LABELS))
        encoding = rng.choice(ENCODINGS[:5] if kind == "forms" else ENCODINGS)
        quoting = rng.choice(
            [csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC, None]
        )
        quoting = quoting if delimiter == "\t" else quoting or csv.QUOTE_MINIMAL
        pool = WORDS + BREAKS * (quoting is not None)
        if encoding == "latin-1":
            pool = ["café", "Größe", *(word for word in WORDS if word.isascii())]
        values = [
            *LABELS[kind],
            *LABELS[kind],
            *rng.choices(list(LABELS[kind]), k=rng.randrange(2, 30)),
        ]
        rng.shuffle(values)
        texts = [" ".join(rng.choices(pool, k=rng.randrange(1, 5))).strip() for _ in values]
        columns = {
            "text": texts,
            "label": values,
            "n": [number / 4 for number in range(len(texts))],
        }
        names = rng.sample(list(columns), 3)
        rows = [names, *zip(*(columns[name] for name in names), strict=True)]
        content = _write(rows, delimiter, quoting)
        path = folder / f"table.{suffix}"
        path.write_bytes(content.encode(encoding))
        _compare(
            path,
            texts,
            [LABELS[kind][value] for value in values],
            kind,
            encoding,
            quoting,
            content,
            delimiter,
        )

    return check


def _write(rows, delimiter, quoting):
    shown = [["" if value != value else value for value in row] for row in rows]
    if quoting is None:
        return "".join(delimiter.join(map(str, row)) + "\n" for row in shown)
    table = io.StringIO()
    csv.writer(table, delimiter=delimiter, quoting=quoting, lineterminator="\n").writerows(shown)
    return table.getvalue()


def _compare(path, texts, labels, kind, encoding, quoting, content, delimiter):
    task, bad = own_task(("text",), "label"), BadRecords()
    try:
        found = open_sentences(str(path), task, Side("train"), bad)
    except DataError as error:
        assert "\n" not in str(error)
        undecodable = encoding.startswith("utf-16") or (
            encoding == "latin-1" and not content.isascii()
        )
        two_ways = delimiter == "\t" and "two ways" in str(error)
        lost = quoting is None and any(text.startswith('"') for text in texts)
        few = min(collections.Counter(labels).values()) < 2 or len({*labels} - {""}) < 2
        assert undecodable or kind in REFUSED or two_ways or lost or few, error
        if two_ways and quoting is not None:
            assert any("\t" in text and "\n" in text for text in texts), error
        raise
    assert kind not in REFUSED
    wanted = [(text, label) for text, label in zip(texts, labels, strict=True) if label]
    assert found.dropped == len(texts) - len(wanted) and UNLABELLED not in found.labels
    assert [
        (text, found.names[label]) for (text,), label in zip(found.texts, found.labels, strict=True)
    ] == wanted
    if quoting is not None:
        header, *rows = read_table(content, delimiter)
        theirs = [row[header.index("text")].strip() for row in rows if row[header.index("label")]]
        assert theirs == [text for (text,) in found.texts]
