"""The form of images at a path is recognized, and other paths are refused."""

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gmlp_flax.data.readers import (
    class_folders,
    image_rows,
    image_tables,
    imagenet,
    images,
    npz,
    pathfinder,
    tfds_images,
    tiny_imagenet,
    webdataset,
)
from tests.data import writers
from tests.data.images import image_files
from tests.data.images.image_files import empty_files, make_folder, make_tar, noise, png
from tests.failures import failure
from tests.fuzz import image_trees

CLASS_FOLDERS = {"cat/1.png": png(1), "dog/2.png": png(2)}
TABLE = b"file_name,label\n1.png,cat\n2.png,dog\n"
SOLUTION = b"ImageId,PredictionString\nILSVRC2012_val_00000001,n1 1\nILSVRC2012_val_00000002,n2\n"
SHARD = {"1.png": png(1), "1.cls": b"cat", "2.png": png(2), "2.cls": b"dog"}


def folder(path, files):
    return str(make_folder(path / "root", files))


def of_class_folders(path):
    return folder(path, CLASS_FOLDERS)


def tar_of_class_folders(path):
    return str(make_tar(path, CLASS_FOLDERS, name="IMAGES.TAR"))


def of_tables(path):
    return folder(path, {"1.png": png(1), "2.png": png(2), "labels.csv": TABLE})


def path_of_a_table(path):
    return f"{of_tables(path)}/labels.csv"


def of_imagenet(path):
    names = [f"ILSVRC2012_val_0000000{number}.JPEG" for number in (1, 2)]
    files = {names[0]: png(1), names[1]: png(2), "LOC_val_solution.csv": SOLUTION}
    return folder(path, files)


def of_tiny_imagenet(path):
    lines = b"1.JPEG\tn1\t0\t0\t1\t1\n2.JPEG\tn2\t0\t0\t1\t1\n"
    files = {"images/1.JPEG": png(1), "images/2.JPEG": png(2), "val_annotations.txt": lines}
    return folder(path, files)


def of_pathfinder(path):
    lines = b"imgs/0 sample_1.png 1 0\nimgs/0 sample_2.png 2 1\n"
    files = {"imgs/0/sample_1.png": png(1), "imgs/0/sample_2.png": png(2)}
    return folder(path, files | {"metadata/0.npy": lines})


def file_of_rows(path):
    columns = {"image": [png(1), png(2)], "label": ["cat", "dog"]}
    file = path / "a.parquet"
    pq.write_table(pa.table(columns), file)
    return str(file)


def folder_of_rows(path):
    make_folder(path / "root", {"README.md": b""})
    file_of_rows(path / "root")
    return str(path / "root")


def of_arrays(path):
    file = path / "a.npz"
    np.savez(file, images=noise(2, 9, 7, 3), labels=["cat", "dog"])
    return str(file)


def shard(path):
    return str(make_tar(path, SHARD))


def folder_of_shards(path):
    make_tar(path / "root", SHARD)
    return str(path / "root")


def of_tfds(path):
    return str(image_files.tfds_folder(path / "1.0.0", {"train": [2]}, "array_record"))


FORMS = [
    (of_class_folders, class_folders.FORM),
    (tar_of_class_folders, class_folders.FORM),
    (of_tables, image_tables.FORM),
    (path_of_a_table, image_tables.FORM),
    (of_imagenet, imagenet.FORM),
    (of_tiny_imagenet, tiny_imagenet.FORM),
    (of_pathfinder, pathfinder.FORM),
    (file_of_rows, image_rows.FORM),
    (folder_of_rows, image_rows.FORM),
    (of_arrays, npz.FORM),
    (shard, webdataset.FORM),
    (folder_of_shards, webdataset.FORM),
    (of_tfds, tfds_images.FORM),
]


@pytest.mark.parametrize(("make", "form"), FORMS)
def test_each_documented_form_is_read(tmp_path, make, form):
    path = make(tmp_path)
    splits = images.read(path)
    assert splits.path == path
    assert splits.form == form
    (dataset,) = (splits[name] for name in splits)
    assert dataset.form == form
    assert len(dataset) == 2
    assert len(dataset.classes) >= 2


@pytest.mark.parametrize(("make", "form"), FORMS[:-1])
def test_each_documented_form_is_read_from_a_bucket(tmp_path, make, form):
    path = make(tmp_path)
    inside = path.removeprefix(str(tmp_path))
    splits = images.read(writers.remote(tmp_path) + inside)
    assert splits.form == form
    (dataset,) = (splits[name] for name in splits)
    assert len(dataset) == 2


def test_paths_may_be_relative_or_end_in_a_slash(tmp_path, monkeypatch):
    of_class_folders(tmp_path)
    monkeypatch.chdir(tmp_path)
    for path in ("root/", "./root", "root"):
        dataset = images.read(path)[""]
        assert dataset.examples.content(1) == png(2)
    monkeypatch.chdir(tmp_path / "root")
    dataset = images.read(".")[""]
    assert dataset.examples.names == ["cat/1.png", "dog/2.png"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["no files", "ROOT/CLASS/FILES"]),
        (empty_files("a.txt", "b/c.csv"), [".txt 1", ".csv 1", "ROOT/CLASS/FILES"]),
        (empty_files("a/b.heic", "c/d.heic"), [".heic 2"]),
        (empty_files(".cat/1.png", "__MACOSX/2.png"), ["no files"]),
        (empty_files("x/data.zip", "y.txt"), ["data.zip", "unzip"]),
        (empty_files("mnist.npz"), ["'mnist.npz'"]),
        (empty_files("a.tar.gz"), [".gz 1"]),
        (empty_files("labels.csv"), [".csv 1"]),
    ],
)
def test_folders_of_no_documented_form_are_refused(tmp_path, files, words):
    path = folder(tmp_path, files)
    message = failure(images.read, path)
    for word in (path, *words):
        assert word in message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.zip", ["unzip"]),
        ("a.tar.gz", ["tar -xf"]),
        ("a.tgz", ["tar -xf"]),
        ("a.TAR.XZ", ["tar -xf"]),
        ("a.png", [".tar", ".npz", ".parquet", ".csv"]),
        ("a", [".tar"]),
        ("a.npy", [".npz"]),
        ("a.tar", ["a.tar"]),
        ("a.npz", ["a.npz"]),
        ("a.parquet", ["a.parquet"]),
        ("a.arrow", ["a.arrow"]),
        ("a.csv", ["a.csv"]),
        ("a b.zip", ["'{path}'"]),
    ],
)
def test_empty_and_unsupported_files_are_refused(tmp_path, name, words):
    path = str(tmp_path / name)
    open(path, "wb").close()

    def read():
        splits = images.read(path)
        return [splits[split] for split in splits]

    message = failure(read)
    for word in words:
        assert word.format(path=path) in message


@pytest.mark.parametrize("path", ["nowhere", "", "memory://nowhere/x", "a\0b", "x" * 5000])
def test_missing_paths_are_refused(path):
    failure(images.read, path)


def test_damaged_tfds_folders_are_refused(tmp_path):
    (tmp_path / "features.json").write_text("{}")
    assert "dataset_info.json" in failure(images.read, str(tmp_path))


def test_class_folders_are_preferred_to_other_forms(tmp_path):
    folder(tmp_path, CLASS_FOLDERS)
    file_of_rows(tmp_path / "root")
    make_tar(tmp_path / "root", SHARD)
    dataset = images.read(str(tmp_path / "root"))[""]
    assert dataset.classes == ("cat", "dog")
    (note,) = dataset.notes
    assert ".parquet 1" in note
    assert ".tar 1" in note


def test_splits_may_be_ignored(tmp_path):
    names = ["train/cat/1.png", "extra/2.png"]
    path = folder(tmp_path, empty_files(*names))
    assert "'extra'" in failure(images.read, path)
    whole = images.read(path, ignore_splits=True)
    assert whole[""].classes == ("extra", "train")


def test_indexes_are_kept_in_the_given_folder(tmp_path, cache_folder):
    path = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [2]}, "tfrecord")
    indexes = tmp_path / "indexes"
    splits = images.read(str(path), str(indexes))
    assert len(splits["train"]) == 2
    assert list(indexes.glob("*.npz"))
    assert not cache_folder.exists()


def test_random_trees_are_read_or_refused(tmp_path):
    check = image_trees.make(tmp_path)
    for seed in range(60):
        check(random.Random(seed))
