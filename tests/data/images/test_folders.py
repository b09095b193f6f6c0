"""Helpers of the readers of image folders: images, other files, and the folders of splits."""

import numpy as np
import pytest

from gmlp_flax.data.images import folders, stores
from tests.data.images.image_files import classes_by_name, empty_files, make_folder
from tests.failures import failure


def opened(path, *names):
    folder = make_folder(path / "root", empty_files(*names))
    return stores.open_folder(str(folder))


def test_unread_files_are_counted_by_suffix(tmp_path):
    store = opened(tmp_path, "a/1.png", "a/2.JPG", "a/x.xml", "b.csv", "b/y.xml", "README", ".h")
    assert store.images == ("a/1.png", "a/2.JPG")
    folders.require_images(store)
    note = folders.unread_files_note(store)
    for text in (store.path, "4 files", ".xml 2", ".csv 1", "no suffix 1"):
        assert text in note
    note = folders.unread_files_note(store, ["b.csv", "README"])
    assert ".xml 2" in note
    assert ".csv" not in note


def test_folders_with_only_images_need_no_note(tmp_path):
    store = opened(tmp_path, "a/1.png", "a/t.csv")
    assert folders.unread_files_note(store, ["a/t.csv"]) == ""


def test_note_says_what_to_do_about_photos_in_heic(tmp_path):
    store = opened(tmp_path, "a/1.png", "a/2.HEIC")
    note = folders.unread_files_note(store)
    assert note.endswith("1 file not read (.heic 1); convert HEIC photos to JPEG")


@pytest.mark.parametrize(("names", "kinds"), [(["a.txt", "b/c.heic"], ".heic 1"), ([], "no files")])
def test_folders_without_images_are_refused(tmp_path, names, kinds):
    store = opened(tmp_path, *names)
    message = failure(folders.require_images, store)
    assert kinds in message
    assert "ROOT/CLASS/FILES" in message
    assert ("convert HEIC photos to JPEG" in message) == (".heic" in kinds)


def test_names_are_grouped_by_first_folder():
    names = ["a/1", "a/b/2", "c/3", "4", "ab/5"]
    assert folders.first_folders(names) == {
        "a": ["a/1", "a/b/2"],
        "c": ["c/3"],
        "": ["4"],
        "ab": ["ab/5"],
    }
    below_a = folders.first_folders(names, "a/")
    assert below_a == {"": ["a/1"], "b": ["a/b/2"]}


def with_images(*tops):
    return [f"{top}/x/1.png" for top in tops]


@pytest.mark.parametrize(
    ("tops", "expected"),
    [
        (["cat", "dog"], {"": ""}),
        (["train", "val"], {"train": "train/", "validation": "val/"}),
        (["TRAINING", "Dev"], {"train": "TRAINING/", "validation": "Dev/"}),
        (["valid", "testing"], {"validation": "valid/", "test": "testing/"}),
        (["validation", "test"], {"validation": "validation/", "test": "test/"}),
        (["eval"], {"validation": "eval/"}),
        (["train"], {"train": "train/"}),
        # Names that only contain a word of a split.
        (["trains", "latest"], {"": ""}),
        (["ice_rink", "train_interior"], {"": ""}),
        (["bullet_train"], {"": ""}),
        (["train2"], {"": ""}),
    ],
)
def test_split_folders_are_recognised_by_name(tmp_path, tops, expected):
    store = opened(tmp_path, *with_images(*tops))
    assert folders.split_folders(store) == expected


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (with_images("cat", "test"), ["'cat'", "'test'"]),
        (with_images("train", "extra"), ["'train'", "'extra'"]),
        ([*with_images("train"), "1.png"], ["'train'", "'1.png'"]),
        (with_images("val", "valid"), ["'val'", "'valid'", "'validation'"]),
        (with_images("train1", "train2", "val1"), ["'train1'", "'train2'", "'val1'"]),
        (with_images("train.X1", "train.X2", "val.X"), ["'train.X1'"]),
        (with_images("train2017", "val2017"), ["'train2017'"]),
        (with_images("seg_train", "seg_test"), ["'seg_train'"]),
    ],
)
def test_ambiguous_names_of_splits_are_refused(tmp_path, names, words):
    store = opened(tmp_path, *names)
    message = failure(folders.split_folders, store)
    for word in words:
        assert word in message
    assert folders.split_folders(store, ignore_splits=True) == {"": ""}


def test_folders_without_images_are_not_splits(tmp_path):
    store = opened(tmp_path, "cat/1.png", "dog/1.png", "test/notes.txt")
    assert folders.split_folders(store) == {"": ""}


def test_labelled_images_are_a_data_set(tmp_path):
    store = opened(tmp_path, "b.png", "a.png", "c.png")
    class_of = {"b.png": "10", "a.png": "9"}
    dataset = folders.labelled(store, "a form", "test", class_of)
    assert dataset.classes == ("9", "10")
    assert classes_by_name(dataset) == class_of
    assert dataset.labels.tolist() == [0, 1]
    assert dataset.labels.dtype == np.int32
    assert dataset.path == store.path
    assert dataset.form == "a form"
    assert dataset.split == "test"
    assert dataset.notes == ()
    assert dataset.stratified


def test_tables_with_more_rows_than_images_are_noted(tmp_path):
    store = opened(tmp_path, "b.png")
    assert folders.missing_note(store, "t.csv", 3, 3) == ""
    note = folders.missing_note(store, "t.csv", 1003, 3)
    for text in ("1,000 of 1,003", "t.csv", store.path):
        assert text in note
