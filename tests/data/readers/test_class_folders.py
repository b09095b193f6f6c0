"""Class folders, with and without splits, as a folder, a tar file and a remote folder."""

import os
import pickle
import unicodedata

import numpy as np
import pytest

from gmlp_flax.data.images import stores
from gmlp_flax.data.readers import class_folders
from tests.data import writers
from tests.data.images.image_files import (
    classes_by_name,
    empty_files,
    images_by_name,
    make_folder,
    make_tar,
    open_store,
)
from tests.failures import failure

COMPOSED = unicodedata.normalize("NFC", "été")
DECOMPOSED = unicodedata.normalize("NFD", "été")
FILES = {
    "dog/b.PNG": b"b",
    "dog/a.jpg": b"a",
    "cat/images/c.jpeg": b"c",
    "cat/d.JFIF": b"dd",
    "cat/.hidden.jpg": b"",
    "cat/boxes.txt": b"",
    "__MACOSX/dog/a.jpg": b"",
    "wnids.txt": b"",
}


def opened(path, *names):
    return stores.open_folder(str(make_folder(path / "root", empty_files(*names))))


def counts(splits):
    """Split -> class -> number of its images."""
    found = {}
    for split in splits:
        dataset = splits[split]
        numbers = dataset.class_counts().tolist()
        found[split] = dict(zip(dataset.classes, numbers, strict=True))
    return found


def folder(path):
    return str(make_folder(path / "photos", FILES))


def tar(path):
    return str(make_tar(path, FILES))


def remote(path):
    return writers.remote(make_folder(path / "photos", FILES))


@pytest.mark.parametrize("make", [folder, tar, remote])
def test_folders_are_classes_of_images(tmp_path, make):
    path = make(tmp_path)
    splits = class_folders.read(open_store(path))
    assert list(splits) == [""]
    dataset = pickle.loads(pickle.dumps(splits[""]))
    assert dataset.path == path
    assert dataset.split == ""
    assert dataset.classes == ("cat", "dog")
    assert classes_by_name(dataset) == {
        "cat/d.JFIF": "cat",
        "cat/images/c.jpeg": "cat",
        "dog/a.jpg": "dog",
        "dog/b.PNG": "dog",
    }
    for name, image in images_by_name(dataset).items():
        assert image == FILES[name]
    assert dataset.labels.tolist() == [0, 0, 1, 1]
    assert dataset.labels.dtype == np.int32
    assert dataset.stratified
    deeper, others = dataset.notes
    assert "'cat/images'" in deeper
    assert ".txt 2" in others


def test_fingerprints_do_not_depend_on_the_kind_of_store(tmp_path):
    fingerprints = []
    for make in (folder, tar, remote):
        store = open_store(make(tmp_path / make.__name__))
        dataset = class_folders.read(store)[""]
        fingerprints.append(dataset.fingerprint)
    of_folder, of_tar, of_remote = fingerprints
    assert of_folder["images"] == 4
    assert of_tar == of_folder
    assert of_remote == of_folder


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # Photographs sorted further within their class (pytorch/vision 80).
        (["cat/1.jpg", "cat/indoor/2.jpg", "dog/3.jpg"], {"": {"cat": 2, "dog": 1}}),
        (["cat/2021-03-01/1.jpg", "dog/x/y/4.jpg"], {"": {"cat": 1, "dog": 1}}),
        (["cat/a/1.jpg", "cat/b/2.jpg", "dog/a/3.jpg"], {"": {"cat": 2, "dog": 1}}),
        # Domains, and the classes in each: the first folder is the class, and a note says so.
        (["art/cat/1.jpg", "art/dog/1.jpg", "photo/cat/2.jpg"], {"": {"art": 2, "photo": 1}}),
        # Tiny-ImageNet and its like.
        (["train/n1/images/1.jpg", "train/n2/images/2.jpg"], {"train": {"n1": 1, "n2": 1}}),
        (
            ["Training/a/1.jpg", "Training/b/1.jpg", "DEV/a/1.jpg", "DEV/a/2.jpg"],
            {"train": {"a": 1, "b": 1}, "validation": {"a": 2}},
        ),
        (
            ["train/a/1.jpg", "valid/a/1.jpg", "testing/a/1.jpg"],
            {"train": {"a": 1}, "validation": {"a": 1}, "test": {"a": 1}},
        ),
        # Classes that are called as a split.
        (["train/train/1.jpg", "train/bus/1.jpg"], {"train": {"bus": 1, "train": 1}}),
        (["ice_rink/1.jpg", "train_interior/2.jpg"], {"": {"ice_rink": 1, "train_interior": 1}}),
        # Numbers by size, letters in capitals and without.
        (["10/1.jpg", "9/1.jpg", "9/2.jpg"], {"": {"9": 2, "10": 1}}),
        (["0.5/1.png", "1.5/2.png"], {"": {"0.5": 1, "1.5": 1}}),
        (["A/1.png", "a/2.png", "b/3.png"], {"": {"A": 1, "a": 1, "b": 1}}),
        # Names that look alike, or are strange.
        ([f"{COMPOSED}/1.png", f"{DECOMPOSED}/2.png", "cat/1.png"], {"": {"cat": 1, COMPOSED: 2}}),
        (["cat /1.png", "cat/2.png", "dog/3.png"], {"": {"cat": 2, "dog": 1}}),
        (["猫/1.png", "a'b\"c/2.png", "x.png/3.png"], {"": {"a'b\"c": 1, "x.png": 1, "猫": 1}}),
        (["a\nb/1.png", "c/2.png"], {"": {"a\nb": 1, "c": 1}}),
    ],
)
def test_class_folders_may_be_in_folders_of_splits(tmp_path, names, expected):
    store = opened(tmp_path, *names)
    found = counts(class_folders.read(store))
    assert found == expected
    for split, classes in expected.items():
        found_classes = list(found[split])
        assert found_classes == list(classes)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["cat/a.jpg", "b.jpg"], ["'b.jpg'", "no class folder"]),
        (["train/1.jpg", "val/2.jpg"], ["'train/1.jpg'", "labels.csv"]),
        (["cat/a.jpg", "dog/notes.txt"], ["'dog'", ".txt 1"]),
        (["train/cat/a.jpg", "train/dog/x.heic", "val/cat/a.jpg"], ["'train/dog'", ".heic 1"]),
        (["cat/a.jpg", "Cat/b.jpg", "Cat/c.jpg"], ["'cat' (1)", "'Cat' (2)"]),
        (["so so/a.jpg", "so  so/b.jpg"], ["'so so'", "'so  so'"]),
        (["cat/a.jpg", " /b.jpg"], ["''"]),
        # A folder around the classes.
        (["archive/cat/1.jpg", "archive/dog/2.jpg"], ["'archive'"]),
        (["archive/train/cat/1.jpg", "archive/train/dog/2.jpg"], ["'archive'"]),
        (["train/archive/cat/1.jpg", "train/archive/dog/2.jpg"], ["'train/archive'"]),
        (["Data/CLS-LOC/train/n1/1.JPEG", "Annotations/x.xml"], ["'Annotations'", ".xml 1"]),
        # Splits inside classes.
        (["cat/train/1.jpg", "cat/val/2.jpg", "dog/val/1.jpg"], ["'cat/train'", "train/CLASS"]),
        (["cat/1.jpg", "cat/TEST/2.jpg", "dog/1.jpg"], ["'cat/TEST'"]),
        (["train/cat/test/1.jpg", "train/dog/2.jpg"], ["'train/cat/test'"]),
    ],
)
def test_other_layouts_are_refused(tmp_path, names, words):
    def read():
        store = opened(tmp_path, *names)
        splits = class_folders.read(store)
        return [splits[split] for split in splits]

    message = failure(read)
    for word in words:
        assert word in message


def test_a_tar_file_of_a_single_folder_is_refused(tmp_path):
    """`tar -cf photos.tar photos` makes such a file."""
    path = make_tar(tmp_path, empty_files("photos/cat/1.png", "photos/dog/2.png"))
    splits = class_folders.read(stores.open_tar(str(path)))
    assert "tar -C photos" in failure(splits.__getitem__, "")


def test_empty_class_folders_are_refused(tmp_path):
    empty = {"cat/1.png": b"", "dog": None}
    hidden = {"cat/1.png": b"", "dog/.DS_Store": b""}
    paths = [
        make_folder(tmp_path / "a", empty),
        make_tar(tmp_path, empty),
        make_folder(tmp_path / "b", hidden),
    ]
    for path in paths:
        splits = class_folders.read(open_store(str(path)))
        assert "'dog'" in failure(splits.__getitem__, "")


def test_classes_with_invalid_utf8_are_refused(tmp_path):
    """It could not be printed, or written to a run's list of classes."""
    opened(tmp_path, "cat/1.png")
    root = os.fsencode(tmp_path / "root")
    folder_name = os.path.join(root, b"caf\xe9")
    os.mkdir(folder_name)
    with open(os.path.join(folder_name, b"1.png"), "wb"):
        pass
    store = stores.open_folder(str(tmp_path / "root"))
    splits = class_folders.read(store)
    failure(splits.__getitem__, "").encode()


def test_splits_are_refused_only_if_they_are_read(tmp_path):
    names = ["train/a/1.jpg", "train/b/1.jpg", "test/1.jpg"]
    splits = class_folders.read(opened(tmp_path, *names))
    assert len(splits["train"]) == 2
    assert "'test/1.jpg'" in failure(splits.__getitem__, "test")


@pytest.mark.parametrize("first", ["train", "cat"])
def test_splits_may_be_ignored(tmp_path, first):
    names = [f"{first}/1.jpg", "test/x/2.jpg", "extra/train/3.jpg"]
    store = opened(tmp_path, *names)
    failure(class_folders.read, store)
    whole = class_folders.read(store, ignore_splits=True)
    expected = {"extra": 1, first: 1, "test": 1}
    assert counts(whole) == {"": expected}


def test_single_classes_are_left_to_the_task(tmp_path):
    splits = class_folders.read(opened(tmp_path, "cat/1.png", "cat/2.png"))
    assert counts(splits) == {"": {"cat": 2}}


def test_links_to_class_folders_are_followed(tmp_path):
    real = make_folder(tmp_path / "real", {"cat/1.png": b"1", "dog/1.png": b"2"})
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in ("cat", "dog"):
        (linked / name).symlink_to(real / name)
    store = stores.open_folder(str(linked))
    dataset = class_folders.read(store)[""]
    assert dataset.classes == ("cat", "dog")
    assert dataset.examples.content(1) == b"2"


def test_held_out_images_depend_on_names_only(tmp_path):
    files = []
    for number in range(20):
        files += [f"a/{number}.png", f"b/{number}.png"]
    held_out = []
    for place in ("x", "y"):
        store = opened(tmp_path / place, *files)
        part = class_folders.read(store)[""].hold_out("heldout", 0.2)
        held_out.append(classes_by_name(part))
    first, second = held_out
    assert first == second
    assert 2 < len(first) < 20
