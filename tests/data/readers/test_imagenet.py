"""ImageNet's folders: validation images with Kaggle's list of their classes."""

import pickle

import pytest

from gmlp_flax.data.images import stores
from gmlp_flax.data.readers import imagenet
from tests.data import writers
from tests.data.images.image_files import (
    classes_by_name,
    empty_files,
    images_by_name,
    make_folder,
    make_tar,
)
from tests.failures import failure

SOLUTION = "LOC_val_solution.csv"
ROWS = (
    b"ImageId,PredictionString\n"
    b"ILSVRC2012_val_00000001,n2 85 1 499 272 \n"
    b"ILSVRC2012_val_00000002,n1 1 2 3 4 n1 5 6 7 8\n"
    b"ILSVRC2012_val_00000003,n2 0 0 1 1\n"
)
IMAGES = {f"ILSVRC2012_val_{number:08}.JPEG": b"%d" % number for number in (1, 2, 3)}
EXPECTED = dict(zip(IMAGES, ("n2", "n1", "n2"), strict=True))
TRAIN = {"train/n1/n1_1.JPEG": b"a", "train/n2/n2_1.JPEG": b"b"}
VAL = {f"val/{name}": data for name, data in IMAGES.items()}


def opened(path, files):
    return stores.open_folder(str(make_folder(path / "root", files)))


@pytest.mark.parametrize("name", [SOLUTION, f"val/{SOLUTION}"])
def test_training_and_validation_splits_are_read(tmp_path, name):
    test_images = empty_files("test/ILSVRC2012_test_00000001.JPEG")
    contents = TRAIN | VAL | {name: ROWS} | test_images
    store = opened(tmp_path, contents)
    assert imagenet.matches(store)
    splits = imagenet.read(store)
    assert list(splits) == ["test", "train", "validation"]
    assert classes_by_name(splits["train"]) == {
        "train/n1/n1_1.JPEG": "n1",
        "train/n2/n2_1.JPEG": "n2",
    }
    pickled = pickle.dumps(splits["validation"])
    validation = pickle.loads(pickled)
    expected = {}
    for key, value in EXPECTED.items():
        expected[f"val/{key}"] = value
    assert classes_by_name(validation) == expected
    assert images_by_name(validation) == VAL
    assert validation.notes == ()
    assert "'test/ILSVRC2012_test_00000001.JPEG'" in failure(splits.__getitem__, "test")


def test_the_validation_folder_may_be_read_alone(tmp_path):
    store = opened(tmp_path, IMAGES | {SOLUTION: ROWS})
    assert imagenet.matches(store)
    splits = imagenet.read(store)
    assert list(splits) == ["validation"]
    assert classes_by_name(splits["validation"]) == EXPECTED


def test_tar_files_and_remote_folders_are_read(tmp_path):
    files = IMAGES | {SOLUTION: ROWS}
    tar = make_tar(tmp_path, files)
    folder = make_folder(tmp_path / "x", files)
    in_tar = stores.open_tar(str(tar))
    remote = stores.open_folder(writers.remote(folder))
    for store in (in_tar, remote):
        dataset = imagenet.read(store)["validation"]
        assert classes_by_name(dataset) == EXPECTED
        assert images_by_name(dataset) == IMAGES


def test_missing_images_are_noted(tmp_path):
    (first, *_) = IMAGES
    store = opened(tmp_path, {first: b"", SOLUTION: ROWS, "x.txt": b""})
    dataset = imagenet.read(store)["validation"]
    missing, others = dataset.notes
    assert "2 of 3" in missing
    assert ".txt 1" in others


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["ILSVRC2012_val_00000001.JPEG"], True),
        (["Validation/ILSVRC2012_val_00000001.JPEG"], True),
        (["val/n1/ILSVRC2012_val_00000001.JPEG"], False),
        (["n1/ILSVRC2012_val_00000001.JPEG"], False),
        (["train/ILSVRC2012_val_00000001.JPEG"], False),
        (["test/ILSVRC2012_test_00000001.JPEG"], False),
        (["val/my_ILSVRC2012_val_00000001.JPEG"], False),
        (["LOC_val_solution.csv", "val/n1/1.JPEG"], False),
    ],
)
def test_layout_is_recognised_by_its_validation_images(tmp_path, names, expected):
    store = opened(tmp_path, empty_files(*names))
    assert imagenet.matches(store) == expected


@pytest.mark.parametrize(
    ("solution", "words"),
    [
        (None, [SOLUTION, "val/"]),
        (b"", ["ImageId,PredictionString"]),
        (ROWS.partition(b"\n")[2], ["ImageId,PredictionString"]),
        (b"id,label\nILSVRC2012_val_00000001,n2\n", ["ImageId,PredictionString"]),
        (ROWS.replace(b",n2 85 1 499 272 ", b""), ["row 2"]),
        (ROWS.replace(b"n1 1 2 3 4 n1 5 6 7 8", b"  "), ["row 3"]),
        (ROWS.replace(b"n2 0 0", b"n2,0 0"), ["row 4"]),
        (ROWS.replace(b"val_00000003", b"val_00000004"), ["'val/ILSVRC2012_val_00000003.JPEG'"]),
        (ROWS.replace(b"n1", b"n\xe9"), ["UTF-8"]),
        (ROWS.decode().encode("utf-16"), ["UTF-8"]),
        (ROWS.replace(b"00003,", b'00003,"'), ["line 4"]),
    ],
)
def test_invalid_lists_are_refused_when_the_split_is_read(tmp_path, solution, words):
    table = {} if solution is None else {SOLUTION: solution}
    contents = TRAIN | VAL | table
    store = opened(tmp_path, contents)
    splits = imagenet.read(store)
    assert len(splits["train"]) == 2
    message = failure(splits.__getitem__, "validation")
    for word in words:
        assert word in message


def test_lists_may_have_crlf_and_a_byte_order_mark(tmp_path):
    with_crlf = ROWS.replace(b"\n", b"\r\n")
    rows = b"\xef\xbb\xbf" + with_crlf + b"\r\n"
    store = opened(tmp_path, IMAGES | {SOLUTION: rows})
    dataset = imagenet.read(store)["validation"]
    assert classes_by_name(dataset) == EXPECTED


@pytest.mark.parametrize("images", [TRAIN | VAL, IMAGES], ids=["both splits", "validation"])
def test_ignoring_splits_is_refused(tmp_path, images):
    contents = images | {SOLUTION: ROWS}
    store = opened(tmp_path, contents)
    message = failure(imagenet.read, store, ignore_splits=True)
    assert store.path in message
