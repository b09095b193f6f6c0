"""Images in TFDS folders of ArrayRecord and TFRecord files, compared with TFDS itself."""

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
IMAGE = tfds.features.Image()
TEXT = tfds.features.Text()
LABEL = tfds.features.ClassLabel(num_classes=2)


def read(path, cache_folder=""):
    return tfds_images.read(tfds_images.folder_at(str(path)), cache_folder)


def train_images(path, cache_folder=""):
    dataset = read(path, cache_folder)["train"]
    return dataset.examples


def saved_folder(path, sizes, file_format="tfrecord"):
    """A folder with a training split, whose shards have these sizes."""
    return image_files.tfds_folder(path / "1.0.0", {"train": sizes}, file_format)


@FORMATS
def test_data_sets_have_classes_columns_and_files(tmp_path, file_format):
    path = saved_folder(tmp_path, [3, 1, 2], file_format)
    dataset = read(path)["train"]
    assert dataset.classes == ("cat", "dog", "eel")
    assert dataset.columns == ("image", "label")
    assert dataset.labels is None
    assert len(dataset) == 6
    assert len(dataset.files) == 3


@FORMATS
def test_examples_are_encoded_images_in_the_order_of_shards(tmp_path, file_format):
    """Worker processes get pickled examples."""
    path = saved_folder(tmp_path, [3, 1, 2], file_format)
    original = train_images(path)
    pickled = pickle.dumps(original)
    for examples in (original, pickle.loads(pickled)):
        labels = [0, 1, 2, 0, 1, 2]
        for index, label in enumerate(labels):
            example = examples[index]
            assert example["label"] == label
            assert example["label"].dtype == np.int32
            assert example["image"] == image_files.png(index)
            number = index + 1
            assert example["name"] == f"ILSVRC2012_val_{number:08d}.JPEG"
            assert examples.content(index) == example["image"]
            assert examples.key(index) == str(index)


def test_examples_are_those_of_tfds(tmp_path):
    path = saved_folder(tmp_path, [3, 4], "array_record")
    dataset = read(path)["train"]
    builder = tfds.builder_from_directory(path)
    encoded = {"image": tfds.decode.SkipDecoding()}
    reference = builder.as_data_source("train", decoders=encoded)
    label_feature = builder.info.features["label"]
    assert dataset.classes == tuple(label_feature.names)
    assert len(dataset) == 7
    assert len(reference) == 7
    for index in range(7):
        ours = dataset.examples[index]
        theirs = reference[index]
        assert ours["image"] == theirs["image"]
        assert ours["label"] == theirs["label"]
        assert ours["name"].encode() == theirs["file_name"]


@FORMATS
def test_remote_shards_are_read(tmp_path, file_format):
    local = saved_folder(tmp_path, [2, 2], file_format)
    remote = read(writers.remote(local))["train"]
    dataset = pickle.loads(pickle.dumps(remote))
    assert dataset.classes == ("cat", "dog", "eel")
    expected = train_images(local)
    for index in range(4):
        example = dataset.examples[index]
        assert example == expected[index]


def test_fingerprints_are_those_of_the_files(tmp_path):
    fingerprints = []
    for name, sizes in (("a", [2, 2]), ("b", [2, 2]), ("c", [2, 3])):
        path = saved_folder(tmp_path / name, sizes)
        dataset = read(path)["train"]
        fingerprints.append(dataset.fingerprint)
    first, same, other = fingerprints
    assert first == same
    assert first["files"] == 2
    assert first != other


def test_shares_are_held_out_by_position(tmp_path):
    path = saved_folder(tmp_path, [30], "array_record")
    dataset = read(path)["train"]
    train = dataset.hold_out("train", 0.3)
    heldout = dataset.hold_out("heldout", 0.3)
    train_positions = train.examples.indices
    positions = [*train_positions, *heldout.examples.indices]
    assert sorted(positions) == list(range(30))
    assert 3 < len(heldout) < 16
    assert heldout.fingerprint == dataset.fingerprint


SWAPPED = {"split": "validation", "heldout_split": "train"}


@pytest.mark.parametrize(
    ("lengths", "options", "expected"),
    [
        ({"train": [3], "validation": [2], "test": [4]}, {}, ("train", "validation")),
        ({"train": [3], "test": [4]}, {}, ("train", "test")),
        ({"train": [3], "validation": [2]}, SWAPPED, ("validation", "train")),
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_runs_read_declared_splits_whole(tmp_path, lengths, options, expected, share):
    path = image_files.tfds_folder(tmp_path / "1.0.0", lengths, "tfrecord")
    splits = read(path)
    assert list(splits) == list(lengths)
    for role, split in zip(("train", "heldout"), expected, strict=True):
        request = Request(role, heldout_share=share, **options)
        dataset = choose(splits, request, ("validation", "test"))
        assert dataset.split == split
        size = sum(lengths[split])
        assert len(dataset) == size


def test_folders_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    folder = tmp_path / "cifar10" / "3.0.2"
    image_files.tfds_folder(folder, {"train": [3], "test": [2]}, "array_record")
    splits = read("tfds:cifar10")
    sizes = {}
    for split in splits:
        sizes[split] = len(splits[split])
    assert sizes == {"train": 3, "test": 2}
    assert "'tfds:cifar100'" in failure(tfds_images.folder_at, "tfds:cifar100")


def test_other_folders_are_not_tfds_folders(tmp_path):
    image_files.make_folder(tmp_path, {"cat/a.png": b"", "features/x": b""})
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "cat/a.png"):
        assert tfds_images.folder_at(str(path)) is None


@pytest.fixture
def walked(monkeypatch):
    """The files that are walked to index their records."""
    paths = []
    opening = files.open_file

    def open_file(path, *arguments, **options):
        if options.get("buffer"):  # only the walk that builds an index sets it
            paths.append(path)
        return opening(path, *arguments, **options)

    monkeypatch.setattr(files, "open_file", open_file)
    return paths


def test_tfrecords_are_indexed_once(tmp_path, walked, cache_folder):
    path = saved_folder(tmp_path, [2, 3])
    first = train_images(path)
    assert len(walked) == 2
    assert len(set(walked)) == 2
    assert len(list(cache_folder.glob("*.npz"))) == 1
    again = train_images(path)
    assert len(walked) == 2
    for index in range(5):
        assert again[index] == first[index]


def test_indexes_may_be_kept_in_another_folder(tmp_path, walked):
    path = saved_folder(tmp_path, [2, 3])
    train_images(path)
    elsewhere = tmp_path / "elsewhere"
    train_images(path, cache_folder=str(elsewhere))
    assert len(walked) == 4
    assert list(elsewhere.glob("*.npz"))


def test_indexes_of_other_data_are_not_used(tmp_path, walked):
    path = saved_folder(tmp_path, [2, 3])
    train_images(path)
    shutil.rmtree(path)
    saved_folder(tmp_path, [3, 3])
    assert len(train_images(path)) == 6
    assert len(walked) == 4


def test_damaged_indexes_are_not_used(tmp_path, walked, cache_folder):
    path = saved_folder(tmp_path, [3, 3])
    train_images(path)
    for index in cache_folder.glob("*.npz"):
        content = index.read_bytes()
        index.write_bytes(content[:-1])
    last = train_images(path)[5]
    assert last["image"] == image_files.png(5)
    assert len(walked) == 4


def test_the_feature_called_label_is_used(tmp_path):
    """cifar100 has the features label and coarse_label."""
    coarse = tfds.features.ClassLabel(num_classes=5)
    features = {"image": IMAGE, "label": LABEL, "coarse_label": coarse}
    folder = tmp_path / "1.0.0"
    path = image_files.tfds_folder(folder, {"train": [2]}, "tfrecord", **features)
    train = read(path)["train"]
    assert train.classes == ("0", "1")


def test_the_only_image_and_label_may_have_other_names(tmp_path):
    shards = {"train": [[writers.example(photo=b"x", species=1)]]}
    features = {"photo": IMAGE, "species": LABEL}
    path = writers.tfds_folder(tmp_path / "2.0.0", shards, "tfrecord", **features)
    dataset = read(path)["train"]
    assert dataset.columns == ("photo", "species")
    assert dataset.examples[0] == {
        "image": b"x",
        "label": 1,
        "name": "record 0 of c4-train.tfrecord-00000-of-00001",
    }


TWO_LABELS = {"image": IMAGE, "first": LABEL, "second": LABEL}


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (TWO_LABELS, ["2 features", "ClassLabel", "'first', 'image', 'second'"]),
        ({"image": IMAGE, "text": TEXT}, ["0 features", "'text'"]),
        ({"label": LABEL}, ["0 features", "Image"]),
        ({"a": IMAGE, "b": IMAGE, "label": LABEL}, ["2 features"]),
    ],
)
def test_features_without_one_image_and_label_are_refused(tmp_path, features, words):
    folder = tmp_path / "3.0.0"
    path = image_files.tfds_folder(folder, {"train": [2]}, "tfrecord", **features)
    message = failure(train_images, path)
    for word in (str(path), *words):
        assert word in message


@FORMATS
def test_damaged_records_are_bad_records(tmp_path, file_format):
    first = [image_files.record(0), b"\xff no example"]
    with_image = writers.example(label=1, image=b"x")
    second = [with_image, writers.example(label=1)]
    shards = {"train": [first, second]}
    folder = tmp_path / "1.0.0"
    path = writers.tfds_folder(folder, shards, file_format, **image_files.FEATURES)
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
def test_flipped_bytes_are_bad_records(tmp_path, file_format):
    path = saved_folder(tmp_path, [4], file_format)
    shard = path / f"c4-train.{file_format}-00000-of-00001"
    data = bytearray(shard.read_bytes())
    part = image_files.png(2)[60:80]
    position = data.index(part)
    data[position] ^= 255
    shard.write_bytes(data)
    examples = train_images(path)
    with pytest.raises(BadRecord, match="^record 2 of c4-train"):
        examples[2]
    labels = []
    for index in (0, 1, 3):
        labels.append(examples[index]["label"])
    assert labels == [0, 1, 0]


@FORMATS
def test_truncated_swapped_and_missing_shards_are_refused(tmp_path, file_format):
    path = saved_folder(tmp_path, [4, 3], file_format)
    first = path / f"c4-train.{file_format}-00000-of-00002"
    second = path / f"c4-train.{file_format}-00001-of-00002"
    whole = first.read_bytes()
    half = len(whole) // 2
    first.write_bytes(whole[:half])
    assert str(first) in failure(train_images, path)
    first.write_bytes(second.read_bytes())
    message = failure(train_images, path)
    assert f"{first}: 3 records" in message
    first.unlink()
    assert first.name in failure(train_images, path)


def test_labels_without_a_class_are_refused(tmp_path):
    """Published test splits have the label -1."""
    negative = image_files.record(0, label=-1)
    missing = image_files.record(1, label=3)
    records = [negative, missing]
    shards = {"test": [records]}
    folder = tmp_path / "1.0.0"
    path = writers.tfds_folder(folder, shards, "tfrecord", **image_files.FEATURES)
    examples = read(path)["test"].examples
    for index, label in enumerate((-1, 3)):
        message = failure(examples.__getitem__, index)
        assert f"label {label} " in message
        assert "'test'" in message


def test_parquet_files_of_images_are_refused(tmp_path):
    path = image_files.tfds_folder(tmp_path / "2.0.0", {"train": [2]}, "parquet")
    message = failure(read, path)
    assert "'parquet'" in message
    assert "array_record" in message


def test_damaged_metadata_are_refused(tmp_path):
    path = saved_folder(tmp_path, [2])
    info = path / "dataset_info.json"
    info.write_text("{")
    assert info.name in failure(tfds_images.folder_at, str(path))
    info.unlink()
    assert info.name in failure(tfds_images.folder_at, str(path))
