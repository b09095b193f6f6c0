"""Rows of tables become labelled text in memory."""

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

CUSTOM = custom_task(("text",), "label")
PAIR = custom_task(("a", "b"), "label")
NUMBERS = custom_task(("text",), "label", numbers=True)
COLUMNS = Columns(("text",), "label")


def located(*rows: dict | BadRecord) -> list[Located]:
    items = []
    for number, row in enumerate(rows):
        items.append(Located(f"a.csv, line {number}", row))
    return items


def finished(reading: Reading, declared=(), split: str = "train"):
    file = File("/a.csv", "a.csv", 1, "1")
    return reading.finish("a form", split, [file], declared)


def read(rows, task: TextTask = CUSTOM, columns: Columns = COLUMNS, bad=None, **options):
    reading = Reading("a.csv", task, bad or BadRecords())
    reading.add(located(*rows), columns)
    return finished(reading, **options)


def texts_of(dataset) -> list[tuple[str, ...]]:
    return [row.texts for row in dataset.examples.rows]


def ids_of(dataset) -> list[str]:
    return [row.id for row in dataset.examples.rows]


@pytest.mark.smoke
def test_rows_become_texts_and_labels():
    rows = [{"text": " fine \n", "label": "pos "}, {"text": "dull", "label": "neg"}]
    dataset = read(rows)
    fine, dull = dataset.examples.rows
    assert fine == TextRow(("fine",), "0")
    assert dull == TextRow(("dull",), "1")
    assert dataset.classes == ("neg", "pos")
    assert dataset.labels.tolist() == [1, 0]
    assert dataset.labels.dtype == np.int32
    assert dataset.path == "a.csv"
    assert dataset.form == "a form"
    assert dataset.split == "train"
    assert dataset.columns == ("text", "label")
    paths = [file.name for file in dataset.files]
    assert paths == ["a.csv"]
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
def test_labels_are_stripped_texts(value, expected):
    assert Labels(CUSTOM).read(value, "label") == expected


@pytest.mark.parametrize("value", [["pos"], [], {"a": 1}, b"pos", (1, 2), math])
@pytest.mark.parametrize("task", [CUSTOM, NUMBERS, CLASS_TASKS["sst2"]])
def test_labels_of_other_types_are_bad_records(value, task):
    labels = Labels(task)
    raised(BadRecord, labels.read, value, "label")


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
def test_published_labels_are_names_or_numbers(task, value, expected):
    labels = Labels(CLASS_TASKS[task])
    assert labels.read(value, "label") == expected


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
def test_unknown_labels_of_published_tasks_are_bad_records(task, value):
    text_task = CLASS_TASKS[task]
    labels = Labels(text_task)
    message = raised(BadRecord, labels.read, value, "score")
    assert "'score'" in message
    assert repr(text_task.labels[0]) in message


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
def test_numbers_are_read_from_text(value, expected):
    assert Labels(NUMBERS).read(value, "label") == expected


@pytest.mark.parametrize(
    "value",
    ["1,5", "1.2.3", "1_000", "nan", "inf", "1e39", "-1e39", "0x10", "five", True, "x" * 99],
)
def test_invalid_numbers_are_bad_records(value):
    labels = Labels(NUMBERS)
    message = raised(BadRecord, labels.read, value, "label")
    shown = str(value).lower()
    assert shown[:40] in message
    assert len(message) < 200


def test_published_numbers_have_a_range():
    labels = Labels(NUMBER_TASKS["stsb"])
    assert labels.read("5.000", "score") == 5.0
    assert labels.read(0, "score") == 0.0
    assert labels.read(-1.0, "score") is None
    assert labels.read("-1", "score") is None
    assert "from 0 to 5" in raised(BadRecord, labels.read, "5.01", "score")


def rows_with_labels(values) -> list[dict]:
    return [{"text": f"text {number}", "label": value} for number, value in enumerate(values)]


def test_rows_without_a_label_are_left_out_and_counted():
    dataset = read(rows_with_labels(["a", "", None, "b", " "]))
    assert ids_of(dataset) == ["0", "3"]
    assert dataset.labels.tolist() == [0, 1]
    (note,) = dataset.notes
    assert "3 rows" in note


def test_rows_are_unlabelled_if_none_has_a_label():
    rows = rows_with_labels(["", None])
    dataset = read(rows)
    assert dataset.labels.tolist() == [UNLABELLED, UNLABELLED]
    assert dataset.labels.dtype == np.int32
    assert dataset.classes == ()
    assert dataset.notes == ()
    declaring = read(rows, declared=["b ", "a"])
    assert declaring.classes == ("b", "a")


def test_numbers_are_labels_of_float32():
    dataset = read(rows_with_labels(["0.5", "", 2]), NUMBERS)
    assert dataset.labels.tolist() == [0.5, 2.0]
    assert dataset.labels.dtype == np.float32
    assert dataset.classes == ()


def test_missing_numbers_of_a_test_set_are_nan():
    dataset = read(rows_with_labels([""]), NUMBERS)
    (label,) = dataset.labels
    assert np.isnan(label)


def test_declared_classes_keep_their_order():
    rows = rows_with_labels(["pos", "u\u0308"])
    dataset = read(rows, declared=["ü ", "pos", "other"])
    assert dataset.classes == ("ü", "pos", "other")
    assert dataset.labels.tolist() == [1, 0]
    assert "'pos'" in failure(read, rows, declared=["u\u0308", "neg"])
    message = failure(read, rows, declared=["ü", "pos", "pos "])
    assert "'pos'" in message


def test_bad_rows_are_counted_and_keep_the_positions_of_others():
    rows = [
        {"text": "a", "label": "x"},
        BadRecord("no row"),
        {"text": "", "label": "x"},
        {"text": "b", "label": ["x"]},
        {"text": "c", "label": "y"},
    ]
    bad = BadRecords(3)
    dataset = read(rows, bad=bad)
    assert ids_of(dataset) == ["0", "4"]
    assert bad.count == 3
    for number, message in enumerate(bad.first, start=1):
        assert message.startswith(f"a.csv, line {number}: ")
    assert len(bad.first) == 3
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
def test_invalid_rows_are_refused(row, key):
    message = failure(read, [row])
    assert message.startswith("a.csv, line 0: ")
    assert key in message


@pytest.mark.parametrize("rows", [[], [{"text": "", "label": "x"}]], ids=["empty", "no text"])
def test_data_without_texts_are_refused(rows):
    message = failure(read, rows, bad=BadRecords(1), split="dev")
    assert "'a.csv'" in message
    assert "'dev'" in message


def test_positions_count_the_rows_of_all_files():
    """The id of a row without one is its position in all files of the split."""
    reading = Reading("folder", CUSTOM, BadRecords(1), note="a note")
    first = [{"text": "a", "label": "x"}, BadRecord("no row")]
    second = [{"text": "b", "label": "y"}]
    reading.add(located(*first), COLUMNS)
    reading.add(located(*second), COLUMNS)
    assert reading.seen == 3
    dataset = finished(reading)
    assert ids_of(dataset) == ["0", "2"]
    assert dataset.notes == ("a note",)


def test_rows_may_have_given_positions():
    reading = Reading("a.csv", CUSTOM, BadRecords())
    first_row = {"text": "a", "label": "x"}
    second_row = {"text": "b", "label": "y"}
    first, second = located(first_row, second_row)
    numbered = [(3, first), (7, second)]
    reading.add_numbered(numbered, COLUMNS)
    rows = finished(reading).examples.rows
    expected = [TextRow(("a",), "3"), TextRow(("b",), "7")]
    assert rows == expected


def test_ids_are_texts():
    columns = Columns(("text",), "label", "id")
    rows = [{"text": "a", "label": "x", "id": name} for name in ("q1", 7, 2.5)]
    dataset = read(rows, columns=columns)
    assert ids_of(dataset) == ["q1", "7", "2.5"]


@pytest.mark.parametrize("second_id", ["q1", None, ["q"], {}])
def test_repeated_and_invalid_ids_are_refused(second_id):
    columns = Columns(("text",), "label", "id")
    rows = [
        {"text": "a", "label": "x", "id": "q1"},
        {"text": "b", "label": "x", "id": second_id},
    ]
    message = failure(read, rows, columns=columns)
    assert "line 1" in message
    assert "'id'" in message


def test_files_without_a_label_column_are_unlabelled():
    """No later row may have a label."""
    columns = Columns(("text",), "")
    rows = [{"text": "a", "": "x"}, {"text": "b"}]
    dataset = read(rows, columns=columns)
    assert dataset.labels.tolist() == [UNLABELLED, UNLABELLED]
    labelled = {"text": "c", "label": "x"}
    message = failure(read, [*rows, labelled], columns=columns)
    assert "line 2" in message
    assert "'label'" in message


def test_equal_texts_are_one_object():
    """In the retrieval task, each long document is in many pairs."""
    rows = []
    for text in "xyz":
        rows.append({"a": "first " + "document", "b": text, "label": "x"})
    columns = Columns(("a", "b"), "label")
    dataset = read(rows, PAIR, columns)
    (first, _), (second, _), (third, _) = texts_of(dataset)
    assert first is second
    assert first is third


def test_texts_of_symbols_may_have_no_other_words():
    row = {"text": " ( [MAX 2 ) ]"}
    words = ("[MAX", "(", ")", "]", "2")
    assert text_rows.text_of(row, "text", words) == "( [MAX 2 ) ]"
    message = raised(BadRecord, text_rows.text_of, row, "text", words[1:])
    assert "'[MAX'" in message


OTHER_COLUMNS = ("review", "stars", "texts")
MANY_COLUMNS = tuple(f"c{number}" for number in range(1000))
HEADER = ("id", "premise", "hypothesis", "sentence2", "label")


def test_columns_may_have_the_names_of_any_edition():
    task = CLASS_TASKS["rte"]
    ids = ("idx", "id")
    columns = text_rows.resolve_columns("a.csv", HEADER, task, ids)
    assert columns == Columns(("premise", "sentence2"), "label", "id")
    assert columns.read == ("premise", "sentence2", "label", "id")
    columns = text_rows.resolve_columns("a.csv", HEADER[1:3], task)
    assert columns == Columns(("premise", "hypothesis"), "")
    assert columns.read == ("premise", "hypothesis")


@pytest.mark.parametrize(
    ("header", "keys"),
    [
        (OTHER_COLUMNS, ["no column 'text'", "found 'texts'", "'review'", "own.text"]),
        (("Text", "label"), ["'Text'", "own.text"]),
        (("text;label",), ["'text;label'", "commas"]),
        (("text,label",), ["'text,label'", "tabs"]),
        (("text label",), ["'text label'", "own.text"]),
        ((), ["found none"]),
        (MANY_COLUMNS, ["and 992 more"]),
    ],
)
def test_missing_columns_are_refused(header, keys):
    message = failure(text_rows.resolve_columns, "a.csv", header, CUSTOM, flags=": set own.text")
    for key in ("a.csv", *keys):
        assert key in message


ROWS = [
    TextRow(("a", "b"), "0"),
    TextRow(("a", "c"), "1"),
    TextRow(("\ud83d", "d"), "2", 1),
]


def test_examples_have_keys_contents_and_sizes():
    first, _, third = ROWS
    pickled = pickle.dumps(TextRows(ROWS))
    examples = pickle.loads(pickled)
    assert len(examples) == 3
    assert examples[2] == third
    assert examples.key(1) == "a"
    assert examples.content(1) == b"a\0c"
    assert examples.content(2) == b"\xed\xa0\xbd\0d"
    assert examples.size(1) == 2
    positions = np.array([2, 0])
    part = examples.take(positions)
    assert part.rows == [third, first]


LABELS = np.array([0, 1, 0], np.int32)


def test_fingerprints_do_not_depend_on_class_names():
    original = TextRows(ROWS).fingerprint((), LABELS)
    assert original["examples"] == 3
    assert TextRows(list(ROWS)).fingerprint(("x", "y"), LABELS) == original


@pytest.mark.parametrize("labels", [np.array([0, 1, 1], np.int32), None], ids=["other", "none"])
def test_fingerprints_depend_on_labels(labels):
    rows = TextRows(ROWS)
    original = rows.fingerprint((), LABELS)
    changed = rows.fingerprint((), labels)
    assert changed != original


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(ROWS[::-1], id="reversed"),
        pytest.param([row._replace(texts=row.texts[::-1]) for row in ROWS], id="swapped texts"),
        pytest.param([*ROWS[:2], TextRow(("\ud83e", "d"), "2")], id="another text"),
    ],
)
def test_fingerprints_depend_on_texts_and_their_order(rows):
    original = TextRows(ROWS).fingerprint((), LABELS)
    fingerprint = TextRows(rows).fingerprint((), LABELS)
    assert fingerprint != original


def test_rows_with_equal_first_texts_are_held_out_together():
    """Golden values: a change of the hash would move examples of existing runs to the other role."""
    rows = []
    for number in range(40):
        rows.append({"a": f"premise {number // 2}", "b": f"h{number}", "label": "x"})
    columns = Columns(("a", "b"), "label")
    dataset = read(rows, PAIR, columns)
    heldout = dataset.hold_out(HELDOUT, 0.2)
    heldout_ids = ids_of(heldout)
    assert heldout_ids == ["6", "7", "14", "15", "24", "25", "32", "33"]


def test_parts_of_a_split_are_joined():
    """The ids of each part begin at 0, and a note of both parts is kept once."""
    parts = []
    for part, labels in enumerate(["xy", "x"]):
        reading = Reading("folder", CUSTOM, BadRecords(), note="a note")
        rows = rows_with_labels(labels)
        items = located(*rows)
        reading.add(items, COLUMNS, part)
        split = ("dev_matched", "dev_mismatched")[part]
        dataset_part = finished(reading, declared=("x", "y"), split=split)
        parts.append(dataset_part)
    dataset = text_rows.joined(parts)
    assert dataset.split == "dev"
    numbers = [row.part for row in dataset.examples.rows]
    assert numbers == [0, 0, 1]
    assert ids_of(dataset) == ["0", "1", "0"]
    assert dataset.labels.tolist() == [0, 1, 0]
    assert len(dataset.files) == 2
    assert dataset.notes == ("a note",)
