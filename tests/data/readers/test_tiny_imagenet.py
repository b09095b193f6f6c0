"""Tiny-ImageNet's folders: validation images with a val_annotations.txt."""

import pickle

import pytest

from gmlp_flax.data.images import stores
from gmlp_flax.data.readers import tiny_imagenet
from tests.data.images.image_files import (
    classes_by_name,
    empty_files,
    images_by_name,
    make_folder,
    make_tar,
)
from tests.failures import failure

TRAIN = {
    "train/n1/images/n1_0.JPEG": b"a",
    "train/n1/n1_boxes.txt": b"",
    "train/n2/images/n2_0.JPEG": b"b",
}
IMAGES = {"images/val_0.JPEG": b"0", "images/val_1.JPEG": b"1"}
LINES = b"val_0.JPEG\tn2\t0\t32\t44\t62\nval_1.JPEG\tn1\t52\t55\t57\t59\n"
EXPECTED = {"images/val_0.JPEG": "n2", "images/val_1.JPEG": "n1"}
WHOLE = TRAIN | empty_files("wnids.txt", "words.txt", "test/images/test_0.JPEG")
for name, data in (IMAGES | {"val_annotations.txt": LINES}).items():
    WHOLE[f"val/{name}"] = data


def opened(path, files):
    return stores.open_folder(str(make_folder(path / "root", files)))


def test_the_published_layout_is_read(tmp_path):
    store = opened(tmp_path, WHOLE)
    assert tiny_imagenet.matches(store)
    splits = tiny_imagenet.read(store)
    assert list(splits) == ["test", "train", "validation"]
    assert classes_by_name(splits["train"]) == {
        "train/n1/images/n1_0.JPEG": "n1",
        "train/n2/images/n2_0.JPEG": "n2",
    }
    validation = pickle.loads(pickle.dumps(splits["validation"]))
    expected = {f"val/{key}": value for key, value in EXPECTED.items()}
    assert classes_by_name(validation) == expected
    images = images_by_name(validation)
    assert images["val/images/val_1.JPEG"] == b"1"
    (note,) = validation.notes
    assert "3 files" in note


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_the_validation_folder_may_be_read_alone(tmp_path, kind):
    files = IMAGES | {"val_annotations.txt": LINES}
    store = opened(tmp_path, files)
    if kind == "tar":
        store = stores.open_tar(str(make_tar(tmp_path, files)))
    assert tiny_imagenet.matches(store)
    dataset = tiny_imagenet.read(store)["validation"]
    assert classes_by_name(dataset) == EXPECTED
    assert dataset.notes == ()


def test_missing_images_are_noted(tmp_path):
    files = {"images/val_1.JPEG": b"", "val_annotations.txt": LINES}
    store = opened(tmp_path, files)
    dataset = tiny_imagenet.read(store)["validation"]
    assert classes_by_name(dataset) == {"images/val_1.JPEG": "n1"}
    (note,) = dataset.notes
    assert "1 of 2" in note


@pytest.mark.parametrize("name", ["val/x/val_annotations.txt", "test/val_annotations.txt"])
def test_lists_in_other_folders_are_ignored(tmp_path, name):
    store = opened(tmp_path, empty_files("val/a/1.png", name))
    assert not tiny_imagenet.matches(store)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (b"", ["'val/images/val_0.JPEG'"]),
        (LINES.replace(b"val_1", b"val_2"), ["'val/images/val_1.JPEG'"]),
        (LINES.replace(b"\tn1\t52\t55\t57\t59", b""), ["line 2"]),
        (b"\n" + LINES, ["line 1"]),
        (LINES.replace(b"n1", b"n\xe9"), ["UTF-8"]),
        (LINES.decode().encode("utf-16"), ["UTF-8"]),
    ],
)
def test_invalid_lists_are_refused_when_the_split_is_read(tmp_path, lines, words):
    store = opened(tmp_path, WHOLE | {"val/val_annotations.txt": lines})
    splits = tiny_imagenet.read(store)
    assert len(splits["train"]) == 2
    message = failure(splits.__getitem__, "validation")
    for word in words:
        assert word in message


def test_ignoring_splits_is_refused(tmp_path):
    store = opened(tmp_path, WHOLE)
    assert store.path in failure(tiny_imagenet.read, store, ignore_splits=True)
    alone = opened(tmp_path / "a", IMAGES | {"val_annotations.txt": LINES})
    assert alone.path in failure(tiny_imagenet.read, alone, ignore_splits=True)
