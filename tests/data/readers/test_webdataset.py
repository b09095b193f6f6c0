"""WebDataset shards: tar files with pairs of an image and a class."""

import pickle

import numpy as np
import pytest

from gmlp_flax.data.images import stores
from gmlp_flax.data.readers import webdataset
from tests.data import writers
from tests.data.images.image_files import make_folder, make_tar, png
from tests.failures import failure

CLASSES = ("cat", "dog", "eel")
LABELS = [0, 1, 2, 0, 1, 2]


def pairs(indices):
    """The files of a shard."""
    files = {}
    for index in indices:
        files[f"{index:05}.png"] = png(index)
        files[f"{index:05}.cls"] = CLASSES[LABELS[index]].encode()
    return files


def shards(folder):
    make_tar(folder, pairs(range(3)), name="shard-000000.tar")
    make_tar(folder, pairs(range(3, 6)), name="shard-000001.tar")
    return str(folder)


def single(folder):
    return str(make_tar(folder, pairs(range(6))))


def remote(folder):
    return writers.remote(shards(folder))


def remote_single(folder):
    single(folder / "x")
    return f"{writers.remote(folder / 'x')}/images.tar"


@pytest.mark.parametrize("make", [shards, single, remote, remote_single])
def test_pairs_are_images_and_classes(tmp_path, make):
    path = make(tmp_path)
    splits = webdataset.read(path)
    assert list(splits) == [""]
    pickled = pickle.dumps(splits[""])
    dataset = pickle.loads(pickled)
    assert dataset.classes == CLASSES
    assert dataset.labels.tolist() == LABELS
    assert dataset.labels.dtype == np.int32
    images = []
    for index in range(6):
        images.append(dataset.examples[index]["image"])
    expected = [png(index) for index in range(6)]
    assert images == expected
    names = set(dataset.examples.names)
    assert len(names) == 6
    size = dataset.examples.size(5)
    assert size == len(png(5))
    assert dataset.notes == ()
    assert dataset.stratified


def test_roles_and_fingerprints_do_not_depend_on_the_path(tmp_path):
    fingerprints = []
    heldout_indices = []
    for place in ("a", "b"):
        dataset = webdataset.read(shards(tmp_path / place))[""]
        heldout = dataset.hold_out("heldout", 0.3)
        fingerprints.append(dataset.fingerprint)
        heldout_indices.append(heldout.examples.indices.tolist())
    first, second = heldout_indices
    assert first == second
    assert len(first) == 3
    assert fingerprints[0] == fingerprints[1]


def test_names_of_images_have_their_shard(tmp_path):
    dataset = webdataset.read(shards(tmp_path))[""]
    assert dataset.examples.names[3] == "shard-000001.tar/00003.png"
    assert [file.name for file in dataset.files] == ["shard-000000.tar", "shard-000001.tar"]


@pytest.mark.parametrize(
    "names",
    [
        ("train-000000.tar", "test-000000.tar"),
        ("set-train-000.tar", "set-test-000.tar"),
        ("train/a.tar", "test/a.tar"),
    ],
)
def test_shards_are_splits_by_name(tmp_path, names):
    train, test = (tmp_path / name for name in names)
    train_pairs = pairs(range(3))
    make_tar(train.parent, train_pairs, name=train.name)
    test_pairs = pairs(range(3, 6))
    make_tar(test.parent, test_pairs, name=test.name)
    splits = webdataset.read(str(tmp_path))
    assert sorted(splits) == ["test", "train"]
    starts = (("train", 0), ("test", 3))
    for split, first in starts:
        dataset = splits[split]
        example = dataset.examples[0]
        assert example["image"] == png(first)
        assert len(dataset) == 3
    joined = webdataset.read(str(tmp_path), ignore_splits=True)
    assert len(joined[""]) == 6


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (("train.tar", "more.tar"), "'more.tar'"),
        (("a-00000-of-00003.tar", "a-00001-of-00003.tar"), "00002-of-00003"),
    ],
)
def test_partial_splits_and_missing_shards_are_refused(tmp_path, names, word):
    for name in names:
        make_tar(tmp_path, pairs([0]), name=name)
    message = failure(webdataset.read, str(tmp_path))
    assert word in message


def test_other_files_are_counted(tmp_path):
    files = pairs(range(2)) | {"00000.json": b"{}", "00001.json": b"{}", ".h.png": b""}
    make_tar(tmp_path, files, name="a.tar")
    make_folder(tmp_path, {"index.json": b"", "README.md": b""})
    in_folder, inside = webdataset.read(str(tmp_path))[""].notes
    assert ".md 1" in in_folder
    assert "2 files" in inside
    assert ".json 2" in inside


IN_FOLDERS = {"x/a.jpg": b"1", "x/a.cls": b"b", "y/a.jpg": b"2", "y/a.cls": b"a"}
NUMBERS = {"a.v1.jpg": b"1", "a.cls": b"3\n", "b.jpg": b"2", "b.cls": b" 10 "}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (IN_FOLDERS, ["b", "a"]),
        (NUMBERS, ["3", "10"]),
        ({"a.jpg": b"1", "a.cls": b"\xef\xbb\xbf7\r\n"}, ["7"]),
        ({"x.1/a.jpg": b"1", "x.1/a.cls": b"e\xcc\x81"}, ["\u00e9"]),
    ],
)
def test_classes_are_found_by_key(tmp_path, files, expected):
    path = make_tar(tmp_path, files)
    dataset = webdataset.read(str(path))[""]
    names = []
    for label in dataset.labels:
        names.append(dataset.classes[label])
    assert names == expected


TWO_SPELLINGS = {"a.jpg": b"1", "a.cls": b"ox", "b.jpg": b"2", "b.cls": b"Ox"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a.jpg": b"1"}, ["'a.jpg'", "'a.cls'"]),
        ({"a.cls": b"1"}, ["'a.cls'"]),
        ({"a.jpg": b"1", "b.cls": b"1"}, ["'a.jpg'"]),
        ({"a.jpg": b"1", "a.seg.png": b"1", "a.cls": b"1"}, ["'a.jpg'", "'a.seg.png'"]),
        ({"a.jpg": b"1", "a.cls": b"1", "a.x.cls": b"1"}, ["'a.x.cls'"]),
        ({"cat/a.jpg": b"1", "dog/b.jpg": b"1"}, ["'cat/a.jpg'", "class folders"]),
        ({"a.jpg": b"1", "a.cls": b""}, ["'a.cls'"]),
        ({"a.jpg": b"1", "a.cls": b" \n"}, ["'a.cls'"]),
        ({"a.jpg": b"1", "a.cls": b"\xff"}, ["a.cls", "UTF-8"]),
        (TWO_SPELLINGS, ["'ox' (1)", "'Ox' (1)"]),
        ({"a.json": b"1"}, ["1 tar file"]),
        ({}, ["1 tar file"]),
    ],
)
def test_incomplete_pairs_are_refused(tmp_path, files, words):
    path = str(make_tar(tmp_path, files))
    splits = webdataset.read(path)
    message = failure(splits.__getitem__, "")
    for word in (path, *words):
        assert word in message


def test_truncated_shards_are_refused(tmp_path):
    shards(tmp_path)
    second = tmp_path / "shard-000001.tar"
    content = second.read_bytes()
    second.write_bytes(content[:1500])
    splits = webdataset.read(str(tmp_path))
    assert str(second) in failure(splits.__getitem__, "")


@pytest.mark.parametrize(
    ("files", "expected"),
    [({"a.jpg": b"", "a.cls": b""}, True), ({"cls/a.jpg": b""}, False), ({}, False)],
)
def test_shards_are_recognised_by_their_files(tmp_path, files, expected):
    path = make_tar(tmp_path, files)
    store = stores.open_tar(str(path))
    assert webdataset.is_shard(store) == expected
