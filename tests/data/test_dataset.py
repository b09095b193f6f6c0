"""Data sets: parts, labels, fingerprints, held-out parts, and splits that are read on demand."""

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


def held_out(whole: Dataset, share: float) -> tuple[Dataset, Dataset]:
    """The part to train on, and the held-out part."""
    train = whole.hold_out("train", share)
    return train, whole.hold_out("heldout", share)


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
    positions = np.array([4, 0])
    part = whole.take(positions)
    assert names(part) == ["4", "0"]
    assert part.labels.tolist() == [1, 0]
    assert part.classes == ("cat", "dog")
    assert part.examples.key(0) == "4"
    assert part.examples.content(1) == b"0"
    assert part.examples.size(0) == 1
    smaller = part.take(np.array([1]))
    assert names(smaller) == ["0"]
    assert smaller.origin is whole


def test_parts_of_unlabelled_examples_are_unlabelled():
    whole = dataclasses.replace(listed([0, 1]), labels=None)
    part = whole.take(np.array([1]))
    assert part.labels is None
    assert whole.class_counts() is None


@pytest.mark.parametrize("dtype", [list, np.int64, np.int32])
def test_subsets_have_the_examples_at_their_indices(dtype):
    indices = [5, 3] if dtype is list else np.array([5, 3], dtype)
    subset = Subset(Numbers(9), indices)
    assert len(subset) == 2
    assert subset[0]["x"] == 5
    assert subset[1]["x"] == 3


def test_parts_survive_pickle():
    whole = listed([0, 1, 1])
    taken = whole.take(np.array([2, 0]))
    part = pickle.loads(pickle.dumps(taken))
    assert names(part) == ["2", "0"]
    assert part.labels.tolist() == [1, 0]
    assert part.fingerprint == whole.fingerprint


def test_labels_inside_examples_are_mapped():
    class Labelled(Numbers):
        def __getitem__(self, index):
            return {"label": np.int32(index % 3)}

    relabelled = Relabelled(Labelled(4), np.array([7, 5, 6], np.int32))
    labels = [relabelled[index]["label"] for index in range(4)]
    assert labels == [7, 5, 6, 7]
    assert labels[0].dtype == np.int32


def test_fingerprints_do_not_depend_on_the_part_and_the_order_of_classes():
    """Keys of the config choose splits and shares, and a run may choose the order of classes."""
    whole = listed([0, 1, 1])
    part = whole.take(np.array([1]))
    in_order = classes.in_order(whole, ("dog", "cat"), "a run")
    part_in_order = in_order.take(np.array([0, 2]))
    for same in (part, in_order, part_in_order):
        assert same.fingerprint == whole.fingerprint


def test_fingerprints_depend_on_labels_and_class_names():
    original = listed([0, 1, 1])
    other_labels = listed([0, 1, 0])
    other_names = listed([0, 1, 1], ("cat", "eel"))
    for other in (other_labels, other_names):
        assert other.fingerprint != original.fingerprint


def test_rows_of_text_have_the_fingerprint_of_their_part():
    """Rows are in memory, and taking a part copies it."""
    rows = [TextRow((text,), text) for text in ("a", "b", "c")]
    labels = np.array([0, 1, 0], np.int32)
    whole = Dataset("x", "rows", TextRows(rows), labels=labels)
    part = whole.take(np.array([2, 0]))
    ids = [row.id for row in part.examples.rows]
    assert part.origin is None
    assert ids == ["c", "a"]
    assert part.fingerprint["examples"] == 2
    assert whole.fingerprint["examples"] == 3


@pytest.mark.parametrize(
    ("labels", "class_names", "expected"),
    [
        ([0, 1, 1], ("cat", "dog", "eel"), [1, 2, 0]),
        ([0, -1, -1], ("cat", "dog"), [1, 0]),
        ([], ("cat", "dog"), [0, 0]),
    ],
)
def test_class_counts(labels, class_names, expected):
    counts = listed(labels, class_names).class_counts()
    assert counts.tolist() == expected


def test_unlabelled_data_have_no_class_counts():
    assert listed([-1, -1], ()).class_counts() is None


def test_equal_notes_are_kept_once():
    noted = listed([0]).with_notes("a", "b").with_notes("b", "c")
    assert noted.notes == ("a", "b", "c")
    assert noted.with_notes("").notes == noted.notes


def test_stratified_shares_have_examples_of_each_class():
    labels = [0] * 4 + [1] * 2 + [2] * 9
    whole = listed(labels, ("a", "b", "c"), stratified=True)
    train, heldout = held_out(whole, 0.3)
    train_counts = train.class_counts()
    heldout_counts = heldout.class_counts()
    assert min(train_counts) > 0
    assert min(heldout_counts) > 0
    all_names = names(train) + names(heldout)
    assert sorted(all_names, key=int) == names(whole)
    again = whole.hold_out("heldout", 0.3)
    assert names(again) == names(heldout)


def test_a_search_splits_the_training_digits_again():
    digits = embedded_digits("train")
    reported = digits.hold_out("heldout", 0.2)
    searched = digits.hold_out("heldout", -0.2)
    train = digits.hold_out("train", -0.2)
    assert len(reported) == 325
    assert len(searched) == 262
    assert len(train) == 828
    assert len(digits) == 325 + 262 + 828
    for part in (reported, searched, train):
        assert min(part.class_counts()) > 15


def test_unstratified_shares_are_drawn_from_all_examples():
    whole = listed([0, 1] * 50)
    train, heldout = held_out(whole, 0.3)
    assert len(train) + len(heldout) == 100
    assert 15 < len(heldout) < 45


def test_stratification_without_a_list_of_labels_takes_one_class():
    whole = dataclasses.replace(listed([0, 1, 0]), labels=None, stratified=True, split="train")
    train, heldout = held_out(whole, 0.01)
    assert len(train) == 2
    assert len(heldout) == 1
    single = dataclasses.replace(listed([0]), labels=None, stratified=True, split="train")
    assert "'train' has a single example" in failure(single.hold_out, "train", 0.1)


def test_stratification_needs_two_examples_of_each_present_class():
    single = listed([0, 1, 1], stratified=True)
    message = failure(single.hold_out, "train", 0.1)
    assert "'here'" in message
    assert "'cat'" in message
    declared = listed([0, 0, 2, 2], ("cat", "dog", "eel"), stratified=True)
    for part in held_out(declared, 0.1):
        assert part.class_counts().tolist() == [1, 0, 1]


@pytest.mark.parametrize("stratified", [False, True])
def test_holding_out_everything_is_refused(stratified):
    whole = listed([0, 0], stratified=stratified)
    message = failure(whole.hold_out, "heldout", -1e-9)
    assert "'heldout'" in message
    assert "heldout_share=1e-09 and as much for the search of settings" in message


def test_splits_are_read_on_demand_and_once():
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


def test_images_share_memory_with_their_array():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4, 1)
    images = ArrayImages(pixels)
    assert np.shares_memory(images[1]["image"], pixels)
