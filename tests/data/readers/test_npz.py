"""Images as NumPy's arrays: by split or not, of the names that Keras and MedMNIST use."""

import datetime
import io
import pickle
import zipfile

import numpy as np
import pytest
from PIL import Image

from gmlp_flax.data.images import decoding
from gmlp_flax.data.readers import npz
from tests.data import writers
from tests.data.images.image_files import noise
from tests.failures import failure

LABELS = [0, 1, 2, 0, 1, 2]
PIXELS = noise(6, 9, 7)


def saved(path, **arrays):
    np.savez(path / "a.npz", **arrays)
    return str(path / "a.npz")


def read_one(path, **arrays):
    splits = npz.read(saved(path, **arrays))
    assert list(splits) == [""]
    return splits[""]


@pytest.mark.parametrize("shape", [(6, 9, 7), (6, 9, 7, 1), (6, 9, 7, 3)])
@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_of_pixels(tmp_path, shape, channels):
    """A model of one channel or of three reads them."""
    pixels = noise(*shape)
    dataset = pickle.loads(pickle.dumps(read_one(tmp_path, images=pixels, labels=LABELS)))
    assert dataset.classes == ("0", "1", "2")
    assert dataset.labels.tolist() == LABELS
    assert dataset.labels.dtype == np.int32
    assert dataset.columns == ("images", "labels")
    assert [file.name for file in dataset.files] == ["a.npz"]
    assert dataset.stratified
    image = Image.fromarray(pixels[3].squeeze()).convert({1: "L", 3: "RGB"}[channels])
    found = decoding.decoded(dataset.examples[3], channels)
    np.testing.assert_array_equal(found, np.asarray(image).reshape(9, 7, channels))


def test_narrow_images_without_an_axis_of_channels(tmp_path):
    """Three axes are height and width, even if the last is short."""
    dataset = read_one(tmp_path, images=noise(6, 9, 3), labels=LABELS)
    assert dataset.examples[0]["image"].shape == (9, 3, 1)


KERAS = ("x_{}", "y_{}")
MED_MNIST = ("{}_images", "{}_labels")


@pytest.mark.parametrize("form", [KERAS, MED_MNIST])
def test_splits(tmp_path, form):
    arrays = {}
    for name, count in (("train", 6), ("val", 2), ("test", 4)):
        arrays[form[0].format(name)] = PIXELS[:count]
        labels = np.array(LABELS[:count])
        arrays[form[1].format(name)] = labels[:, None] if form is MED_MNIST else labels
    splits = npz.read(saved(tmp_path, **arrays))
    assert {split: len(splits[split]) for split in splits} == {
        "train": 6,
        "validation": 2,
        "test": 4,
    }
    test = splits["test"]
    assert test.split == "test"
    assert test.labels.tolist() == LABELS[:4]
    assert test.columns == (form[0].format("test"), form[1].format("test"))
    np.testing.assert_array_equal(test.examples[3]["image"][..., 0], PIXELS[3])


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.array([b"b", b"a", b"\xc3\xa9"] * 2), ("a", "b", "é")),
        (np.array(["b", "a ", "c"] * 2), ("a", "b", "c")),
        (np.array([True, False, True] * 2), ("false", "true")),
        (np.array([0.0, 1.0, 2.5] * 2), ("0.0", "1.0", "2.5")),
        (np.array([10, 9, 2] * 2, np.uint8), ("2", "9", "10")),
        (np.array([-1, 0, 2**40] * 2), ("-1", "0", str(2**40))),
        (np.array([2**64 - 1, 0, 1] * 2, np.uint64), ("0", "1", str(2**64 - 1))),
    ],
)
def test_labels_of_other_types(tmp_path, labels, classes):
    dataset = read_one(tmp_path, images=PIXELS, labels=labels)
    assert dataset.classes == classes
    got = dataset.labels[:3].tolist()
    expected = dataset.labels[3:].tolist()
    assert got == expected


def test_other_arrays_are_named(tmp_path):
    arrays = {"x_train": PIXELS, "y_train": LABELS, "x_extra": PIXELS, "note": "hello"}
    (note,) = npz.read(saved(tmp_path, **arrays))["train"].notes
    assert "'x_extra', 'note'" in note


def test_a_remote_file_and_a_compressed_one(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", images=PIXELS, labels=LABELS)
    path = writers.remote(tmp_path)
    dataset = npz.read(f"{path}/a.npz")[""]
    np.testing.assert_array_equal(dataset.examples[5]["image"][..., 0], PIXELS[5])
    local = npz.read(str(tmp_path / "a.npz"))[""]
    assert local.fingerprint == dataset.fingerprint


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, ["none"]),
        ({"a": np.zeros(3)}, ["images and labels", "x_train and y_train", "'a'"]),
        ({"x": PIXELS, "y": LABELS}, ["images and labels", "'x', 'y'"]),
        ({"labels": LABELS}, ["'labels'"]),
        ({"images": PIXELS}, ["labels has 0"]),
        ({"images": PIXELS / 255, "labels": LABELS}, ["float64 [6, 9, 7]"]),
        ({"images": PIXELS.astype(np.int64), "labels": LABELS}, ["int64 [6, 9, 7]"]),
        ({"images": PIXELS, "labels": LABELS[:5]}, ["labels has 5"]),
        ({"images": PIXELS, "labels": np.eye(6)}, ["labels has 36"]),
        ({"images": noise(6, 9, 7, 4), "labels": LABELS}, ["uint8 [6, 9, 7, 4]"]),
        ({"images": noise(6, 3, 9, 7), "labels": LABELS}, ["uint8 [6, 3, 9, 7]"]),
        ({"images": noise(6, 9), "labels": LABELS}, ["uint8 [6, 9]"]),
        ({"images": noise(6), "labels": LABELS}, ["uint8 [6]"]),
        ({"images": np.uint8(3), "labels": 3}, ["uint8 []"]),
        ({"images": noise(0, 9, 7), "labels": []}, ["uint8 [0, 9, 7]"]),
        ({"images": noise(6, 0, 7), "labels": LABELS}, ["uint8 [6, 0, 7]"]),
        ({"images": PIXELS, "labels": ["ab", "x", "y", "x", "y", "Ab"]}, ["'Ab' (1)", "'ab' (1)"]),
        ({"images": PIXELS, "labels": ["a", "b", "", "a", "b", "a"]}, ["labels[2]"]),
        ({"images": PIXELS, "labels": [0, 1, np.nan, 0, 1, 0]}, ["labels[2]"]),
        ({"images": PIXELS, "labels": [b"\xe9", b"\xe8"] * 3}, ["labels[0]", "UTF-8"]),
        ({"images": PIXELS, "labels": [1j] * 6}, ["labels[0]"]),
        ({"images": PIXELS, "labels": np.zeros(6, [("a", int)])}, ["labels[0]"]),
        ({"images": PIXELS, "labels": np.array([datetime.date(2026, 1, 1)] * 6, "M8")}, ["[0]"]),
        ({"images": np.array([{}]), "labels": [1]}, ["numbers and strings"]),
        ({"images": PIXELS, "labels": LABELS, "x_test": PIXELS}, ["images, x_test"]),
        ({"x_train": PIXELS, "train_images": PIXELS}, ["x_train, train_images"]),
    ],
)
def test_arrays_that_are_refused(tmp_path, arrays, words):
    path = saved(tmp_path, **arrays)

    def read():
        splits = npz.read(path)
        return [splits[split] for split in splits]

    message = failure(read)
    for word in ("a.npz", *words):
        assert word in message


def npy():
    file = io.BytesIO()
    np.save(file, PIXELS)
    return file.getvalue()


def zip_without_arrays():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("images.npy", b"no array")
    return file.getvalue()


@pytest.mark.parametrize("data", [b"", b"x", npy(), zip_without_arrays(), b"PK\3\4" + b"x" * 99])
def test_what_is_no_npz(tmp_path, data):
    (tmp_path / "a.npz").write_bytes(data)
    assert "a.npz" in failure(npz.read, str(tmp_path / "a.npz"))


def test_a_truncated_file(tmp_path):
    path = tmp_path / "a.npz"
    saved(tmp_path, images=PIXELS, labels=LABELS)
    data = path.read_bytes()
    for kept in (10, len(data) // 2, len(data) - 10):
        path.write_bytes(data[:kept])
        assert "a.npz" in failure(npz.read, str(path))


def test_a_flipped_byte(tmp_path):
    path = tmp_path / "a.npz"
    saved(tmp_path, images=PIXELS, labels=LABELS)
    data = bytearray(path.read_bytes())
    data[data.index(PIXELS[2].tobytes())] ^= 1
    path.write_bytes(data)
    assert "a.npz" in failure(npz.read, str(path))


def test_a_folder_called_as_a_file(tmp_path):
    (tmp_path / "a.npz").mkdir()
    failure(npz.read, str(tmp_path / "a.npz"))
