"""Images in rows of parquet and Arrow files, written by the package datasets and by others."""

import datetime
import decimal
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from gmlp_flax.data.images.decoding import decode
from gmlp_flax.data.readers import image_rows
from gmlp_flax.io.records import BadRecord
from tests.data import writers
from tests.data.images.image_files import encoded, make_folder, png
from tests.failures import failure

CLASSES = ("dog", "cat", "eel")
LABELS = [0, 1, 2, 0, 1, 2]


def table(indices=range(6), names=CLASSES, **columns):
    """Images and class labels as the package datasets writes them."""
    images = []
    for index in indices:
        images.append({"bytes": png(index), "path": f"{index}.png"})
    labels = [LABELS[index] for index in indices]
    columns = {"image": images, "label": labels} | columns
    plain = pa.table(columns)
    features = {
        "image": {"_type": "Image"},
        "label": {"names": [*names], "_type": "ClassLabel"},
    }
    metadata = json.dumps({"info": {"features": features}})
    return plain.replace_schema_metadata({"huggingface": metadata})


def write_parquet(path, content):
    """Writes a table, and returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(content, path)
    return path


def written(path, **columns):
    """The path of a parquet file with only these columns."""
    return str(write_parquet(path / "a.parquet", pa.table(columns)))


def parquet(folder):
    return write_parquet(folder / "all.parquet", table())


def shards_of_parquet(folder):
    write_parquet(folder / "data/part-00000-of-00002.parquet", table(range(3)))
    write_parquet(folder / "data/part-00001-of-00002.parquet", table(range(3, 6)))
    return folder


def save_to_disk(folder):
    writers.arrow(folder / "data-00000-of-00001.arrow", table())
    writers.arrow(folder / "cache-1234.arrow", table([0]))
    (folder / "state.json").write_text("{}")
    (folder / "dataset_info.json").write_text("{}")
    return folder


def arrow_file(folder):
    return writers.arrow(folder / "x.ARROW", table(), new=pa.ipc.new_file, rows=2)


def paths_in_parquet(folder):
    """The package datasets stores images of a folder that were never read without their bytes."""
    files = {}
    for index in range(6):
        files[f"images/{index}.png"] = png(index)
    make_folder(folder, files)
    images = [{"bytes": None, "path": name} for name in files]
    image_column = pa.array(images)
    return write_parquet(folder / "all.parquet", table(image=image_column))


def bytes_in_parquet(folder):
    """A column of bytes."""
    images = [png(index) for index in range(6)]
    return write_parquet(folder / "all.parquet", table(image=images))


KINDS = [
    parquet,
    shards_of_parquet,
    save_to_disk,
    arrow_file,
    paths_in_parquet,
    bytes_in_parquet,
]


def read_one(path):
    splits = image_rows.read(str(path))
    assert list(splits) == [""]
    return splits[""]


def images_of(dataset):
    return [dataset.examples[index]["image"] for index in range(len(dataset))]


def refusal(path):
    """The message of the error of reading a data set without splits."""
    return failure(lambda: image_rows.read(str(path))[""])


@pytest.mark.parametrize("make", KINDS)
def test_all_kinds_of_files_give_the_same_data_set(tmp_path, make):
    dataset = read_one(make(tmp_path))
    assert dataset.classes == CLASSES
    assert dataset.labels.tolist() == LABELS
    assert dataset.labels.dtype == np.int32
    assert dataset.columns == ("image", "label")
    assert dataset.stratified
    copied = pickle.loads(pickle.dumps(dataset))
    expected = [png(index) for index in range(6)]
    assert images_of(copied) == expected
    assert len(set(copied.examples.names)) == 6
    assert copied.fingerprint == dataset.fingerprint


@pytest.mark.parametrize("make", KINDS)
def test_roles_and_fingerprints_do_not_depend_on_the_path(tmp_path, make):
    fingerprints = []
    heldout_indices = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        dataset = read_one(make(folder))
        heldout = dataset.hold_out("heldout", 0.3)
        fingerprints.append(dataset.fingerprint)
        heldout_indices.append(heldout.examples.indices.tolist())
    first, second = heldout_indices
    assert first == second
    assert len(first) == 3  # one of each class
    assert fingerprints[0] == fingerprints[1]


def test_remote_shards_are_read(tmp_path):
    dataset = read_one(writers.remote(shards_of_parquet(tmp_path)))
    assert dataset.examples[4] == {
        "image": png(4),
        "name": "data/part-00001-of-00002.parquet, row 1",
    }


def test_remote_paths_of_images_are_read(tmp_path):
    paths_in_parquet(tmp_path)
    address = writers.remote(tmp_path)
    dataset = read_one(f"{address}/all.parquet")
    assert images_of(dataset)[4] == png(4)


def splits_of_files(folder):
    write_parquet(folder / "train-00000-of-00001.parquet", table(range(3)))
    write_parquet(folder / "test-00000-of-00001.parquet", table(range(3, 6)))


def splits_of_folders(folder):
    splits = {"train": range(3), "test": range(3, 6)}
    for split, indices in splits.items():
        path = folder / split / "data-00000-of-00001.arrow"
        writers.arrow(path, table(indices))
        (folder / split / "state.json").write_text("{}")


def declared_splits(folder):
    """The folder that DatasetDict.save_to_disk writes."""
    splits_of_folders(folder)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')


@pytest.mark.parametrize("write", [splits_of_files, splits_of_folders, declared_splits])
def test_splits_are_named_by_files_or_folders(tmp_path, write):
    write(tmp_path)
    splits = image_rows.read(str(tmp_path))
    assert sorted(splits) == ["test", "train"]
    parts = (("train", range(3)), ("test", range(3, 6)))
    for split, indices in parts:
        dataset = splits[split]
        assert dataset.split == split
        expected = [png(index) for index in indices]
        assert images_of(dataset) == expected
        assert len(dataset.files) == 1
    joined = image_rows.read(str(tmp_path), ignore_splits=True)
    assert list(joined) == [""]
    assert len(joined[""]) == 6


@pytest.mark.parametrize("name", ["train_test.parquet", "a_train_b.parquet", "test.parquet"])
def test_the_name_of_a_single_file_means_no_split(tmp_path, name):
    path = write_parquet(tmp_path / name, table())
    assert len(read_one(path)) == 6
    whole = image_rows.read(str(tmp_path), ignore_splits=True)
    assert len(whole[""]) == 6


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (("train.parquet", "more.parquet"), "'more.parquet'"),
        (("a_train_b.parquet", "c.parquet"), "'a_train_b.parquet'"),
        (("train/x.parquet", "y.parquet"), "'y.parquet'"),
        (("part-00000-of-00003.parquet", "part-00002-of-00003.parquet"), "00001-of-00003"),
    ],
)
def test_partial_splits_and_missing_shards_are_refused(tmp_path, names, word):
    for name in names:
        write_parquet(tmp_path / name, table())
    message = failure(image_rows.read, str(tmp_path))
    assert word in message


def test_other_files_are_counted(tmp_path):
    parquet(tmp_path)
    files = {"README.md": b"a card", "x.png": b"", "state.json": b"{}", ".h": b""}
    make_folder(tmp_path, files)
    (note,) = read_one(tmp_path).notes
    assert "2 files" in note
    assert ".md 1" in note


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["b", "a", "b", "10", "9", "a"], ("10", "9", "a", "b")),
        ([10, 9, 10, 9, 2, 2], ("2", "9", "10")),
        ([0.5, 1.0, 1.0, 0.5, 1.0, 1.0], ("0.5", "1.0")),
        ([True, False, True, False, True, True], ("false", "true")),
        ([2**63 - 1, -1, 5, 5, 5, 5], ("-1", "5", str(2**63 - 1))),
        ([" a", "a ", "b", "b", "b", "b"], ("a", "b")),
        (["a", "A", "b", "b", "b", "b"], ("A", "a", "b")),
    ],
)
def test_classes_without_declared_names_are_ordered(tmp_path, labels, classes):
    images = [png(index) for index in range(6)]
    path = written(tmp_path, image=images, label=labels)
    dataset = read_one(path)
    assert dataset.classes == classes


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param(pa.array(["b", "a"]).dictionary_encode(), id="dictionary"),
        pytest.param(pa.array(["b", "a"], pa.large_string()), id="large strings"),
        pytest.param(pa.array([b"b", b"a"]), id="bytes"),
        pytest.param(pa.array([1, 0], pa.uint8()), id="uint8"),
    ],
)
def test_label_columns_may_have_any_type(tmp_path, labels):
    pngs = [png(0), png(1)]
    images = pa.array(pngs, pa.large_binary())
    path = written(tmp_path, image=images, label=labels)
    dataset = read_one(path)
    assert dataset.labels.tolist() == [1, 0]
    assert images_of(dataset)[1] == png(1)


def test_declared_classes_may_have_no_image(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", table([0, 3]))
    dataset = read_one(path)
    assert dataset.classes == CLASSES
    assert dataset.class_counts().tolist() == [2, 0, 0]
    assert len(dataset.hold_out("train", 0.1)) == 1


@pytest.mark.parametrize("names", [("dog ", "cat", "e\u0301"), ("Cat", "cat", "CAT")])
def test_declared_names_of_classes_are_kept(tmp_path, names):
    rows = table(names=names)
    path = write_parquet(tmp_path / "a.parquet", rows)
    dataset = read_one(path)
    assert dataset.labels.tolist() == LABELS
    assert dataset.classes[1] == names[1]


def dark_bitmap():
    """An image whose bytes are valid UTF-8."""
    return encoded(Image.new("L", (5, 2), 7), "PPM")


def test_images_may_be_valid_utf8(tmp_path):
    data = dark_bitmap()
    data.decode()
    path = written(tmp_path, image=[data, data], label=["a", "b"])
    image = images_of(read_one(path))[1]
    assert image == data
    pixels = decode(image, "x", 1)
    assert pixels.tolist() == [[[7]] * 5] * 2


def test_undecodable_images_are_left_to_training(tmp_path):
    path = written(tmp_path, image=[b"\xffno image", png(1)], label=["a", "b"])
    dataset = read_one(path)
    assert images_of(dataset)[0] == b"\xffno image"


def test_missing_image_files_are_bad_records(tmp_path):
    missing = {"bytes": None, "path": "gone.png"}
    stored = {"bytes": png(1), "path": None}
    image_column = pa.array([missing, stored])
    path = written(tmp_path, image=image_column, label=["a", "b"])
    dataset = read_one(path)
    with pytest.raises(BadRecord, match="gone.png"):
        dataset.examples[0]
    image = dataset.examples[1]["image"]
    assert image == png(1)
    assert dataset.examples.size(0) is None


IMAGES = [png(0), png(1)]
AB = ["a", "b"]
NO_IMAGES = pa.array([], pa.binary())
NO_LABELS = pa.array([], pa.string())
DATES = [datetime.date(2026, 1, 1)] * 2
DECIMALS = [decimal.Decimal("1.5")] * 2


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"text": AB, "label": AB}, ["'image'", "'text', 'label'"]),
        ({"image": IMAGES, "class": AB}, ["'label'", "'image', 'class'"]),
        ({"img": IMAGES, "label": AB}, ["'image'"]),
        ({"Image": IMAGES, "label": AB}, ["'image'"]),
        ({"image": NO_IMAGES, "label": NO_LABELS}, ["no rows"]),
    ],
)
def test_missing_columns_and_rows_are_refused(tmp_path, columns, words):
    path = written(tmp_path, **columns)
    message = refusal(path)
    for word in ("a.parquet", *words):
        assert word in message


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ([png(0), None], ["row 1", "'image'"]),
        ([png(0), b""], ["row 1", "'image'"]),
        (["a.png", "b.png"], ["row 0", "'a.png'", ".csv"]),
        ([[1, 2], [3]], ["row 0", "'image'"]),
        ([7, 8], ["row 0", "'image'", "7"]),
        ([{"x": 1}, {"x": 2}], ["row 0", "'image'"]),
        ([{"bytes": None, "path": None}], ["row 0", "'image'"]),
        ([{"bytes": None, "path": ""}], ["row 0", "'image'"]),
        ([{"bytes": "text", "path": "a"}], ["row 0", "'image'"]),
        ([{"bytes": b"", "path": "a"}], ["row 0", "'image'"]),
    ],
)
def test_invalid_images_are_refused(tmp_path, images, words):
    labels = AB[: len(images)]
    path = written(tmp_path, image=images, label=labels)
    message = refusal(path)
    for word in ("a.parquet", *words):
        assert word in message


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["a", None], ["row 1", "'label'"]),
        (["a", " "], ["row 1", "'label'"]),
        ([0.5, float("nan")], ["row 1", "'label'"]),
        ([["a"], ["b", "c"]], ["row 0", "'label'"]),
        ([{"x": 1}, {"x": 2}], ["row 0", "'label'"]),
        ([b"\xff", b"a"], ["row 0", "'label'"]),
        (DATES, ["row 0", "'label'"]),
        (DECIMALS, ["row 0", "'label'"]),
        (["cat", "Cat"], ["'cat' (1)", "'Cat' (1)"]),
    ],
)
def test_invalid_labels_are_refused(tmp_path, labels, words):
    path = written(tmp_path, image=IMAGES, label=labels)
    message = refusal(path)
    for word in ("a.parquet", *words):
        assert word in message


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 1, -1, 0, 1, 2], ["row 2", "'label'"]),
        ([0, 1, 3, 0, 1, 2], ["'3'", "'dog'"]),
    ],
)
def test_numbers_without_a_declared_class_are_refused(tmp_path, labels, words):
    rows = table(label=labels)
    path = write_parquet(tmp_path / "a.parquet", rows)
    message = refusal(path)
    for word in words:
        assert word in message


def test_shards_with_different_classes_are_refused(tmp_path):
    write_parquet(tmp_path / "a.parquet", table(range(3)))
    write_parquet(tmp_path / "b.parquet", table(range(3), names=("x", "y", "z")))
    message = refusal(tmp_path)
    assert "'cat'" in message
    assert "'x'" in message


@pytest.mark.parametrize("make", [parquet, arrow_file])
@pytest.mark.parametrize("kept", [0, 4, 100, -50])
def test_truncated_files_are_refused(tmp_path, make, kept):
    path = make(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:kept])
    assert str(path) in refusal(path)


def test_data_larger_than_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(image_rows, "MEMORY_BYTES", 100)
    path = parquet(tmp_path)
    assert "class folders" in refusal(path)


def test_folders_of_caches_are_refused(tmp_path):
    writers.arrow(tmp_path / "cache-1234.arrow", table([0]))
    assert str(tmp_path) in failure(image_rows.read, str(tmp_path))


def test_folders_with_the_name_of_a_file_are_refused(tmp_path):
    path = tmp_path / "a.parquet"
    path.mkdir()
    assert "a.parquet" in failure(image_rows.read, str(path))
