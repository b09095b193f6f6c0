"""Names and order of classes, and labels that are mapped by name."""

import dataclasses
import json
import unicodedata
from decimal import Decimal

import numpy as np
import pytest

from gmlp_flax.data import classes
from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.images.examples import ImageExamples, ListedImages
from gmlp_flax.io.records import BadRecord
from tests.failures import failure

ACUTE = [unicodedata.normalize(form, "été") for form in ("NFC", "NFD")]


def dataset(names, order=None) -> Dataset:
    """A data set with an example of each of these classes, in this order."""
    class_names, labels = classes.from_names(names, "here")
    files = [f"{number}.png" for number in range(len(names))]
    return Dataset(
        path="here",
        form="a list",
        examples=ListedImages(files, [b""] * len(names)),
        classes=class_names,
        labels=labels,
    )


def names_of(found: Dataset) -> list[str]:
    return [found.classes[label] for label in found.labels]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (" cat\t\n", "cat"),
        ("two words", "two words"),
        (ACUTE[1], ACUTE[0]),
        ("\u00a0x\u3000", "x"),
        (3, "3"),
        (-1, "-1"),
        (2**70, "1180591620717411303424"),
        (True, "true"),
        (1.0, "1.0"),
        (0.5, "0.5"),
        ("1.0", "1.0"),
        ("", ""),
        ("  ", ""),
        (None, ""),
        (float("nan"), ""),
    ],
)
def test_the_name_that_a_label_means(value, expected):
    assert classes.class_name(value) == expected


@pytest.mark.parametrize("value", [b"\xff", ["a"], {"a": 1}, (1,), 1j, Decimal("1")])
def test_labels_that_are_no_names(value):
    with pytest.raises(BadRecord):
        classes.class_name(value)
    message = failure(classes.class_in_cell, value, "x.csv, line 3", "label")
    assert message.startswith("x.csv, line 3: ")
    assert "'label'" in message


@pytest.mark.parametrize("value", [None, "", float("nan")])
def test_cells_without_a_class(value):
    assert "x.csv, line 3" in failure(classes.class_in_cell, value, "x.csv, line 3", "label")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["10", "9", "1", "11", "2"], ["1", "2", "9", "10", "11"]),
        (["1", "-1", "+2", "0"], ["-1", "0", "1", "+2"]),
        (["b", "a", "10", "9"], ["10", "9", "a", "b"]),
        (["1.5", "10.5", "9.5"], ["1.5", "10.5", "9.5"]),
        (["01", "1", "1"], ["01", "1"]),
        ([str(2**64), "9", str(2**65)], ["9", str(2**64), str(2**65)]),
        (["9" * 5000, "8"], ["8", "9" * 5000]),
        (["b", "B", "a", "é"], ["B", "a", "b", "é"]),
        ([], []),
    ],
)
def test_order(names, expected):
    assert list(classes.ordered(names)) == expected


def test_labels_are_positions_in_the_order():
    class_names, labels = classes.from_names(["10", "2", "10", "-1"], "here")
    assert class_names == ("-1", "2", "10")
    assert labels.tolist() == [2, 1, 2, 0]
    assert labels.dtype == np.int32
    with pytest.raises(KeyError):
        classes.positions(["3"], class_names)


def test_declared_classes_keep_their_order():
    declared = ["dog ", ACUTE[1], "Dog", "cat"]
    class_names, labels = classes.from_names(["cat", ACUTE[0], "dog"], "here", declared)
    assert class_names == ("dog", ACUTE[0], "Dog", "cat")
    assert labels.tolist() == [3, 1, 0]
    assert "'eel'" in failure(classes.from_names, ["cat", "eel"], "here", declared)
    assert "'dog'" in failure(classes.from_names, ["dog"], "here", ["dog", " dog"])


@pytest.mark.parametrize(
    ("first", "second"),
    [("cat", "Cat"), ("cat", "CAT"), ("so so", "so  so"), ("so so", "So\tso"), ("ß", "SS")],
)
def test_names_that_differ_in_capitals_or_blanks(first, second):
    message = failure(classes.from_names, [first, second, "x", first], "here")
    for text in (repr(first), repr(second), "(2)", "(1)"):
        assert text in message


def test_letters_may_be_two_classes():
    """EMNIST's folders, not the labels of texts."""
    class_names, _ = classes.from_names(["a", "A", "b"], "here", allow_letters=True)
    assert class_names == ("A", "a", "b")
    assert "'A'" in failure(classes.from_names, ["a", "A", "b"], "here")
    assert "'Ab'" in failure(classes.from_names, ["ab", "Ab"], "here", allow_letters=True)


@pytest.mark.parametrize("name", ["", "\udce9t", "caf\ud800"])
def test_names_that_cannot_be_printed(name):
    message = failure(classes.from_names, ["cat", name], "here")
    message.encode()
    assert repr(name) in message


@pytest.mark.parametrize(
    ("count", "facts"), [(0, ["0 examples", "no class"]), (1, ["1 example ", "'cat' alone"])]
)
def test_a_classifier_needs_two_classes(count, facts):
    message = failure(classes.require_several, dataset(["cat"] * count))
    for text in ("'here'", "a list", *facts):
        assert text in message
    classes.require_several(dataset(["cat", "dog"]))


def test_labels_are_mapped_by_name():
    found = classes.in_order(dataset(["cat", "dog", "cat"]), ("dog", "cat"), "a run")
    assert found.classes == ("dog", "cat")
    assert found.labels.tolist() == [1, 0, 1]
    assert found.labels.dtype == np.int32
    same = dataset(["cat", "dog"])
    assert classes.in_order(same, ("cat", "dog"), "a run") is same


def test_other_forms_of_unicode_are_the_same_class():
    found = classes.in_order(dataset(["cat", ACUTE[0]]), (ACUTE[1], "cat"), "a run")
    assert found.classes == (ACUTE[1], "cat")
    assert found.labels.tolist() == [1, 0]


def test_classes_that_only_one_of_two_has():
    extra = [f"extra{number}" for number in range(10)]
    message = failure(classes.in_order, dataset(["cat", *extra]), ("cat", "dog"), "RUN/classes")
    for text in ("11 classes", "RUN/classes has 2", "'dog' only there", "'extra7', and 2 more"):
        assert text in message
    assert "'eel'" in failure(classes.in_order, dataset(["cat", "eel"]), ("cat",), "x", True)


def test_held_out_examples_may_miss_classes():
    whole = dataset(["cat", "eel"])
    found = classes.in_order(whole, ("cat", "dog", "eel"), "a run", partial=True)
    assert found.labels.tolist() == [0, 2]
    assert classes.absent(found) == ["dog"]
    assert classes.absent(whole) == []
    assert whole.labels.tolist() == [0, 1]
    assert "'dog'" in failure(classes.in_order, whole, ("cat", "dog", "eel"), "a run")


def test_examples_without_labels_stay_without():
    without = dataclasses.replace(dataset(["cat", "dog"]), labels=np.array([-1, 1], np.int32))
    assert classes.in_order(without, ("dog", "cat"), "a run").labels.tolist() == [-1, 0]
    unnamed = dataclasses.replace(without, labels=np.array([-1, -1], np.int32), classes=())
    found = classes.in_order(unnamed, ("dog", "cat"), "a run", partial=True)
    assert found.labels.tolist() == [-1, -1]
    assert found.classes == ("dog", "cat")
    assert classes.absent(found) == []


class Records(ImageExamples):
    """Images whose labels only the records have."""

    names = ("a", "b", "c")

    def __getitem__(self, index):
        return {"image": b"", "name": self.names[index], "label": np.int32(index)}

    def read(self, index):
        return b""


def test_labels_of_records_are_mapped_as_they_are_read():
    whole = Dataset("here", "records", Records(), classes=("cat", "dog", "eel"))
    found = classes.in_order(whole, ("eel", "dog", "cat"), "a run")
    got = [found.examples[index]["label"] for index in range(3)]
    assert got == [2, 1, 0]
    more = classes.in_order(whole, ("ape", "eel", "dog", "cat"), "a run", partial=True)
    assert classes.absent(more) == ["ape"]


def test_thousands_of_classes():
    """ImageNet-21k has 21,841: each is looked up, not searched for."""
    names = [f"n{number:08}" for number in range(20_000)]
    found = classes.in_order(dataset(names), names[::-1], "a run")
    assert found.labels.tolist() == list(range(19_999, -1, -1))
    _, labels = classes.from_names(names, "here", names)
    assert labels.tolist() == list(range(20_000))


def test_numbers_that_stand_for_names():
    """ImageNetV2's folders."""
    numbers = [str(number) for number in range(12)]
    order = [f"n{100 - number}" for number in range(12)]
    found = classes.named(dataset(numbers), order)
    assert found.classes == tuple(order)
    assert names_of(found) == order
    some = classes.named(dataset(["3", "11"]), order)
    assert names_of(some) == ["n97", "n89"]
    assert "class_map" in failure(classes.in_order, dataset(numbers), order, "the run")


def test_names_beside_numbers_stay():
    words = dataset(["cat", "3"])
    assert classes.named(words, ["n0", "n1"]) is words


@pytest.mark.parametrize("largest", [11, 2**31, 2**70])
def test_numbers_beyond_the_list(largest):
    message = failure(classes.named, dataset(["0", str(largest)]), ["a", "b", "c"])
    assert f"a class {largest}" in message
    assert "3 classes" in message


def test_names_survive_json():
    """As a run keeps them."""
    names, _ = classes.from_names([ACUTE[1], "10", "a b"], "here")
    again = tuple(json.loads(json.dumps(names)))
    assert again == names
