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

COMPOSED = unicodedata.normalize("NFC", "été")
DECOMPOSED = unicodedata.normalize("NFD", "été")
POWER_64 = str(2**64)
POWER_65 = str(2**65)


def dataset(names) -> Dataset:
    """A data set with an example of each of these classes, in this order."""
    class_names, labels = classes.from_names(names, "here")
    files = [f"{number}.png" for number in range(len(names))]
    images = [b""] * len(names)
    return Dataset(
        path="here",
        form="a list",
        examples=ListedImages(files, images),
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
        (DECOMPOSED, COMPOSED),
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
def test_class_names_of_labels(value, expected):
    assert classes.class_name(value) == expected


@pytest.mark.parametrize("value", [b"\xff", ["a"], {"a": 1}, (1,), 1j, Decimal("1")])
def test_labels_of_other_types_are_refused(value):
    with pytest.raises(BadRecord):
        classes.class_name(value)
    message = failure(classes.class_in_cell, value, "x.csv, line 3", "label")
    assert message.startswith("x.csv, line 3: ")
    assert "'label'" in message


@pytest.mark.parametrize("value", [None, "", float("nan")])
def test_cells_without_a_class_are_refused(value):
    message = failure(classes.class_in_cell, value, "x.csv, line 3", "label")
    assert "x.csv, line 3" in message


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["10", "9", "1", "11", "2"], ["1", "2", "9", "10", "11"]),
        (["1", "-1", "+2", "0"], ["-1", "0", "1", "+2"]),
        (["b", "a", "10", "9"], ["10", "9", "a", "b"]),
        (["1.5", "10.5", "9.5"], ["1.5", "10.5", "9.5"]),
        (["01", "1", "1"], ["01", "1"]),
        ([POWER_64, "9", POWER_65], ["9", POWER_64, POWER_65]),
        (["9" * 5000, "8"], ["8", "9" * 5000]),
        (["b", "B", "a", "é"], ["B", "a", "b", "é"]),
        ([], []),
    ],
)
def test_numbers_are_ordered_by_value_and_other_names_as_text(names, expected):
    assert list(classes.ordered(names)) == expected


def test_labels_are_positions_in_the_order():
    class_names, labels = classes.from_names(["10", "2", "10", "-1"], "here")
    assert class_names == ("-1", "2", "10")
    assert labels.tolist() == [2, 1, 2, 0]
    assert labels.dtype == np.int32
    with pytest.raises(KeyError):
        classes.positions(["3"], class_names)


DECLARED = ["dog ", DECOMPOSED, "Dog", "cat"]


def test_declared_classes_keep_their_order():
    class_names, labels = classes.from_names(["cat", COMPOSED, "dog"], "here", DECLARED)
    assert class_names == ("dog", COMPOSED, "Dog", "cat")
    assert labels.tolist() == [3, 1, 0]


def test_undeclared_classes_are_refused():
    message = failure(classes.from_names, ["cat", "eel"], "here", DECLARED)
    assert "'eel'" in message


def test_classes_declared_twice_are_refused():
    message = failure(classes.from_names, ["dog"], "here", ["dog", " dog"])
    assert "'dog'" in message


@pytest.mark.parametrize(
    ("first", "second"),
    [("cat", "Cat"), ("cat", "CAT"), ("so so", "so  so"), ("so so", "So\tso"), ("ß", "SS")],
)
def test_names_that_differ_only_in_case_or_blanks_are_refused(first, second):
    names = [first, second, "x", first]
    message = failure(classes.from_names, names, "here")
    for text in (repr(first), repr(second), "(2)", "(1)"):
        assert text in message


def test_upper_and_lower_case_letters_are_two_classes_if_allowed():
    """They are in EMNIST's folders, but not among the labels of texts."""
    class_names, _ = classes.from_names(["a", "A", "b"], "here", allow_letters=True)
    assert class_names == ("A", "a", "b")
    message = failure(classes.from_names, ["a", "A", "b"], "here")
    assert "'A'" in message
    words = ["ab", "Ab"]
    assert "'Ab'" in failure(classes.from_names, words, "here", allow_letters=True)


@pytest.mark.parametrize("name", ["", "\udce9t", "caf\ud800"])
def test_unprintable_names_are_refused(name):
    message = failure(classes.from_names, ["cat", name], "here")
    message.encode()
    assert repr(name) in message


@pytest.mark.parametrize(
    ("count", "facts"),
    [
        (0, ["0 examples", "no class"]),
        (1, ["1 example ", "'cat' alone"]),
    ],
)
def test_a_classifier_needs_two_classes(count, facts):
    cats = dataset(["cat"] * count)
    message = failure(classes.require_several, cats)
    for text in ("'here'", "a list", *facts):
        assert text in message


def test_two_classes_are_enough_for_a_classifier():
    classes.require_several(dataset(["cat", "dog"]))


def test_labels_are_mapped_by_name():
    whole = dataset(["cat", "dog", "cat"])
    found = classes.in_order(whole, ("dog", "cat"), "a run")
    assert found.classes == ("dog", "cat")
    assert found.labels.tolist() == [1, 0, 1]
    assert found.labels.dtype == np.int32


def test_data_sets_in_the_given_order_are_unchanged():
    same = dataset(["cat", "dog"])
    assert classes.in_order(same, ("cat", "dog"), "a run") is same


def test_other_forms_of_unicode_are_the_same_class():
    whole = dataset(["cat", COMPOSED])
    found = classes.in_order(whole, (DECOMPOSED, "cat"), "a run")
    assert found.classes == (DECOMPOSED, "cat")
    assert found.labels.tolist() == [1, 0]


def test_unequal_sets_of_classes_are_refused():
    extra = [f"extra{number}" for number in range(10)]
    whole = dataset(["cat", *extra])
    message = failure(classes.in_order, whole, ("cat", "dog"), "RUN/classes")
    assert "11 classes" in message
    assert "RUN/classes has 2" in message
    assert "'dog' only there" in message
    assert "'extra7', and 2 more" in message
    message = failure(classes.in_order, dataset(["cat", "dog"]), ("cat",), "RUN/classes")
    assert "has 1: 'dog' only in " in message


def test_unknown_held_out_classes_are_refused():
    heldout = dataset(["cat", "eel"])
    message = failure(classes.in_order, heldout, ("cat",), "x", partial=True)
    assert "'eel'" in message


def test_held_out_examples_may_lack_classes():
    heldout = dataset(["cat", "eel"])
    order = ("cat", "dog", "eel")
    found = classes.in_order(heldout, order, "a run", partial=True)
    assert found.labels.tolist() == [0, 2]
    assert classes.absent(found) == ["dog"]
    assert classes.absent(heldout) == []
    assert heldout.labels.tolist() == [0, 1]
    assert "'dog'" in failure(classes.in_order, heldout, order, "a run")


def relabelled(whole: Dataset, labels: list[int]) -> Dataset:
    return dataclasses.replace(whole, labels=np.array(labels, np.int32))


def test_unlabelled_examples_stay_unlabelled():
    partly_labelled = relabelled(dataset(["cat", "dog"]), [-1, 1])
    found = classes.in_order(partly_labelled, ("dog", "cat"), "a run")
    assert found.labels.tolist() == [-1, 0]


def test_unlabelled_data_get_the_names_of_the_classes():
    pets = dataset(["cat", "dog"])
    unlabelled = relabelled(pets, [-1, -1])
    unnamed = dataclasses.replace(unlabelled, classes=())
    found = classes.in_order(unnamed, ("dog", "cat"), "a run", partial=True)
    assert found.labels.tolist() == [-1, -1]
    assert found.classes == ("dog", "cat")
    assert classes.absent(found) == []


class Records(ImageExamples):
    """Images whose labels are only in their records."""

    names = ("a", "b", "c")

    def __getitem__(self, index):
        label = np.int32(index)
        return {"image": b"", "name": self.names[index], "label": label}

    def read(self, index):
        return b""


def test_labels_of_records_are_mapped_when_they_are_read():
    whole = Dataset("here", "records", Records(), classes=("cat", "dog", "eel"))
    found = classes.in_order(whole, ("eel", "dog", "cat"), "a run")
    labels = []
    for index in range(3):
        labels.append(found.examples[index]["label"])
    assert labels == [2, 1, 0]
    names = ("ape", "eel", "dog", "cat")
    with_ape = classes.in_order(whole, names, "a run", partial=True)
    assert classes.absent(with_ape) == ["ape"]


def test_thousands_of_classes_are_mapped_quickly():
    """ImageNet-21k has 21,841 classes: a linear search for each would take too long."""
    names = [f"n{number:08}" for number in range(20_000)]
    positions = list(range(20_000))
    reversed_names = names[::-1]
    found = classes.in_order(dataset(names), reversed_names, "a run")
    reversed_positions = positions[::-1]
    assert found.labels.tolist() == reversed_positions
    _, labels = classes.from_names(names, "here", names)
    assert labels.tolist() == positions


def test_numbers_become_the_names_at_their_positions():
    """ImageNetV2's folders are called by numbers."""
    numbers = [str(number) for number in range(12)]
    order = []
    for number in range(12):
        order.append(f"n{100 - number}")
    named = classes.named(dataset(numbers), order)
    assert named.classes == tuple(order)
    assert names_of(named) == order
    two_classes = classes.named(dataset(["3", "11"]), order)
    assert names_of(two_classes) == ["n97", "n89"]


def test_numbers_in_place_of_names_are_refused():
    numbers = dataset(["0", "1"])
    assert "class_map" in failure(classes.in_order, numbers, ["n100", "n99"], "the run")


def test_numbers_among_names_stay_names():
    words = dataset(["cat", "3"])
    assert classes.named(words, ["n0", "n1"]) is words


@pytest.mark.parametrize("largest", [11, 2**31, 2**70])
def test_numbers_beyond_the_list_are_refused(largest):
    numbers = dataset(["0", str(largest)])
    message = failure(classes.named, numbers, ["a", "b", "c"])
    assert f"a class {largest}" in message
    assert "3 classes" in message


def test_names_survive_json():
    """A run keeps them as JSON."""
    names, _ = classes.from_names([DECOMPOSED, "10", "a b"], "here")
    again = tuple(json.loads(json.dumps(names)))
    assert again == names
