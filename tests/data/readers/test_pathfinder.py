"""Pathfinder's published layout: labels are lines of text, and empty images are left out."""

import pickle

import numpy as np
import pytest

from gmlp_flax.data.readers import pathfinder
from gmlp_flax.io.records import BadRecord
from tests.data import writers
from tests.data.images.image_files import classes_by_name, images_by_name, make_folder, png
from tests.failures import failure

# A published line has the folder, file, number, label, and the settings of the drawing.
SETTINGS = "1 14 3 0.75 14 4 0.5"


def content():
    """Six images in imgs/0, the odd ones joined, and four in imgs/1, the first three joined."""
    first_labels = [0, 1, 0, 1, 0, 1]
    labels = {0: first_labels, 1: [1, 1, 1, 0]}
    files = {}
    for folder_number, folder_labels in labels.items():
        images = f"imgs/{folder_number}"
        lines = ""
        for number, label in enumerate(folder_labels):
            name = f"sample_{number}.png"
            lines += f"{images} {name} {number} {label} {SETTINGS}\n"
            path = f"{images}/{name}"
            files[path] = png(10 * folder_number + number)
        files[f"metadata/{folder_number}.npy"] = lines.encode()
    return files


def folder(path, **changes):
    """The folder, with some files changed, or left out if they are None."""
    files = {}
    for name, data in (content() | changes).items():
        if data is not None:
            files[name] = data
    return str(make_folder(path / "curv_contour_length_14", files))


def test_published_layout_is_read(tmp_path):
    path = folder(tmp_path)
    assert pathfinder.matches(path)
    splits = pathfinder.read(path)
    assert list(splits) == [""]
    pickled = pickle.dumps(splits[""])
    dataset = pickle.loads(pickled)
    assert dataset.classes == ("apart", "joined")
    labels = dataset.labels.tolist()
    assert labels == [0, 1, 0, 1, 0, 1, 1, 1, 1, 0]
    assert dataset.labels.dtype == np.int32
    found = classes_by_name(dataset)
    assert found["imgs/0/sample_3.png"] == "joined"
    assert found["imgs/1/sample_3.png"] == "apart"
    images = images_by_name(dataset)
    assert images["imgs/0/sample_3.png"] == png(3)
    assert images["imgs/1/sample_3.png"] == png(13)
    size = dataset.examples.size(3)
    assert size == len(png(3))
    assert dataset.notes == ()
    assert dataset.stratified


def test_images_without_bytes_or_lines_are_left_out_and_counted(tmp_path):
    changes = {"imgs/0/sample_2.png": b"", "imgs/0/sample_4.png": b"", "imgs/2/x.png": png(1)}
    dataset = pathfinder.read(folder(tmp_path, **changes))[""]
    assert len(dataset) == 8
    assert "imgs/0/sample_2.png" not in dataset.examples.names
    without_bytes, without_lines = dataset.notes
    assert "2 images without bytes" in without_bytes
    assert "1 image " in without_lines


def test_remote_folders_are_read(tmp_path):
    folder(tmp_path)
    path = writers.remote(tmp_path / "curv_contour_length_14")
    assert pathfinder.matches(path)
    dataset = pathfinder.read(path)[""]
    assert len(dataset) == 10
    example = dataset.examples[3]
    assert example["image"] == png(3)
    local_path = str(tmp_path / "curv_contour_length_14")
    local = pathfinder.read(local_path)[""]
    assert local.fingerprint == dataset.fingerprint


def test_missing_files_are_bad_records(tmp_path):
    path = folder(tmp_path)
    dataset = pathfinder.read(path)[""]
    (tmp_path / "curv_contour_length_14/imgs/0/sample_0.png").unlink()
    with pytest.raises(BadRecord, match=r"sample_0.png"):
        dataset.examples[0]


EMPTY_IMAGES = {name: b"" for name in content() if name.startswith("imgs")}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"imgs/1/sample_0.png": None, "imgs/1/sample_2.png": None},
            ["2 of 10", "'imgs/1/sample_0.png'"],
        ),
        ({"metadata/0.npy": None, "metadata/1.npy": None}, ["metadata/*.npy"]),
        (EMPTY_IMAGES, ["no image"]),
        ({"metadata/0.npy": b"", "metadata/1.npy": b"\n"}, ["no image"]),
        ({"metadata/0.npy": b"imgs/0 sample_0.png 0\n"}, ["line 1", "'imgs/0 sample_0.png 0'"]),
        (
            {"metadata/0.npy": b"imgs/0 sample_0.png 0 1 1\nimgs/0 sample_1.png 1 2 1\n"},
            ["line 2", "'imgs/0 sample_1.png 1 2 1'"],
        ),
        ({"metadata/0.npy": b"imgs/0 sampl\xff.png 0 1 1\n"}, ["1 of 5"]),
        ({"metadata/0.npy": b"\x93NUMPY\x01\x00"}, ["line 1", "NUMPY"]),
        ({"metadata/0.npy": b"../.. secret.png 0 1 1\n"}, ["1 of 5", "'../../secret.png'"]),
    ],
)
def test_invalid_folders_are_refused(tmp_path, changes, words):
    path = folder(tmp_path, **changes)
    assert pathfinder.matches(path)
    message = failure(lambda: pathfinder.read(path)[""])
    for word in words:
        assert word in message


def test_lines_may_end_with_crlf(tmp_path):
    lines = content()["metadata/0.npy"].replace(b"\n", b"\r\n")
    path = folder(tmp_path, **{"metadata/0.npy": lines})
    dataset = pathfinder.read(path)[""]
    assert len(dataset) == 10


def test_the_folder_of_all_difficulties_is_refused(tmp_path):
    folder(tmp_path / "pathfinder32")
    message = failure(pathfinder.matches, str(tmp_path / "pathfinder32"))
    assert "curv_contour_length_14" in message


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["metadata/a.png", "other/b.png", "imgs2/c.png"], False),
        (["imgs/cat/a.png", "imgs/dog/b.png"], False),
        (["imgs/a.png", "imgs/b.png"], False),
        (["cat/a.png", "dog/b.png"], False),
        (["imgs/0/sample_1.png"], True),
        (["imgs/0/sample_1.png", "metadata/x"], True),
    ],
)
def test_layout_is_recognised_by_its_names(tmp_path, names, expected):
    files = dict.fromkeys(names, b"")
    path = make_folder(tmp_path / "root", files)
    assert pathfinder.matches(str(path)) == expected
