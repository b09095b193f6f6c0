"""Images in TFDS folders, as ArrayRecord and TFRecord, compared with TFDS itself."""

import pickle
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds

from gmlp_flax.data.readers import tfds_images
from gmlp_flax.data.splits import Request, choose
from gmlp_flax.io import files
from gmlp_flax.io.records import BadRecord
from tests.data import writers
from tests.data.images import image_files
from tests.failures import failure

FORMATS = pytest.mark.parametrize("file_format", tfds_images.FORMATS)
LABEL = tfds.features.ClassLabel(num_classes=2)


def read(path, cache_folder=""):
    return tfds_images.read(tfds_images.folder_at(str(path)), cache_folder)


def train_images(path, cache_folder=""):
    return read(path, cache_folder)["train"].examples


@FORMATS
def test_items(tmp_path, file_format):
    """In the order of the shards, and still encoded; also after pickling for a worker process."""
    path = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [3, 1, 2]}, file_format)
    dataset = read(path)["train"]
    assert dataset.classes == ("cat", "dog", "eel")
    assert dataset.columns == ("image", "label")
    assert dataset.labels is None
    assert len(dataset) == 6
    assert len(dataset.files) == 3
    for examples in (dataset.examples, pickle.loads(pickle.dumps(dataset)).examples):
        items = [examples[index] for index in range(6)]
        assert [item["label"] for item in items] == [0, 1, 2, 0, 1, 2]
        assert items[0]["label"].dtype == np.int32
        for index, item in enumerate(items):
            assert item["image"] == image_files.png(index)
            assert item["name"] == f"ILSVRC2012_val_{index + 1:08d}.JPEG"
            assert examples.content(index) == item["image"]
            assert examples.key(index) == str(index)


def test_is_what_tfds_itself_gives(tmp_path):
    path = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [3, 4]}, "array_record")
    dataset = read(path)["train"]
    builder = tfds.builder_from_directory(path)
    reference = builder.as_data_source("train", decoders={"image": tfds.decode.SkipDecoding()})
    assert dataset.classes == tuple(builder.info.features["label"].names)
    assert len(dataset) == len(reference) == 7
    for index in range(7):
        ours = dataset.examples[index]
        theirs = reference[index]
        assert ours["image"] == theirs["image"]
        assert ours["label"] == theirs["label"]
        assert ours["name"].encode() == theirs["file_name"]


@FORMATS
def test_remote_shards(tmp_path, file_format):
    local = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [2, 2]}, file_format)
    dataset = pickle.loads(pickle.dumps(read(writers.remote(local))["train"]))
    assert dataset.classes == ("cat", "dog", "eel")
    expected = train_images(local)
    for index in range(4):
        assert dataset.examples[index] == expected[index]


def test_the_fingerprint_is_that_of_the_files(tmp_path):
    prints = []
    for name, shards in (("a", [2, 2]), ("b", [2, 2]), ("c", [2, 3])):
        path = image_files.tfds_folder(tmp_path / name / "1.0.0", {"train": shards}, "tfrecord")
        prints.append(read(path)["train"].fingerprint)
    assert prints[0] == prints[1]
    assert prints[0]["files"] == 2
    assert prints[0] != prints[2]


def test_a_share_is_held_out_by_position(tmp_path):
    path = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [30]}, "array_record")
    dataset = read(path)["train"]
    train = dataset.hold_out("train", 0.3)
    heldout = dataset.hold_out("heldout", 0.3)
    positions = [*train.examples.indices, *heldout.examples.indices]
    assert sorted(positions) == list(range(30))
    assert 3 < len(heldout) < 16
    assert heldout.fingerprint == dataset.fingerprint


@pytest.mark.parametrize(
    ("lengths", "options", "expected"),
    [
        ({"train": [3], "validation": [2], "test": [4]}, {}, ("train", "validation")),
        ({"train": [3], "test": [4]}, {}, ("train", "test")),
        (
            {"train": [3], "validation": [2]},
            {"split": "validation", "heldout_split": "train"},
            ("validation", "train"),
        ),
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_the_splits_that_a_run_reads(tmp_path, lengths, options, expected, share):
    splits = read(image_files.tfds_folder(tmp_path / "1.0.0", lengths, "tfrecord"))
    assert list(splits) == list(lengths)
    for role, split in zip(("train", "heldout"), expected, strict=True):
        request = Request(role, heldout_share=share, **options)
        dataset = choose(splits, request, ("validation", "test"))
        assert dataset.split == split
        assert len(dataset) == sum(lengths[split])


def test_a_folder_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    folder = tmp_path / "cifar10" / "3.0.2"
    image_files.tfds_folder(folder, {"train": [3], "test": [2]}, "array_record")
    splits = read("tfds:cifar10")
    got = {split: len(splits[split]) for split in splits}
    assert got == {"train": 3, "test": 2}
    assert "'tfds:cifar100'" in failure(tfds_images.folder_at, "tfds:cifar100")


def test_another_folder_is_none(tmp_path):
    image_files.make_folder(tmp_path, {"cat/a.png": b"", "features/x": b""})
    assert tfds_images.folder_at(str(tmp_path)) is None
    assert tfds_images.folder_at(str(tmp_path / "nowhere")) is None
    assert tfds_images.folder_at(str(tmp_path / "cat/a.png")) is None


@pytest.fixture
def walked(monkeypatch):
    """The files that are walked to index their records."""
    paths = []
    opening = files.open_file

    def open_file(path, *arguments, **options):
        if options.get("buffer"):  # small, of the one walk that builds an index
            paths.append(path)
        return opening(path, *arguments, **options)

    monkeypatch.setattr(files, "open_file", open_file)
    return paths


def test_tfrecords_are_walked_once(tmp_path, walked, cache_folder):
    path = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [2, 3]}, "tfrecord")
    first = train_images(path)
    items = [first[index] for index in range(5)]
    assert len(walked) == len(set(walked)) == 2
    assert len(list(cache_folder.glob("*.npz"))) == 1
    again = train_images(path)
    assert [again[index] for index in range(5)] == items
    assert len(walked) == 2
    train_images(path, cache_folder=str(tmp_path / "elsewhere"))
    assert len(walked) == 4
    assert list((tmp_path / "elsewhere").glob("*.npz"))


def test_an_index_of_other_data_or_a_damaged_one_is_not_used(tmp_path, walked, cache_folder):
    path = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [2, 3]}, "tfrecord")
    train_images(path)
    shutil.rmtree(path)
    image_files.tfds_folder(tmp_path / "1.0.0", {"train": [3, 3]}, "tfrecord")
    assert len(train_images(path)) == 6
    assert len(walked) == 4
    for index in cache_folder.glob("*.npz"):
        index.write_bytes(index.read_bytes()[:-1])
    assert train_images(path)[5]["image"] == image_files.png(5)
    assert len(walked) == 6


def test_two_kinds_of_labels(tmp_path):
    """cifar100 has a coarse label beside `label`."""
    coarse = tfds.features.ClassLabel(num_classes=5)
    features = dict(image=tfds.features.Image(), label=LABEL, coarse_label=coarse)
    path = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [2]}, "tfrecord", **features)
    assert read(path)["train"].classes == ("0", "1")


def test_other_names_of_the_only_image_and_label(tmp_path):
    shards = {"train": [[writers.example(photo=b"x", species=1)]]}
    features = dict(photo=tfds.features.Image(), species=LABEL)
    path = writers.tfds_folder(tmp_path / "2.0.0", shards, "tfrecord", **features)
    dataset = read(path)["train"]
    assert dataset.columns == ("photo", "species")
    assert dataset.examples[0] == {
        "image": b"x",
        "label": 1,
        "name": "record 0 of c4-train.tfrecord-00000-of-00001",
    }


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (
            dict(image=tfds.features.Image(), first=LABEL, second=LABEL),
            ["2 features", "ClassLabel", "'first', 'image', 'second'"],
        ),
        (dict(image=tfds.features.Image(), text=tfds.features.Text()), ["0 features", "'text'"]),
        (dict(label=LABEL), ["0 features", "Image"]),
        (dict(a=tfds.features.Image(), b=tfds.features.Image(), label=LABEL), ["2 features"]),
    ],
)
def test_features_that_are_no_labelled_image(tmp_path, features, words):
    path = image_files.tfds_folder(tmp_path / "3.0.0", {"train": [2]}, "tfrecord", **features)
    message = failure(train_images, path)
    for word in (str(path), *words):
        assert word in message


@FORMATS
def test_damaged_records(tmp_path, file_format):
    good = [image_files.record(index) for index in range(3)]
    second = [writers.example(label=1, image=b"x"), writers.example(label=1)]
    shards = {"train": [[good[0], b"\xff no example"], second]}
    path = writers.tfds_folder(tmp_path / "1.0.0", shards, file_format, **image_files.FEATURES)
    examples = train_images(path)
    assert examples[0]["name"] == "ILSVRC2012_val_00000001.JPEG"
    first_shard = f"record 1 of c4-train.{file_format}-00000-of-00002"
    with pytest.raises(BadRecord, match=f"^{first_shard} .*tf.train.Example"):
        examples[1]
    assert examples[2]["image"] == b"x"
    with pytest.raises(BadRecord, match=r"^record 1 of .*-00001-of-00002 .*0 images and 1 labels"):
        examples[3]
    assert examples.content(3) == b""


@FORMATS
def test_flipped_bytes(tmp_path, file_format):
    path = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [4]}, file_format)
    shard = path / f"c4-train.{file_format}-00000-of-00001"
    data = bytearray(shard.read_bytes())
    position = data.index(image_files.png(2)[60:80])
    data[position] ^= 255
    shard.write_bytes(data)
    examples = train_images(path)
    with pytest.raises(BadRecord, match="^record 2 of c4-train"):
        examples[2]
    got = [examples[index]["label"] for index in (0, 1, 3)]
    assert got == [0, 1, 0]


@FORMATS
def test_truncated_and_swapped_shards(tmp_path, file_format):
    path = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [4, 3]}, file_format)
    first = path / f"c4-train.{file_format}-00000-of-00002"
    second = path / f"c4-train.{file_format}-00001-of-00002"
    whole = first.read_bytes()
    first.write_bytes(whole[: len(whole) // 2])
    assert str(first) in failure(train_images, path)
    first.write_bytes(second.read_bytes())
    message = failure(train_images, path)
    assert f"{first}: 3 records" in message
    first.unlink()
    assert first.name in failure(train_images, path)


def test_labels_that_are_no_class(tmp_path):
    """As those of a published test split."""
    shards = {"test": [[image_files.record(0, label=-1), image_files.record(1, label=3)]]}
    path = writers.tfds_folder(tmp_path / "1.0.0", shards, "tfrecord", **image_files.FEATURES)
    examples = read(path)["test"].examples
    for index, label in enumerate((-1, 3)):
        message = failure(examples.__getitem__, index)
        assert f"label {label} " in message
        assert "'test'" in message


def test_parquet_is_no_format_of_images(tmp_path):
    path = image_files.tfds_folder(tmp_path / "2.0.0", {"train": [2]}, "parquet")
    message = failure(read, path)
    assert "'parquet'" in message
    assert "array_record" in message


def test_damaged_metadata(tmp_path):
    path = image_files.tfds_folder(tmp_path / "1.0.0", {"train": [2]}, "tfrecord")
    (path / "dataset_info.json").write_text("{")
    assert "dataset_info.json" in failure(tfds_images.folder_at, str(path))
    (path / "dataset_info.json").unlink()
    assert "dataset_info.json" in failure(tfds_images.folder_at, str(path))
