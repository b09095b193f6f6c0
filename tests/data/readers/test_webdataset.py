"""WebDataset's shards: pairs of an image and a class in tar files."""

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
def test_images_and_classes(tmp_path, make):
    path = make(tmp_path)
    splits = webdataset.read(path)
    assert list(splits) == [""]
    dataset = pickle.loads(pickle.dumps(splits[""]))
    assert dataset.classes == CLASSES
    assert dataset.labels.tolist() == LABELS
    assert dataset.labels.dtype == np.int32
    got = [dataset.examples[index]["image"] for index in range(6)]
    expected = list(map(png, range(6)))
    assert got == expected
    assert dataset.examples.size(5) == len(png(5))
    assert len(set(dataset.examples.names)) == 6
    assert dataset.notes == ()
    assert dataset.stratified


def test_where_the_shards_lie_changes_neither_roles_nor_fingerprint(tmp_path):
    found = []
    for place in ("a", "b"):
        dataset = webdataset.read(shards(tmp_path / place))[""]
        heldout = dataset.hold_out("heldout", 0.3)
        found.append((dataset.fingerprint, heldout.examples.indices.tolist()))
    assert found[0] == found[1]
    assert len(found[0][1]) == 3


def test_names_and_files(tmp_path):
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
def test_splits_by_names(tmp_path, names):
    for name, indices in zip(names, (range(3), range(3, 6)), strict=True):
        path = tmp_path / name
        make_tar(path.parent, pairs(indices), name=path.name)
    splits = webdataset.read(str(tmp_path))
    assert sorted(splits) == ["test", "train"]
    for split, first in (("train", 0), ("test", 3)):
        assert splits[split].examples[0]["image"] == png(first)
        assert len(splits[split]) == 3
    joined = webdataset.read(str(tmp_path), ignore_splits=True)
    assert len(joined[""]) == 6


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (("train.tar", "more.tar"), "'more.tar'"),
        (("a-00000-of-00003.tar", "a-00001-of-00003.tar"), "00002-of-00003"),
    ],
)
def test_shards_of_no_split_or_missing(tmp_path, names, word):
    for name in names:
        make_tar(tmp_path, pairs([0]), name=name)
    assert word in failure(webdataset.read, str(tmp_path))


def test_files_of_other_kinds_are_counted(tmp_path):
    files = pairs(range(2)) | {"00000.json": b"{}", "00001.json": b"{}", ".h.png": b""}
    make_tar(tmp_path, files, name="a.tar")
    make_folder(tmp_path, {"index.json": b"", "README.md": b""})
    beside, inside = webdataset.read(str(tmp_path))[""].notes
    assert ".md 1" in beside
    assert "2 files" in inside
    assert ".json 2" in inside


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"x/a.jpg": b"1", "x/a.cls": b"b", "y/a.jpg": b"2", "y/a.cls": b"a"}, ["b", "a"]),
        ({"a.v1.jpg": b"1", "a.cls": b"3\n", "b.jpg": b"2", "b.cls": b" 10 "}, ["3", "10"]),
        ({"a.jpg": b"1", "a.cls": b"\xef\xbb\xbf7\r\n"}, ["7"]),
        ({"x.1/a.jpg": b"1", "x.1/a.cls": b"e\xcc\x81"}, ["\u00e9"]),
    ],
)
def test_keys_and_classes(tmp_path, files, expected):
    dataset = webdataset.read(str(make_tar(tmp_path, files)))[""]
    assert [dataset.classes[label] for label in dataset.labels] == expected


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
        (
            {"a.jpg": b"1", "a.cls": b"ox", "b.jpg": b"2", "b.cls": b"Ox"},
            ["'ox' (1)", "'Ox' (1)"],
        ),
        ({"a.json": b"1"}, ["1 tar file"]),
        ({}, ["1 tar file"]),
    ],
)
def test_shards_that_are_refused(tmp_path, files, words):
    path = str(make_tar(tmp_path, files))
    splits = webdataset.read(path)
    message = failure(splits.__getitem__, "")
    for word in (path, *words):
        assert word in message


def test_a_damaged_shard(tmp_path):
    shards(tmp_path)
    second = tmp_path / "shard-000001.tar"
    second.write_bytes(second.read_bytes()[:1500])
    splits = webdataset.read(str(tmp_path))
    assert str(second) in failure(splits.__getitem__, "")


@pytest.mark.parametrize(
    ("files", "expected"),
    [({"a.jpg": b"", "a.cls": b""}, True), ({"cls/a.jpg": b""}, False), ({}, False)],
)
def test_what_is_a_shard(tmp_path, files, expected):
    assert webdataset.is_shard(stores.open_tar(str(make_tar(tmp_path, files)))) == expected
