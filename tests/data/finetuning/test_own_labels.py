"""Which values of a column are classes of the user's own data; what is refused, and what is said."""

import pytest

from gmlp_flax.data.finetuning import own_labels
from gmlp_flax.data.finetuning.own_labels import class_name, classes
from tests import failures


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("5.0", "5"),
        (5.0, "5"),
        (-0.0, "0"),
        ("0.", "0"),
        ("-1.00", "-1"),
        ("2.5", "2.5"),
        ("007", "007"),
        (True, "True"),
        (" neg ", "neg"),
        ("u\u0308ber", "\u00fcber"),
        ("9" * 5000 + ".0", "9" * 5000 + ".0"),
    ],
)
def test_class_name(value, name):
    assert class_name(value) == name


def test_numbers_go_by_size_and_words_by_letters():
    values = {"10": 2, "9": 2, "-1.0": 2, "b": 2, "a": 2, "9" * 5000: 2}
    assert classes(values, "stars")[0] == ("-1", "9", "10", "9" * 5000, "a", "b")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"2.559": 1, "1": 9}, "real numbers such as '2.559' in the column of labels, 'stars'"),
        ({"0.5": 5, "1.0": 5, "1.5": 5}, "finetune_glue:own_number"),
        ({"3,25": 5, "4,0": 5}, "real numbers such as '3,25'"),
        ({"1e-3": 5, "2e-3": 5}, "real numbers"),
        ({"a": 1, "b": 1, "c": 1}, "3 different values in 3 rows"),
        ({"a": 9}, "1 different values in 9 rows"),
        ({"good": 20, "bad": 20, "goood": 1}, "one row of the class 'goood'"),
        ({"good": 20, "bad": 1, "baad": 1}, "one row of the class 'baad', as have 1 more classes"),
        ({"Pos": 20, "pos": 5, "neg": 9}, "'Pos' (20 rows) and 'pos' (5)"),
        ({"so so": 20, "so  so": 5}, "differ only in capitals, blanks"),
        ({"a\u00a0b": 20, "a b": 5}, "differ only in capitals, blanks"),
        ({"\u212b": 20, "\u00e5": 5}, "differ only in capitals"),  # the sign of Angstrom, and the letter
        ({"a\u200b": 20, "a": 5}, "differ only in capitals"),
    ],
)
def test_refused(values, words):
    assert words in failures.failure(classes, values, "stars")


def test_too_many(monkeypatch):
    monkeypatch.setattr(own_labels, "MOST_LABELS", 7)
    assert "8 different values in 16 rows" in failures.failure(classes, {str(i): 2 for i in range(8)}, "stars")


@pytest.mark.parametrize(
    ("values", "names", "notes"),
    [
        ({"0": 3, "1": 3}, ("0", "1"), []),
        ({"0.0": 3, "1.0": 3, "0": 1}, ("0", "1"), ["6 labels are read in another form: '0.0' as '0', '1.0' as '1'"]),
        ({" neg": 2, "neg": 1, "pos": 3}, ("neg", "pos"), ["2 labels are read in another form: ' neg' as 'neg'"]),
        (
            {"e\u0301": 2, "\u00e9": 1, "x": 2},
            ("x", "\u00e9"),
            ["2 labels are read in another form: 'e\\u0301' as '\u00e9'"],
        ),
        ({"a": 2, "b|c": 3}, ("a", "b|c"), []),
        ({"b": 2, "b|c": 3}, ("b", "b|c"), ["'b|c' (3 rows), taken as 1 classes, may mean several labels"]),
        ({"None": 2, "b": 3}, ("None", "b"), ["'None' (2 rows), taken as 1 classes, may mean no label"]),
        ({"-1": 2, "1": 3}, ("-1", "1"), ["'-1' (2 rows), taken as 1 classes, may mean no label"]),
    ],
)
def test_what_is_assumed_is_said(values, names, notes):
    found, told = classes(values, "stars")
    assert found == names and len(told) == len(notes)
    assert all(line.startswith(start) for line, start in zip(told, notes, strict=True))
