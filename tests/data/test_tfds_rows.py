import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.proto import tf_example_pb2

from gmlp_flax.data import tfds_rows
from gmlp_flax.io import files, tfds_folders
from gmlp_flax.io.records import BadRecord
from gmlp_flax.io.tfds_folders import Folder
from tests.data import writers
from tests.failures import failure

FEATURES = {
    "sentence": tfds.features.Text(),
    "label": tfds.features.ClassLabel(names=["neg", "pos"]),
    "idx": np.int32,
}
COLUMNS = ("sentence", "label", "idx")


def folder(path, *shards: list[bytes], file_format: str = "tfrecord", **features) -> Folder:
    """A TFDS folder with one split."""
    declared = features or FEATURES
    splits = {"train": [*shards]}
    made = writers.tfds_folder(path, splits, file_format, **declared)
    listing = files.find_files(str(made))
    loaded = tfds_folders.load(str(made), listing)
    assert loaded is not None
    return loaded


def places(found) -> list[str]:
    """The last part of where each row is, such as "record 0"."""
    return [entry.where.rpartition(", ")[2] for entry in found]


@pytest.mark.parametrize("file_format", tfds_folders.FORMATS)
def test_rows_are_read_in_order(tmp_path, file_format):
    """Class numbers are read as names, -1 as None, and unknown numbers unchanged."""
    records = []
    for number, label in enumerate([1, 0, -1, 2]):
        sentence = f"ü {number}".encode()
        example = writers.example(sentence=sentence, label=label, idx=10 * number)
        records.append(example)
    first = records[:3]
    second = records[3:]
    made = folder(tmp_path / "a", first, second, file_format=file_format)
    assert tfds_rows.declared_classes(made, "label") == ("neg", "pos")
    found = list(tfds_rows.read_rows(made, "train", COLUMNS))
    assert [entry.row for entry in found] == [
        {"sentence": "ü 0", "label": "pos", "idx": 0},
        {"sentence": "ü 1", "label": "neg", "idx": 10},
        {"sentence": "ü 2", "label": None, "idx": 20},
        {"sentence": "ü 3", "label": 2, "idx": 30},
    ]
    assert places(found) == ["record 0", "record 1", "record 2", "record 0"]


def test_invalid_examples_are_bad_records(tmp_path):
    records = [
        writers.example(sentence=b"fine", label=1, idx=4),
        b"\xff no example",
        writers.example(sentence=b"\xff"),
    ]
    made = folder(tmp_path / "a", records)
    found = list(tfds_rows.read_rows(made, "train", COLUMNS))
    assert found[0].row == {"sentence": "fine", "label": "pos", "idx": 4}
    for entry in found[1:]:
        assert isinstance(entry.row, BadRecord)
    assert places(found) == ["record 0", "record 1", "record 2"]


def test_records_with_a_wrong_checksum_are_bad_records(tmp_path):
    first_record = writers.example(sentence=b"a")
    records = [first_record, writers.example(sentence=b"b")]
    made = folder(tmp_path / "a", records)
    path = tmp_path / "a" / "c4-train.tfrecord-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    first, second = tfds_rows.read_rows(made, "train", ("sentence",))
    assert isinstance(first.row, BadRecord)
    assert second.row == {"sentence": "b"}


def test_other_features_are_not_read(tmp_path):
    """An image in the same record must not be read as invalid UTF-8."""
    features = FEATURES | {"image": tfds.features.Image()}
    record = writers.example(sentence=b"fine", label=1, idx=4, image=b"\x89PNG")
    made = folder(tmp_path / "a", [record], **features)
    entries = tfds_rows.read_rows(made, "train", ("sentence", "nothing"))
    (entry,) = entries
    assert entry.row == {"sentence": "fine"}


def test_features_may_have_no_or_several_values(tmp_path):
    """Without a value it is None, and several values are a list."""
    message = tf_example_pb2.Example()
    features = message.features.feature
    values = features["sentence"].bytes_list.value
    values.extend([b"a", b"b"])
    features["idx"].int64_list.SetInParent()
    features["label"].float_list.value.append(0.5)
    record = message.SerializeToString()
    made = folder(tmp_path / "a", [record])
    (entry,) = tfds_rows.read_rows(made, "train", COLUMNS)
    expected = {"sentence": ["a", "b"], "label": 0.5, "idx": None}
    assert entry.row == expected


def test_classes_without_names_are_numbers(tmp_path):
    stars = tfds.features.ClassLabel(num_classes=3)
    features = FEATURES | {"stars": stars}
    record = writers.example(sentence=b"a")
    made = folder(tmp_path / "a", [record], **features)
    assert tfds_rows.declared_classes(made, "stars") == ("0", "1", "2")
    assert tfds_rows.declared_classes(made, "sentence") == ()
    assert tfds_rows.declared_classes(made, "nothing") == ()


def test_missing_shards_are_named(tmp_path):
    records = [writers.example(sentence=b"a")]
    made = folder(tmp_path / "a", records, records)
    (tmp_path / "a" / "c4-train.tfrecord-00001-of-00002").unlink()
    listing = files.find_files(made.path)
    again = tfds_folders.load(made.path, listing)
    assert again is not None
    message = failure(lambda: list(tfds_rows.read_rows(again, "train", COLUMNS)))
    assert "00001-of-00002" in message
