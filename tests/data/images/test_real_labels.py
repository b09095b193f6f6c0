"""ReaL labels are matched by the numbers in names of images, and checked before training."""

import json
import pickle

import numpy as np
import pytest

from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.data.images.real_labels import with_real_labels
from gmlp_flax.data.readers import images as image_reader
from tests.data import writers
from tests.data.images import image_files
from tests.failures import failure

TWO = ("a/ILSVRC2012_val_00000001.JPEG", "b/ILSVRC2012_val_00000002.JPEG")


def folder(path, *names):
    """Images in class folders."""
    root = image_files.make_folder(path / "images", image_files.empty_files(*names))
    return image_reader.read(str(root))[""]


def written(path, labels):
    file = path / "real.json"
    file.write_text(json.dumps(labels))
    return str(file)


def test_labels_follow_the_number_in_the_name(tmp_path):
    names = [
        "a/ILSVRC2012_val_00000003.JPEG",
        "b/ILSVRC2012_val_00000001.JPEG",
        "b/ILSVRC2012_val_00000002.JPEG",
    ]
    plain = folder(tmp_path, *names)
    dataset = with_real_labels(plain, written(tmp_path, [[0, 1], [], [1]]))
    assert len(dataset) == 3
    assert dataset.classes == ("a", "b")
    assert dataset.labels.tolist() == [0, 1, 1]
    examples = pickle.loads(pickle.dumps(dataset.examples))
    for index, expected in enumerate([[1, -1], [0, 1], [-1, -1]]):
        assert examples[index]["real"].tolist() == expected
    assert examples[0]["real"].dtype == np.int32
    assert examples[0]["name"] == names[0]
    assert dataset.fingerprint == plain.fingerprint


def test_parts_keep_their_real_labels(tmp_path):
    plain = folder(tmp_path, *TWO)
    labels = written(tmp_path, [[0], [1]])
    dataset = with_real_labels(plain, labels)
    part = dataset.take(np.array([1]))
    example = part.examples[0]
    assert example["real"].tolist() == [1]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"a": 1}, ["real.json", "dict"]),
        ([[0], 1], ["config.eval.real_labels", "list of labels"]),
        ([[0], [True]], ["list of labels"]),
        ([[0], [1.0]], ["list of labels"]),
        ([[0], [-1]], ["list of labels"]),
        ([[0], [2**31]], ["list of labels"]),
        ([[0], ["1"]], ["list of labels"]),
        ([[0], [[1]]], ["list of labels"]),
        ([[], []], ["list of labels"]),
        ([], ["list of labels"]),
        ([[0], [2]], ["label 2", "2 classes"]),
        ([[0]], ["1 images", repr(TWO[1])]),
    ],
)
def test_invalid_lists_of_labels_are_refused(tmp_path, labels, words):
    images = folder(tmp_path, *TWO)
    path = written(tmp_path, labels)
    message = failure(with_real_labels, images, path)
    for word in words:
        assert word in message


@pytest.mark.parametrize("data", [b"", b"[[0], [1]", b"\xff\xfe[\0]\0", b"x" * 10])
def test_files_that_are_not_json_are_refused(tmp_path, data):
    path = tmp_path / "real.json"
    path.write_bytes(data)
    images = folder(tmp_path, *TWO)
    assert "real.json" in failure(with_real_labels, images, str(path))


def test_names_inside_records_are_checked_when_they_are_read(tmp_path):
    shards = {"validation": [[b"damaged", image_files.record(9)]]}
    path = writers.tfds_folder(tmp_path / "5.2.0", shards, "tfrecord", **image_files.FEATURES)
    plain = image_reader.read(str(path))["validation"]
    dataset = with_real_labels(plain, written(tmp_path, [[2]]))
    message = failure(dataset.examples.__getitem__, 1)
    assert "1 images" in message
    assert "'ILSVRC2012_val_00000010.JPEG'" in message


@pytest.mark.parametrize(
    "name",
    ["a/photo.png", "a/ILSVRC2012_val_1.JPEG", "a/ILSVRC2012_val_00000000.JPEG"],
)
def test_names_without_the_number_of_an_image_are_refused(tmp_path, name):
    images = folder(tmp_path, name)
    path = written(tmp_path, [[0], []])
    message = failure(with_real_labels, images, path)
    assert repr(name) in message


def test_images_in_memory_are_refused(tmp_path):
    path = written(tmp_path, [[0]])
    message = failure(with_real_labels, embedded_digits("heldout"), path)
    assert "config.eval.real_labels" in message
    assert "'image 0'" in message
