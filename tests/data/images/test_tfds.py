import pickle
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds

from gmlp_flax.data.images import tfds as image_tfds
from gmlp_flax.data.images.tfds import TFDSImages
from gmlp_flax.io import files
from gmlp_flax.io.records import BadRecord
from tests.data import writers
from tests.data.images import image_files
from tests.failures import failure

FORMATS = pytest.mark.parametrize("file_format", image_tfds.FORMATS)


def opened(path, split="train", cache_folder=""):
    return TFDSImages(image_tfds.folder_at(str(path)), split, cache_folder)


@FORMATS
def test_items(tmp_path, file_format):
    """In the order of the shards, and still encoded; also after pickling for a worker process."""
    source = opened(image_files.tfds_folder(tmp_path / "1.0.0", {"train": [3, 1, 2]}, file_format))
    assert source.classes == ("cat", "dog", "eel") and len(source) == 6
    for copy in (source, pickle.loads(pickle.dumps(source))):
        items = [copy[i] for i in range(6)]
        assert [item["label"] for item in items] == [0, 1, 2, 0, 1, 2] and items[0][
            "label"
        ].dtype == np.int32
        assert [item["image"] for item in items] == [image_files.png(i) for i in range(6)]
        assert [item["name"] for item in items] == [
            f"ILSVRC2012_val_{i + 1:08d}.JPEG" for i in range(6)
        ]


def test_is_what_tfds_itself_gives(tmp_path):
    path = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [3, 4]}, "array_record")
    source = opened(path)
    builder = tfds.builder_from_directory(path)
    reference = builder.as_data_source("train", decoders={"image": tfds.decode.SkipDecoding()})
    assert (
        source.classes == tuple(builder.info.features["label"].names)
        and len(source) == len(reference) == 7
    )
    for i in range(7):
        assert (source[i]["image"], source[i]["label"]) == (
            reference[i]["image"],
            reference[i]["label"],
        )
        assert source[i]["name"].encode() == reference[i]["file_name"]


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_remote_shards(tmp_path, monkeypatch, file_format):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    local = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [2, 2]}, file_format)
    source = pickle.loads(pickle.dumps(opened(writers.remote(local))))
    assert source.classes == ("cat", "dog", "eel")
    assert [source[i] for i in range(4)] == [opened(local)[i] for i in range(4)]


def test_tfrecords_are_walked_once(tmp_path, monkeypatch, cache_folder):
    path = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [2, 3]}, "tfrecord")
    walked, opening = [], files.open_file

    def open_file(path, *more, **options):
        # small, of the one walk that builds an index
        walked.extend([path] * bool(options.get("buffer")))
        return opening(path, *more, **options)

    monkeypatch.setattr(files, "open_file", open_file)
    items = [opened(path)[i] for i in range(5)]
    assert (
        sorted(walked) == sorted({*walked})
        and len(walked) == 2
        and len(list(cache_folder.glob("*.npz"))) == 1
    )
    assert [opened(path)[i] for i in range(5)] == items and len(walked) == 2
    opened(path, cache_folder=str(tmp_path / "elsewhere"))
    assert len(walked) == 4 and list((tmp_path / "elsewhere").glob("*.npz"))
    # Neither the index of an earlier preparation nor a damaged one is used.
    shutil.rmtree(path)
    image_files.tfds_folder(tmp_path / "1.0.0", {"train": [3, 3]}, "tfrecord")
    assert len(opened(path)) == 6 and len(walked) == 6
    for index in cache_folder.glob("*.npz"):
        index.write_bytes(index.read_bytes()[:-1])
    assert opened(path)[5]["image"] == image_files.png(5) and len(walked) == 8


def test_features_by_kind(tmp_path):
    """cifar100 has a coarse label beside `label`; other data sets have other names for their only
    image and label."""
    label = tfds.features.ClassLabel(num_classes=2)
    image = tfds.features.Image()
    both = dict(image=image, label=label, coarse_label=tfds.features.ClassLabel(num_classes=5))
    assert opened(
        image_files.tfds_folder(tmp_path / "1.0.0", {"train": [2]}, "tfrecord", **both)
    ).classes == ("0", "1")
    shards = {"train": [[writers.example(photo=b"x", species=1)]]}
    path = writers.tfds_folder(tmp_path / "2.0.0", shards, "tfrecord", photo=image, species=label)
    assert opened(path)[0] == {
        "image": b"x",
        "label": 1,
        "name": "record 0 of c4-train.tfrecord-00000-of-00001",
    }
    two = dict(image=image, one=label, other=label)
    path = image_files.tfds_folder(tmp_path / "3.0.0", {"train": [2]}, "tfrecord", **two)
    expected = "has 2 features of kind ClassLabel and none of them is 'label', found 'image', 'one', 'other'; give a"
    assert expected in failure(opened, path)


@FORMATS
def test_damaged_records(tmp_path, file_format):
    good = [image_files.record(i) for i in range(3)]
    second = [writers.example(label=1, image=b"x"), writers.example(label=1)]
    shards = {"train": [[good[0], b"\xff no example"], second]}
    source = opened(
        writers.tfds_folder(tmp_path / "1.0.0", shards, file_format, **image_files.FEATURES)
    )
    assert source[0]["name"] == "ILSVRC2012_val_00000001.JPEG"
    with pytest.raises(
        BadRecord, match=f"^record 1 of c4-train.{file_format}-00000-of-00002 .*tf.train.Example"
    ):
        source[1]
    assert source[2]["image"] == b"x"
    with pytest.raises(
        BadRecord, match="^record 1 of .*-00001-of-00002 cannot be read .0 images and 1 labels, exp"
    ):
        source[3]


@FORMATS
def test_flipped_bytes(tmp_path, file_format):
    path = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [4]}, file_format)
    shard = path / f"c4-train.{file_format}-00000-of-00001"
    data = bytearray(shard.read_bytes())
    at = data.index(image_files.png(2)[60:80])
    data[at] ^= 255
    shard.write_bytes(data)
    source = opened(path)
    with pytest.raises(BadRecord, match="^record 2 of c4-train"):
        source[2]
    assert [source[i]["label"] for i in (0, 1, 3)] == [0, 1, 0]


@FORMATS
def test_truncated_and_swapped_shards(tmp_path, file_format):
    path = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [4, 3]}, file_format)
    first, second = (path / f"c4-train.{file_format}-0000{i}-of-00002" for i in (0, 1))
    whole = first.read_bytes()
    first.write_bytes(whole[: len(whole) // 2])
    assert f"{first}" in failure(opened, path)
    first.write_bytes(second.read_bytes())
    assert f"{first}: 3 records where 4 were expected" in failure(opened, path)


def test_what_is_no_class_and_no_format(tmp_path):
    shards = {"test": [[image_files.record(0, label=-1)]]}
    path = writers.tfds_folder(tmp_path / "1.0.0", shards, "tfrecord", **image_files.FEATURES)
    message = failure(opened(path, "test").__getitem__, 0)
    assert "label -1 is none of 3 classes; give a split with labels in place of 'test'" in message
    path = image_files.tfds_folder(tmp_path / "2.0.0", {"train": [2]}, "parquet")
    assert (
        "is in TFDS's format 'parquet', of which images are not read; expected array_record"
        in failure(opened, path)
    )
