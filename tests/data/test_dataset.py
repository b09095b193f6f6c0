"""Data sets: parts, labels, fingerprints, what is held out, and splits that are read when they are
asked for."""

import dataclasses
import pickle

import numpy as np
import pytest

from gmlp_flax.data import classes
from gmlp_flax.data.dataset import Dataset, Relabelled, Splits, Subset
from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.data.images.examples import ArrayImages, ListedImages
from gmlp_flax.data.text_rows import TextRow, TextRows
from tests.data.number_source import Numbers
from tests.failures import failure

SHARED = ("train", "heldout")


def listed(labels, class_names=("cat", "dog"), **options) -> Dataset:
    """A data set of images "0", "1", ..., with these labels."""
    names = [str(number) for number in range(len(labels))]
    images = [name.encode() for name in names]
    return Dataset(
        path="here",
        form="a list",
        examples=ListedImages(names, images),
        classes=class_names,
        labels=np.array(labels, np.int32),
        **options,
    )


def names(dataset: Dataset) -> list[str]:
    return [dataset.examples[index]["name"] for index in range(len(dataset))]


def test_a_part_has_the_labels_and_names_of_its_examples():
    whole = listed([0, 1, 0, 1, 1])
    part = whole.take(np.array([4, 0]))
    assert names(part) == ["4", "0"]
    assert part.labels.tolist() == [1, 0]
    assert part.classes == ("cat", "dog")
    assert part.examples.key(0) == "4"
    assert part.examples.content(1) == b"0"
    assert part.examples.size(0) == 1
    smaller = part.take(np.array([1]))
    assert names(smaller) == ["0"]
    assert smaller.origin is whole


def test_a_part_of_examples_without_known_labels():
    whole = dataclasses.replace(listed([0, 1]), labels=None)
    assert whole.take(np.array([1])).labels is None
    assert whole.class_counts() is None


@pytest.mark.parametrize("indices", [[5, 3], np.array([5, 3]), np.array([5, 3], np.int32)])
def test_subset(indices):
    subset = Subset(Numbers(9), indices)
    assert [subset[0]["x"], subset[1]["x"]] == [5, 3]
    assert len(subset) == 2


def test_parts_and_other_labels_survive_pickle():
    whole = listed([0, 1, 1])
    part = pickle.loads(pickle.dumps(whole.take(np.array([2, 0]))))
    assert names(part) == ["2", "0"]
    assert part.labels.tolist() == [1, 0]
    assert part.fingerprint == whole.fingerprint


def test_examples_that_know_their_labels_alone():
    class Labelled(Numbers):
        def __getitem__(self, index):
            return {"label": np.int32(index % 3)}

    relabelled = Relabelled(Labelled(4), np.array([7, 5, 6], np.int32))
    got = [relabelled[index]["label"] for index in range(4)]
    assert got == [7, 5, 6, 7]
    assert relabelled[0]["label"].dtype == np.int32


def test_a_part_has_the_fingerprint_of_the_whole():
    """Splits and shares are keys of the config, and other names of classes are a choice of the
    run."""
    whole = listed([0, 1, 1])
    part = whole.take(np.array([1]))
    assert part.fingerprint == whole.fingerprint
    in_order = classes.in_order(whole, ("dog", "cat"), "a run")
    assert in_order.fingerprint == whole.fingerprint
    assert in_order.take(np.array([0, 2])).fingerprint == whole.fingerprint
    assert listed([0, 1, 0]).fingerprint != whole.fingerprint
    assert listed([0, 1, 1], ("cat", "eel")).fingerprint != whole.fingerprint


def test_rows_of_text_have_the_fingerprint_of_their_part():
    """They lie in memory, and a part of them is copied."""
    rows = [TextRow((text,), text) for text in ("a", "b", "c")]
    whole = Dataset("x", "rows", TextRows(rows), labels=np.array([0, 1, 0], np.int32))
    part = whole.take(np.array([2, 0]))
    assert part.origin is None
    assert [row.id for row in part.examples.rows] == ["c", "a"]
    assert part.fingerprint["examples"] == 2
    assert whole.fingerprint["examples"] == 3


@pytest.mark.parametrize(
    ("labels", "class_names", "expected"),
    [
        ([0, 1, 1], ("cat", "dog", "eel"), [1, 2, 0]),
        ([0, -1, -1], ("cat", "dog"), [1, 0]),
        ([], ("cat", "dog"), [0, 0]),
        ([-1, -1], (), None),
    ],
)
def test_counts_of_classes(labels, class_names, expected):
    counts = listed(labels, class_names).class_counts()
    assert (counts if counts is None else counts.tolist()) == expected


def test_a_note_is_said_once():
    noted = listed([0]).with_notes("a", "b").with_notes("b", "c")
    assert noted.notes == ("a", "b", "c")
    assert noted.with_notes("").notes == noted.notes


def test_a_share_is_held_out_class_by_class():
    labels = [0] * 4 + [1] * 2 + [2] * 9
    whole = listed(labels, ("a", "b", "c"), stratified=True)
    train, heldout = (whole.hold_out(role, 0.3) for role in SHARED)
    assert sorted(names(train) + names(heldout), key=int) == names(whole)
    assert (train.class_counts() + heldout.class_counts()).tolist() == [4, 2, 9]
    assert min(train.class_counts()) > 0
    assert min(heldout.class_counts()) > 0
    again = whole.hold_out("heldout", 0.3)
    assert names(again) == names(heldout)


def test_the_digits_that_a_search_holds_out():
    digits = embedded_digits("train")
    parts = [digits.hold_out("heldout", 0.2), digits.hold_out("heldout", -0.2)]
    parts.append(digits.hold_out("train", -0.2))
    assert sum(map(len, parts)) == 1415
    assert [len(part) for part in parts] == [325, 262, 828]
    for part in parts:
        assert min(part.class_counts()) > 15


def test_a_share_over_all_examples():
    whole = listed([0, 1] * 50)
    train, heldout = (whole.hold_out(role, 0.3) for role in SHARED)
    assert len(train) + len(heldout) == 100
    assert 15 < len(heldout) < 45


def test_labels_that_only_the_examples_know_are_held_out_as_one_class():
    whole = dataclasses.replace(listed([0, 1, 0]), labels=None, stratified=True, split="train")
    train, heldout = (whole.hold_out(role, 0.01) for role in SHARED)
    assert len(train) == 2
    assert len(heldout) == 1
    single = dataclasses.replace(listed([0]), labels=None, stratified=True, split="train")
    assert "'train' has a single example" in failure(single.hold_out, "train", 0.1)


def test_classes_with_one_example_and_with_none():
    single = listed([0, 1, 1], stratified=True)
    message = failure(single.hold_out, "train", 0.1)
    assert "'here'" in message
    assert "'cat'" in message
    declared = listed([0, 0, 2, 2], ("cat", "dog", "eel"), stratified=True)
    train, heldout = (declared.hold_out(role, 0.1) for role in SHARED)
    assert train.class_counts().tolist() == heldout.class_counts().tolist() == [1, 0, 1]


@pytest.mark.parametrize("stratified", [False, True])
def test_nothing_left_is_refused(stratified):
    whole = listed([0, 0], stratified=stratified)
    message = failure(whole.hold_out, "heldout", -1e-9)
    assert "'heldout'" in message
    assert "heldout_share=1e-09 and as much for the search of settings" in message


def test_splits_are_read_when_they_are_asked_for():
    read = []

    def reader(name):
        def read_split():
            read.append(name)
            return listed([0, 1], split=name)

        return read_split

    splits = Splits("here", "a list", {"train": reader("train"), "test": reader("test")})
    assert list(splits) == ["train", "test"]
    assert len(splits) == 2
    assert "test" in splits
    assert "validation" not in splits
    assert read == []
    assert splits["test"].split == "test"
    assert splits["test"] is splits["test"]
    assert read == ["test"]
    with pytest.raises(KeyError):
        splits["validation"]


def test_arrays_are_read_only_parts_of_one_array():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4, 1)
    images = ArrayImages(pixels)
    assert np.shares_memory(images[1]["image"], pixels)
