"""Labelled text in memory, and what becomes of rows."""

import math
import pickle
from decimal import Decimal

import numpy as np
import pytest

from gmlp_flax.data import text_rows
from gmlp_flax.data.classes import UNLABELLED
from gmlp_flax.data.finetuning.text_tasks import CLASS_TASKS, NUMBER_TASKS, TextTask, custom_task
from gmlp_flax.data.holdout import HELDOUT
from gmlp_flax.data.rows import Located
from gmlp_flax.data.text_rows import Columns, Labels, Reading, TextRow, TextRows
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord, BadRecords
from tests.failures import failure, raised

OWN = custom_task(("text",), "label")
PAIR = custom_task(("a", "b"), "label")
NUMBERS = custom_task(("text",), "label", numbers=True)
COLUMNS = Columns(("text",), "label")


def located(*rows: dict | BadRecord) -> list[Located]:
    return [Located(f"a.csv, line {number}", row) for number, row in enumerate(rows)]


def finished(reading: Reading, declared=(), split: str = "train"):
    return reading.finish("a form", split, [File("/a.csv", "a.csv", 1, "1")], declared)


def read(rows, task: TextTask = OWN, columns: Columns = COLUMNS, bad=None, **options):
    reading = Reading("a.csv", task, bad or BadRecords())
    reading.add(located(*rows), columns)
    return finished(reading, **options)


def texts_of(dataset) -> list[tuple[str, ...]]:
    return [row.texts for row in dataset.examples.rows]


@pytest.mark.smoke
def test_a_data_set_of_rows():
    rows = [{"text": " fine \n", "label": "pos "}, {"text": "dull", "label": "neg"}]
    dataset = read(rows)
    assert dataset.examples.rows == [TextRow(("fine",), "0"), TextRow(("dull",), "1")]
    assert dataset.classes == ("neg", "pos")
    assert dataset.labels.tolist() == [1, 0]
    assert dataset.labels.dtype == np.int32
    assert dataset.path == "a.csv"
    assert dataset.form == "a form"
    assert dataset.split == "train"
    assert dataset.columns == ("text", "label")
    assert [file.name for file in dataset.files] == ["a.csv"]
    assert dataset.notes == ()
    assert not dataset.stratified


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("pos", "pos"),
        (" pos\t", "pos"),
        ("u\u0308", "ü"),
        ("007", "007"),
        ("1.0", "1.0"),
        ("nan", "nan"),
        ("-1", "-1"),
        (1, "1"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (1e22, "1e+22"),
        (2**70, str(2**70)),
        (True, "true"),
        (Decimal("1.50"), "1.50"),
        ("", None),
        (" \u00a0", None),
        (None, None),
        (math.nan, None),
    ],
)
def test_a_label_is_its_text(value, expected):
    assert Labels(OWN).read(value, "label") == expected


@pytest.mark.parametrize("value", [["pos"], [], {"a": 1}, b"pos", (1, 2), math])
@pytest.mark.parametrize("task", [OWN, NUMBERS, CLASS_TASKS["sst2"]])
def test_values_that_are_no_label(value, task):
    raised(BadRecord, Labels(task).read, value, "label")


@pytest.mark.parametrize(
    ("task", "value", "expected"),
    [
        ("sst2", "positive", "positive"),
        ("sst2", "1", "positive"),
        ("sst2", 0, "negative"),
        ("sst2", 1.0, "positive"),
        ("sst2", "-1", None),
        ("sst2", -1.0, None),
        ("sst2", "", None),
        ("snli", "-", None),
        ("mnli", 2, "contradiction"),
        ("listops", "9", "9"),
        ("listops", 0, "0"),
        ("retrieval", "1.0", "1"),
        ("retrieval", "0.0", "0"),
        ("retrieval", 0.0, "0"),
    ],
)
def test_labels_of_published_tasks(task, value, expected):
    assert Labels(CLASS_TASKS[task]).read(value, "label") == expected


@pytest.mark.parametrize(
    ("task", "value"),
    [
        ("sst2", "good"),
        ("sst2", "Positive"),
        ("sst2", 2),
        ("sst2", -2),
        ("sst2", True),
        ("sst2", "1.00"),
        ("retrieval", "2"),
        ("listops", "10"),
    ],
)
def test_labels_that_a_published_task_does_not_have(task, value):
    message = raised(BadRecord, Labels(CLASS_TASKS[task]).read, value, "score")
    assert "'score'" in message
    assert repr(CLASS_TASKS[task].labels[0]) in message


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1.5", 1.5),
        (" -2e3 ", -2000.0),
        (3, 3.0),
        (0.1, 0.1),
        (Decimal("2.25"), 2.25),
        ("", None),
        (None, None),
        (math.nan, None),
    ],
)
def test_numbers(value, expected):
    assert Labels(NUMBERS).read(value, "label") == expected


@pytest.mark.parametrize(
    "value",
    ["1,5", "1.2.3", "1_000", "nan", "inf", "1e39", "-1e39", "0x10", "five", True, "x" * 99],
)
def test_what_is_no_number(value):
    message = raised(BadRecord, Labels(NUMBERS).read, value, "label")
    assert str(value).lower()[:40] in message
    assert len(message) < 200


def test_numbers_of_a_published_task():
    labels = Labels(NUMBER_TASKS["stsb"])
    assert labels.read("5.000", "score") == 5.0
    assert labels.read(0, "score") == 0.0
    assert labels.read(-1.0, "score") is None
    assert labels.read("-1", "score") is None
    assert "from 0 to 5" in raised(BadRecord, labels.read, "5.01", "score")


def test_rows_without_a_label_are_left_out_and_counted():
    """Unless no row has one, as in a test set."""
    values = ["a", "", None, "b", " "]
    rows = [{"text": f"text {i}", "label": value} for i, value in enumerate(values)]
    dataset = read(rows)
    assert [row.id for row in dataset.examples.rows] == ["0", "3"]
    assert dataset.labels.tolist() == [0, 1]
    (note,) = dataset.notes
    assert "3 rows" in note
    unlabelled = read(rows[1:3])
    assert unlabelled.labels.tolist() == [UNLABELLED, UNLABELLED]
    assert unlabelled.labels.dtype == np.int32
    assert unlabelled.classes == ()
    assert read(rows[1:3], declared=["b ", "a"]).classes == ("b", "a")
    assert unlabelled.notes == ()


def test_numbers_as_labels():
    rows = [{"text": "a", "label": "0.5"}, {"text": "b", "label": ""}, {"text": "c", "label": 2}]
    dataset = read(rows, NUMBERS)
    assert dataset.labels.tolist() == [0.5, 2.0]
    assert dataset.labels.dtype == np.float32
    assert dataset.classes == ()
    test_set = read(rows[1:2], NUMBERS)
    assert np.isnan(test_set.labels).tolist() == [True]


def test_declared_classes_keep_their_order():
    rows = [{"text": "a", "label": "pos"}, {"text": "b", "label": "u\u0308"}]
    dataset = read(rows, declared=["ü ", "pos", "other"])
    assert dataset.classes == ("ü", "pos", "other")
    assert dataset.labels.tolist() == [1, 0]
    assert "'pos'" in failure(read, rows, declared=["u\u0308", "neg"])
    assert "'pos'" in failure(read, rows, declared=["ü", "pos", "pos "])


def test_bad_rows_are_counted_and_keep_the_positions_of_the_others():
    rows = [
        {"text": "a", "label": "x"},
        BadRecord("no row"),
        {"text": "", "label": "x"},
        {"text": "b", "label": ["x"]},
        {"text": "c", "label": "y"},
    ]
    bad = BadRecords(3)
    dataset = read(rows, bad=bad)
    assert [row.id for row in dataset.examples.rows] == ["0", "4"]
    assert bad.count == 3
    assert [message.partition(": ")[0] for message in bad.first] == [
        "a.csv, line 1",
        "a.csv, line 2",
        "a.csv, line 3",
    ]
    assert "a.csv, line 3" in failure(read, rows, bad=BadRecords(2))


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"label": "x"}, "'text'"),
        ({"text": None, "label": "x"}, "null"),
        ({"text": 3, "label": "x"}, "int 3"),
        ({"text": ["a"], "label": "x"}, "list ['a']"),
        ({"text": b"\xff", "label": "x"}, "bytes"),
        ({"text": " \n\u2003", "label": "x"}, "is empty"),
        ({"text": "a"}, "'label'"),
        ({"text": "a", "Label": "x"}, "'Label'"),
    ],
)
def test_rows_that_cannot_be_used(row, key):
    message = failure(read, [row])
    assert message.startswith("a.csv, line 0: ")
    assert key in message


def test_nothing_to_read():
    for rows in ([], [{"text": "", "label": "x"}]):
        message = failure(read, rows, bad=BadRecords(1), split="dev")
        assert "'a.csv'" in message
        assert "'dev'" in message


def test_positions_of_several_files():
    """Rows without an id are called by their position in all files of the split."""
    reading = Reading("folder", OWN, BadRecords(1), note="a note")
    first = [{"text": "a", "label": "x"}, BadRecord("no row")]
    second = [{"text": "b", "label": "y"}]
    reading.add(located(*first), COLUMNS)
    reading.add(located(*second), COLUMNS)
    assert reading.seen == 3
    dataset = finished(reading)
    assert [row.id for row in dataset.examples.rows] == ["0", "2"]
    assert dataset.notes == ("a note",)


def test_rows_with_given_positions():
    reading = Reading("a.csv", OWN, BadRecords())
    first, second = located({"text": "a", "label": "x"}, {"text": "b", "label": "y"})
    reading.add_numbered([(3, first), (7, second)], COLUMNS)
    rows = finished(reading).examples.rows
    assert rows == [TextRow(("a",), "3"), TextRow(("b",), "7")]


def test_ids():
    columns = Columns(("text",), "label", "id")
    rows = [{"text": "a", "label": "x", "id": name} for name in ("q1", 7, 2.5)]
    got = [row.id for row in read(rows, columns=columns).examples.rows]
    assert got == ["q1", "7", "2.5"]


@pytest.mark.parametrize("own_id", ["q1", None, ["q"], {}])
def test_ids_that_cannot_be_used(own_id):
    """One that is taken, or none."""
    columns = Columns(("text",), "label", "id")
    rows = [{"text": "a", "label": "x", "id": "q1"}, {"text": "b", "label": "x", "id": own_id}]
    message = failure(read, rows, columns=columns)
    assert "line 1" in message
    assert "'id'" in message


def test_a_file_without_labels():
    """Of which a later row may not have one."""
    columns = Columns(("text",), "")
    rows = [{"text": "a", "": "x"}, {"text": "b"}]
    assert read(rows, columns=columns).labels.tolist() == [UNLABELLED, UNLABELLED]
    message = failure(read, [*rows, {"text": "c", "label": "x"}], columns=columns)
    assert "line 2" in message
    assert "'label'" in message


def test_equal_texts_are_one_object():
    """Retrieval has each long document in many pairs."""
    rows = [{"a": "first " + "document", "b": text, "label": "x"} for text in "xyz"]
    dataset = read(rows, PAIR, Columns(("a", "b"), "label"))
    firsts = [texts[0] for texts in texts_of(dataset)]
    assert firsts[0] is firsts[1]
    assert firsts[0] is firsts[2]


def test_symbols():
    row = {"text": " ( [MAX 2 ) ]"}
    words = ("[MAX", "(", ")", "]", "2")
    assert text_rows.text_of(row, "text", words) == "( [MAX 2 ) ]"
    assert "'[MAX'" in raised(BadRecord, text_rows.text_of, row, "text", words[1:])


HEADER = ("id", "premise", "hypothesis", "sentence2", "label")


def test_columns_by_their_names_in_one_edition_or_another():
    task = CLASS_TASKS["rte"]
    columns = text_rows.resolve_columns("a.csv", HEADER, task, ("idx", "id"))
    assert columns == Columns(("premise", "sentence2"), "label", "id")
    assert columns.read == ("premise", "sentence2", "label", "id")
    columns = text_rows.resolve_columns("a.csv", HEADER[1:3], task)
    assert columns == Columns(("premise", "hypothesis"), "")
    assert columns.read == ("premise", "hypothesis")


@pytest.mark.parametrize(
    ("header", "keys"),
    [
        (
            ("review", "stars", "texts"),
            ["no column 'text'", "found 'texts'", "'review'", "own.text"],
        ),
        (("Text", "label"), ["'Text'", "own.text"]),
        (("text;label",), ["'text;label'", "commas"]),
        (("text,label",), ["'text,label'", "tabs"]),
        (("text label",), ["'text label'", "own.text"]),
        ((), ["found none"]),
        (tuple(f"c{i}" for i in range(1000)), ["and 992 more"]),
    ],
)
def test_a_column_that_is_missing(header, keys):
    message = failure(text_rows.resolve_columns, "a.csv", header, OWN, flags=": set own.text")
    for key in ("a.csv", *keys):
        assert key in message


ROWS = [TextRow(("a", "b"), "0"), TextRow(("a", "c"), "1"), TextRow(("\ud83d", "d"), "2", 1)]


def test_examples():
    examples = pickle.loads(pickle.dumps(TextRows(ROWS)))
    assert len(examples) == 3
    assert examples[2] == ROWS[2]
    assert examples.key(1) == "a"
    assert examples.content(1) == b"a\0c"
    assert examples.content(2) == b"\xed\xa0\xbd\0d"
    assert examples.size(1) == 2
    got = examples.take(np.array([2, 0])).rows
    expected = [ROWS[2], ROWS[0]]
    assert got == expected


def test_fingerprints_know_texts_and_labels():
    labels = np.array([0, 1, 0], np.int32)
    original = TextRows(ROWS).fingerprint((), labels)
    assert original == TextRows(list(ROWS)).fingerprint(("x", "y"), labels)
    assert original["examples"] == 3
    others = [
        TextRows(ROWS).fingerprint((), np.array([0, 1, 1], np.int32)),
        TextRows(ROWS).fingerprint((), None),
        TextRows(ROWS[::-1]).fingerprint((), labels),
        TextRows([row._replace(texts=row.texts[::-1]) for row in ROWS]).fingerprint((), labels),
        TextRows([*ROWS[:2], TextRow(("\ud83e", "d"), "2")]).fingerprint((), labels),
    ]
    for other in others:
        assert other != original


def test_rows_with_equal_first_texts_are_held_out_together():
    """Golden values: a change of the hash or of its input would move examples of existing runs from
    one side to the other."""
    rows = [{"a": f"premise {i // 2}", "b": f"h{i}", "label": "x"} for i in range(40)]
    dataset = read(rows, PAIR, Columns(("a", "b"), "label"))
    heldout = dataset.hold_out(HELDOUT, 0.2)
    assert [row.id for row in heldout.examples.rows] == [
        "6",
        "7",
        "14",
        "15",
        "24",
        "25",
        "32",
        "33",
    ]


def test_parts_of_a_split():
    """Each has ids of its own, and a note of both is there once."""
    parts = []
    for part, split in enumerate(("dev_matched", "dev_mismatched")):
        reading = Reading("folder", OWN, BadRecords(), note="a note")
        rows = [{"text": f"{split} {i}", "label": "xy"[i]} for i in range(2 - part)]
        reading.add(located(*rows), COLUMNS, part)
        parts.append(finished(reading, declared=("x", "y"), split=split))
    dataset = text_rows.joined(parts)
    assert dataset.split == "dev"
    assert [row.part for row in dataset.examples.rows] == [0, 0, 1]
    assert [row.id for row in dataset.examples.rows] == ["0", "1", "0"]
    assert dataset.labels.tolist() == [0, 1, 0]
    assert len(dataset.files) == 2
    assert dataset.notes == ("a note",)
