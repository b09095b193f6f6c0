"""Pathfinder's published layout: labels from lines of text, empty files left out, one line for each
mistake."""

import numpy as np
import pytest

from gmlp_flax.data.images.rows import PathfinderImages
from gmlp_flax.data.images.sources import open_images
from tests.data import writers
from tests.data.images.image_files import make_folder, png
from tests.failures import failure

# The first lines of a published file look so: folder, file, number, label, and the drawing's
# settings.
LINES = {
    "metadata/0.npy": [
        f"imgs/0 sample_{i}.png {i} {i % 2} 1 14 3 0.75 14 4 0.5\n" for i in range(6)
    ],
    "metadata/1.npy": [
        f"imgs/1 sample_{i}.png {i} {int(i < 3)} 1 14 3 0.75 14 4 0.5\n" for i in range(4)
    ],
}


def content(**changes):
    made = {name: "".join(lines).encode() for name, lines in LINES.items()}
    made |= {
        f"imgs/{folder}/sample_{i}.png": png(10 * folder + i)
        for folder, count in ((0, 6), (1, 4))
        for i in range(count)
    }
    return {name: data for name, data in (made | changes).items() if data is not None}


def folder(path, **changes):
    return str(make_folder(path / "curv_contour_length_14", content(**changes)))


def test_labels_and_images(tmp_path):
    source = open_images(folder(tmp_path)).of_split()
    assert (
        isinstance(source, PathfinderImages)
        and source.classes == ("apart", "joined")
        and len(source) == 10
    )
    found = {
        item["name"]: (int(item["label"]), item["image"]) for item in (source[i] for i in range(10))
    }
    assert found["imgs/0/sample_3.png"] == (1, png(3)) and found["imgs/1/sample_3.png"] == (
        0,
        png(13),
    )
    assert (
        source.labels.tolist() == [0, 1, 0, 1, 0, 1, 1, 1, 1, 0] and source.labels.dtype == np.int32
    )


def test_images_without_bytes_are_left_out(tmp_path):
    source = open_images(folder(tmp_path, **{"imgs/0/sample_2.png": b""})).of_split()
    assert len(source) == 9 and "imgs/0/sample_2.png" not in source.names


def test_a_remote_folder(tmp_path):
    folder(tmp_path)
    source = open_images(writers.remote(tmp_path / "curv_contour_length_14")).of_split()
    assert len(source) == 10 and source[3]["image"] == png(3)


@pytest.mark.parametrize("names", [["imgs/a.png", "imgs/b.png"], ["imgs/0/a.png", "imgs/1/b.png"]])
def test_another_folder_of_that_name(tmp_path, names):
    table = {"labels.csv": b"file,label\na.png,0\nb.png,1\n"}
    source = open_images(
        str(make_folder(tmp_path / "root", dict.fromkeys(names, png(1)) | table))
    ).of_split()
    assert source.classes == ("0", "1") and source.names == names


def test_missing_files(tmp_path):
    path = folder(tmp_path / "a", **{"imgs/1/sample_0.png": None, "imgs/1/sample_2.png": None})
    assert "2 of 10 images are missing, as 'imgs/1/sample_0.png'" in failure(open_images, path)
    assert "images and no metadata/*.npy" in failure(
        open_images, folder(tmp_path / "b", **{"metadata/0.npy": None, "metadata/1.npy": None})
    )
    path = folder(tmp_path / "d" / "pathfinder32")
    assert "give one of curv_contour_length_14" in failure(
        open_images, str(tmp_path / "d" / "pathfinder32")
    )
    empty = {name: b"" for name in content() if name.startswith("imgs")}
    assert "holds no image that has bytes" in failure(open_images, folder(tmp_path / "e", **empty))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"imgs/0 sample_0.png 0\n",
            "line 1: 'imgs/0 sample_0.png 0'; expected FOLDER FILE NUMBER LABEL",
        ),
        (
            b"imgs/0 sample_0.png 0 1 1\nimgs/0 sample_1.png 1 2 1\n",
            "line 2: 'imgs/0 sample_1.png 1 2 1'; expected",
        ),
        (b"imgs/0 sampl\xff.png 0 1 1\n", "1 of 5 images are missing, as"),
        (b"\x93NUMPY\x01\x00", "NUMPY\\x01\\x00'; expected FOLDER"),
        (b"../.. secret.png 0 1 1\n", "1 of 5 images are missing, as '../../secret.png'"),
    ],
)
def test_lines_of_another_form(tmp_path, data, message):
    assert message in failure(open_images, folder(tmp_path, **{"metadata/0.npy": data}))


def test_class_folders_of_these_names_are_what_they_were(tmp_path):
    """A folder that only looks a little like Pathfinder."""
    classes = {"metadata/a.png": png(1), "other/b.png": png(2), "imgs2/c.png": png(3)}
    assert open_images(str(make_folder(tmp_path / "a", classes))).of_split().classes == (
        "imgs2",
        "metadata",
        "other",
    )
    nested = {"imgs/cat/a.png": png(1), "imgs/dog/b.png": png(2)}
    assert open_images(str(make_folder(tmp_path / "b", nested))).of_split().classes == (
        "cat",
        "dog",
    )
