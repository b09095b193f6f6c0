"""Images in NumPy's .npz files, with the names of arrays that Keras and MedMNIST use."""

import datetime
import io
import pickle
import zipfile

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from gmlp_flax.data.images import decoding
from gmlp_flax.data.readers import npz
from tests.data import writers
from tests.data.images.image_files import noise
from tests.failures import failure

LABELS = [0, 1, 2, 0, 1, 2]
PIXELS = noise(6, 9, 7)


MODES = {1: "L", 3: "RGB"}


def saved(path, **arrays):
    file = path / "a.npz"
    np.savez(file, **arrays)
    return str(file)


def read_all(path):
    splits = npz.read(path)
    return {split: splits[split] for split in splits}


def read_one(path, **arrays):
    (dataset,) = read_all(saved(path, **arrays)).values()
    assert dataset.split == ""
    return dataset


def test_arrays_of_pixels_and_labels_are_a_data_set(tmp_path):
    dataset = read_one(tmp_path, images=PIXELS, labels=LABELS)
    assert dataset.classes == ("0", "1", "2")
    assert dataset.labels.tolist() == LABELS
    assert dataset.labels.dtype == np.int32
    assert dataset.columns == ("images", "labels")
    names = [file.name for file in dataset.files]
    assert names == ["a.npz"]
    assert dataset.stratified


@pytest.mark.parametrize("shape", [(6, 9, 7), (6, 9, 7, 1), (6, 9, 7, 3)])
@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_are_read_with_one_or_three_channels(tmp_path, shape, channels):
    pixels = noise(*shape)
    dataset = read_one(tmp_path, images=pixels, labels=LABELS)
    copy = pickle.loads(pickle.dumps(dataset))
    example = copy.examples[3]
    found = decoding.decoded(example, channels)
    original = Image.fromarray(pixels[3].squeeze())
    converted = original.convert(MODES[channels])
    expected = np.asarray(converted).reshape(9, 7, channels)
    assert_array_equal(found, expected)


def test_arrays_of_three_axes_have_no_axis_of_channels(tmp_path):
    """Three axes are height and width, even if the last is short."""
    dataset = read_one(tmp_path, images=noise(6, 9, 3), labels=LABELS)
    example = dataset.examples[0]
    assert example["image"].shape == (9, 3, 1)


@pytest.mark.parametrize(
    ("images", "labels", "label_shape"),
    [
        pytest.param("x_{}", "y_{}", (-1,), id="Keras"),
        pytest.param("{}_images", "{}_labels", (-1, 1), id="MedMNIST"),
    ],
)
def test_arrays_of_each_split_are_a_data_set(tmp_path, images, labels, label_shape):
    arrays = {}
    sizes = {"train": 6, "val": 2, "test": 4}
    for name, count in sizes.items():
        image_key = images.format(name)
        label_key = labels.format(name)
        arrays[image_key] = PIXELS[:count]
        arrays[label_key] = np.reshape(LABELS[:count], label_shape)
    splits = read_all(saved(tmp_path, **arrays))
    found_sizes = {}
    for split, dataset in splits.items():
        found_sizes[split] = len(dataset)
    assert found_sizes == {"train": 6, "validation": 2, "test": 4}
    test = splits["test"]
    assert test.split == "test"
    assert test.labels.tolist() == LABELS[:4]
    columns = (images.format("test"), labels.format("test"))
    assert test.columns == columns
    last = test.examples[3]
    channel = last["image"][..., 0]
    assert_array_equal(channel, PIXELS[3])


@pytest.mark.parametrize(
    ("labels", "dtype", "classes"),
    [
        ([b"b", b"a", b"\xc3\xa9"], None, ("a", "b", "é")),
        (["b", "a ", "c"], None, ("a", "b", "c")),
        ([True, False, True], None, ("false", "true")),
        ([0.0, 1.0, 2.5], None, ("0.0", "1.0", "2.5")),
        ([10, 9, 2], np.uint8, ("2", "9", "10")),
        ([-1, 0, 2**40], None, ("-1", "0", str(2**40))),
        ([2**64 - 1, 0, 1], np.uint64, ("0", "1", str(2**64 - 1))),
    ],
)
def test_labels_may_have_other_types(tmp_path, labels, dtype, classes):
    twice_labels = [*labels, *labels]
    twice = np.array(twice_labels, dtype)
    dataset = read_one(tmp_path, images=PIXELS, labels=twice)
    assert dataset.classes == classes
    numbers = dataset.labels.reshape(2, 3)
    first, second = numbers.tolist()
    assert first == second


def test_further_arrays_are_noted(tmp_path):
    arrays = {"x_train": PIXELS, "y_train": LABELS, "x_extra": PIXELS, "note": "hello"}
    splits = npz.read(saved(tmp_path, **arrays))
    (note,) = splits["train"].notes
    assert "'x_extra', 'note'" in note


def test_remote_and_compressed_files_are_read(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, images=PIXELS, labels=LABELS)
    address = writers.remote(tmp_path)
    remote = npz.read(f"{address}/a.npz")[""]
    local = npz.read(str(path))[""]
    last = remote.examples[5]
    channel = last["image"][..., 0]
    assert_array_equal(channel, PIXELS[5])
    assert local.fingerprint == remote.fingerprint


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, ["none"]),
        ({"a": np.zeros(3)}, ["images and labels", "x_train and y_train", "'a'"]),
        ({"x": PIXELS, "y": LABELS}, ["images and labels", "'x', 'y'"]),
        ({"labels": LABELS}, ["'labels'"]),
        ({"images": PIXELS}, ["labels has 0"]),
        ({"images": np.uint8(3), "labels": 3}, ["uint8 []"]),
        ({"images": noise(0, 9, 7), "labels": []}, ["uint8 [0, 9, 7]"]),
        ({"images": np.array([{}]), "labels": [1]}, ["numbers and strings"]),
        ({"images": PIXELS, "labels": LABELS, "x_test": PIXELS}, ["images, x_test"]),
        ({"x_train": PIXELS, "train_images": PIXELS}, ["x_train, train_images"]),
    ],
)
def test_other_arrays_are_refused(tmp_path, arrays, words):
    path = saved(tmp_path, **arrays)
    message = failure(read_all, path)
    for word in ("a.npz", *words):
        assert word in message


@pytest.mark.parametrize(
    ("images", "described"),
    [
        (PIXELS / 255, "float64 [6, 9, 7]"),
        (PIXELS.astype(np.int64), "int64 [6, 9, 7]"),
        (noise(6, 9, 7, 4), "uint8 [6, 9, 7, 4]"),
        (noise(6, 3, 9, 7), "uint8 [6, 3, 9, 7]"),
        (noise(6, 9), "uint8 [6, 9]"),
        (noise(6), "uint8 [6]"),
        (noise(6, 0, 7), "uint8 [6, 0, 7]"),
    ],
)
def test_images_of_other_types_and_shapes_are_refused(tmp_path, images, described):
    path = saved(tmp_path, images=images, labels=LABELS)
    message = failure(read_all, path)
    assert "a.npz" in message
    assert described in message


DATE = datetime.date(2026, 1, 1)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (LABELS[:5], ["labels has 5"]),
        (np.eye(6), ["labels has 36"]),
        (["ab", "x", "y", "x", "y", "Ab"], ["'Ab' (1)", "'ab' (1)"]),
        (["a", "b", "", "a", "b", "a"], ["labels[2]"]),
        ([0, 1, np.nan, 0, 1, 0], ["labels[2]"]),
        ([b"\xe9", b"\xe8"] * 3, ["labels[0]", "UTF-8"]),
        ([1j] * 6, ["labels[0]"]),
        (np.zeros(6, [("a", int)]), ["labels[0]"]),
        (np.array([DATE] * 6, "M8"), ["[0]"]),
    ],
)
def test_invalid_labels_are_refused(tmp_path, labels, words):
    path = saved(tmp_path, images=PIXELS, labels=labels)
    message = failure(read_all, path)
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
def test_files_that_are_not_npz_are_refused(tmp_path, data):
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    assert "a.npz" in failure(npz.read, str(path))


def test_truncated_files_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    saved(tmp_path, images=PIXELS, labels=LABELS)
    data = path.read_bytes()
    half = len(data) // 2
    for kept in (10, half, len(data) - 10):
        path.write_bytes(data[:kept])
        assert "a.npz" in failure(npz.read, str(path))


def test_flipped_bytes_are_noticed(tmp_path):
    path = tmp_path / "a.npz"
    saved(tmp_path, images=PIXELS, labels=LABELS)
    data = bytearray(path.read_bytes())
    position = data.index(PIXELS[2].tobytes())
    data[position] ^= 1
    path.write_bytes(data)
    assert "a.npz" in failure(npz.read, str(path))


def test_folders_with_the_name_of_a_file_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    path.mkdir()
    assert "a.npz" in failure(npz.read, str(path))
