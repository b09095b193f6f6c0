"""Images in rows of parquet and Arrow files, as the package datasets writes them and as others
do."""

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
    """As the package datasets writes images and their class labels."""
    images = [{"bytes": png(index), "path": f"{index}.png"} for index in indices]
    labels = [LABELS[index] for index in indices]
    label_feature = {"names": [*names], "_type": "ClassLabel"}
    features = {"image": {"_type": "Image"}, "label": label_feature}
    plain = pa.table({"image": images, "label": labels} | columns)
    metadata = json.dumps({"info": {"features": features}})
    return plain.replace_schema_metadata({"huggingface": metadata})


def written(path, **columns):
    """The path of a parquet file with these columns alone."""
    pq.write_table(pa.table(columns), path / "a.parquet")
    return str(path / "a.parquet")


def parquet(folder):
    pq.write_table(table(), folder / "all.parquet")
    return folder / "all.parquet"


def shards_of_parquet(folder):
    (folder / "data").mkdir()
    pq.write_table(table(range(3)), folder / "data/part-00000-of-00002.parquet")
    pq.write_table(table(range(3, 6)), folder / "data/part-00001-of-00002.parquet")
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
    """As the package datasets keeps images of a folder that were never read: without their
    bytes."""
    make_folder(folder, {f"images/{index}.png": png(index) for index in range(6)})
    images = [{"bytes": None, "path": f"images/{index}.png"} for index in range(6)]
    pq.write_table(table(image=pa.array(images)), folder / "all.parquet")
    return folder / "all.parquet"


def bytes_in_parquet(folder):
    """A column of bytes, and classes by their names."""
    images = [png(index) for index in range(6)]
    pq.write_table(table(image=images), folder / "all.parquet")
    return folder / "all.parquet"


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


@pytest.mark.parametrize("make", KINDS)
def test_every_kind_gives_the_same_images_and_classes(tmp_path, make):
    dataset = read_one(make(tmp_path))
    assert dataset.classes == CLASSES
    assert dataset.labels.tolist() == LABELS
    assert dataset.labels.dtype == np.int32
    assert dataset.columns == ("image", "label")
    assert dataset.stratified
    copied = pickle.loads(pickle.dumps(dataset))
    got = [copied.examples[index]["image"] for index in range(6)]
    expected = list(map(png, range(6)))
    assert got == expected
    assert len(set(copied.examples.names)) == 6
    assert copied.fingerprint == dataset.fingerprint


@pytest.mark.parametrize("make", KINDS)
def test_where_the_data_lie_changes_neither_roles_nor_fingerprint(tmp_path, make):
    found = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        dataset = read_one(make(tmp_path / place))
        heldout = dataset.hold_out("heldout", 0.3)
        found.append((dataset.fingerprint, heldout.examples.indices.tolist()))
    assert found[0] == found[1]
    assert len(found[0][1]) == 3  # one of each class


def test_a_remote_folder(tmp_path):
    dataset = read_one(writers.remote(shards_of_parquet(tmp_path)))
    assert dataset.examples[4] == {
        "image": png(4),
        "name": "data/part-00001-of-00002.parquet, row 1",
    }
    (tmp_path / "x").mkdir()
    paths_in_parquet(tmp_path / "x")
    path = writers.remote(tmp_path / "x")
    dataset = read_one(f"{path}/all.parquet")
    assert dataset.examples[4]["image"] == png(4)


def splits_of_files(folder):
    pq.write_table(table(range(3)), folder / "train-00000-of-00001.parquet")
    pq.write_table(table(range(3, 6)), folder / "test-00000-of-00001.parquet")


def splits_of_folders(folder):
    for split, indices in (("train", range(3)), ("test", range(3, 6))):
        writers.arrow(folder / split / "data-00000-of-00001.arrow", table(indices))
        (folder / split / "state.json").write_text("{}")


def declared_splits(folder):
    """As DatasetDict.save_to_disk writes them."""
    splits_of_folders(folder)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')


@pytest.mark.parametrize("write", [splits_of_files, splits_of_folders, declared_splits])
def test_splits_by_names(tmp_path, write):
    write(tmp_path)
    splits = image_rows.read(str(tmp_path))
    assert sorted(splits) == ["test", "train"]
    for split, indices in (("train", range(3)), ("test", range(3, 6))):
        dataset = splits[split]
        assert dataset.split == split
        got = [dataset.examples[index]["image"] for index in range(3)]
        assert got == list(map(png, indices))
        assert len(dataset.files) == 1
    joined = image_rows.read(str(tmp_path), ignore_splits=True)
    assert list(joined) == [""]
    assert len(joined[""]) == 6


@pytest.mark.parametrize("name", ["train_test.parquet", "a_train_b.parquet", "test.parquet"])
def test_the_name_of_a_single_file_says_nothing(tmp_path, name):
    parquet(tmp_path).rename(tmp_path / name)
    assert len(read_one(tmp_path / name)) == 6
    assert len(image_rows.read(str(tmp_path), ignore_splits=True)[""]) == 6


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (("train.parquet", "more.parquet"), "'more.parquet'"),
        (("a_train_b.parquet", "c.parquet"), "'a_train_b.parquet'"),
        (("train/x.parquet", "y.parquet"), "'y.parquet'"),
        (("part-00000-of-00003.parquet", "part-00002-of-00003.parquet"), "00001-of-00003"),
    ],
)
def test_files_of_which_some_are_of_no_split_or_missing(tmp_path, names, word):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(table(), tmp_path / name)
    assert word in failure(image_rows.read, str(tmp_path))


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
def test_labels_without_declared_names(tmp_path, labels, classes):
    path = written(tmp_path, image=[png(index) for index in range(6)], label=labels)
    dataset = read_one(path)
    assert dataset.classes == classes


def test_labels_of_a_dictionary_and_of_large_strings(tmp_path):
    images = [png(0), png(1)]
    for label in (
        pa.array(["b", "a"]).dictionary_encode(),
        pa.array(["b", "a"], pa.large_string()),
        pa.array([b"b", b"a"]),
        pa.array([1, 0], pa.uint8()),
    ):
        dataset = read_one(
            written(tmp_path, image=pa.array(images, pa.large_binary()), label=label)
        )
        assert dataset.labels.tolist() == [1, 0]
        assert dataset.examples[1]["image"] == images[1]


def test_declared_classes_of_which_some_have_no_image(tmp_path):
    pq.write_table(table([0, 3]), tmp_path / "a.parquet")
    dataset = read_one(tmp_path / "a.parquet")
    assert dataset.classes == CLASSES
    assert dataset.class_counts().tolist() == [2, 0, 0]
    assert len(dataset.hold_out("train", 0.1)) == 1


@pytest.mark.parametrize("names", [("dog ", "cat", "e\u0301"), ("Cat", "cat", "CAT")])
def test_declared_names_of_classes(tmp_path, names):
    pq.write_table(table(names=names), tmp_path / "a.parquet")
    dataset = read_one(tmp_path / "a.parquet")
    assert dataset.labels.tolist() == LABELS
    assert dataset.classes[1] == names[1]


def dark_bitmap():
    """An image whose bytes are valid UTF-8."""
    return encoded(Image.new("L", (5, 2), 7), "PPM")


def test_images_whose_bytes_are_text(tmp_path):
    data = dark_bitmap()
    data.decode()
    path = written(tmp_path, image=[data, data], label=["a", "b"])
    image = read_one(path).examples[1]["image"]
    assert image == data
    assert decode(image, "x", 1).tolist() == [[[7]] * 5] * 2


def test_an_image_that_cannot_be_decoded_is_left_to_training(tmp_path):
    path = written(tmp_path, image=[b"\xffno image", png(1)], label=["a", "b"])
    assert read_one(path).examples[0]["image"] == b"\xffno image"


def test_a_path_whose_file_is_gone_is_a_bad_record(tmp_path):
    images = pa.array([{"bytes": None, "path": "gone.png"}, {"bytes": png(1), "path": None}])
    dataset = read_one(written(tmp_path, image=images, label=["a", "b"]))
    with pytest.raises(BadRecord, match="gone.png"):
        dataset.examples[0]
    assert dataset.examples[1]["image"] == png(1)
    assert dataset.examples.size(0) is None


IMAGES = [png(0), png(1)]
AB = ["a", "b"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"text": AB, "label": AB}, ["'image'", "'text', 'label'"]),
        ({"image": IMAGES, "class": AB}, ["'label'", "'image', 'class'"]),
        ({"img": IMAGES, "label": AB}, ["'image'"]),
        ({"Image": IMAGES, "label": AB}, ["'image'"]),
        ({"image": [png(0), None], "label": AB}, ["row 1", "'image'"]),
        ({"image": [png(0), b""], "label": AB}, ["row 1", "'image'"]),
        ({"image": ["a.png", "b.png"], "label": AB}, ["row 0", "'a.png'", ".csv"]),
        ({"image": [[1, 2], [3]], "label": AB}, ["row 0", "'image'"]),
        ({"image": [7, 8], "label": AB}, ["row 0", "'image'", "7"]),
        ({"image": [{"x": 1}, {"x": 2}], "label": AB}, ["row 0", "'image'"]),
        ({"image": [{"bytes": None, "path": None}], "label": ["a"]}, ["row 0", "'image'"]),
        ({"image": [{"bytes": None, "path": ""}], "label": ["a"]}, ["row 0", "'image'"]),
        ({"image": [{"bytes": "text", "path": "a"}], "label": ["a"]}, ["row 0", "'image'"]),
        ({"image": [{"bytes": b"", "path": "a"}], "label": ["a"]}, ["row 0", "'image'"]),
        ({"image": IMAGES, "label": ["a", None]}, ["row 1", "'label'"]),
        ({"image": IMAGES, "label": ["a", " "]}, ["row 1", "'label'"]),
        ({"image": IMAGES, "label": [0.5, float("nan")]}, ["row 1", "'label'"]),
        ({"image": IMAGES, "label": [["a"], ["b", "c"]]}, ["row 0", "'label'"]),
        ({"image": IMAGES, "label": [{"x": 1}, {"x": 2}]}, ["row 0", "'label'"]),
        ({"image": IMAGES, "label": [b"\xff", b"a"]}, ["row 0", "'label'"]),
        ({"image": IMAGES, "label": [datetime.date(2026, 1, 1)] * 2}, ["row 0", "'label'"]),
        ({"image": IMAGES, "label": [decimal.Decimal("1.5")] * 2}, ["row 0", "'label'"]),
        ({"image": IMAGES, "label": ["cat", "Cat"]}, ["'cat' (1)", "'Cat' (1)"]),
        ({"image": pa.array([], pa.binary()), "label": pa.array([], pa.string())}, ["no rows"]),
    ],
)
def test_columns_that_are_refused(tmp_path, columns, words):
    path = written(tmp_path, **columns)
    message = failure(lambda: image_rows.read(path)[""])
    for word in ("a.parquet", *words):
        assert word in message


@pytest.mark.parametrize(
    ("labels", "words"),
    [([0, 1, -1, 0, 1, 2], ["row 2", "'label'"]), ([0, 1, 3, 0, 1, 2], ["'3'", "'dog'"])],
)
def test_numbers_that_are_no_declared_class(tmp_path, labels, words):
    pq.write_table(table(label=labels), tmp_path / "a.parquet")
    message = failure(lambda: image_rows.read(str(tmp_path / "a.parquet"))[""])
    for word in words:
        assert word in message


def test_shards_that_declare_other_classes(tmp_path):
    pq.write_table(table(range(3)), tmp_path / "a.parquet")
    pq.write_table(table(range(3), names=("x", "y", "z")), tmp_path / "b.parquet")
    message = failure(lambda: image_rows.read(str(tmp_path))[""])
    assert "'cat'" in message
    assert "'x'" in message


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("kept", [0, 4, 100, -50])
def test_damaged_files(tmp_path, suffix, kept):
    path = parquet(tmp_path) if suffix == ".parquet" else arrow_file(tmp_path)
    data = path.read_bytes()
    damaged = tmp_path / f"damaged{suffix}"
    damaged.write_bytes(data[:kept] if kept >= 0 else data[: len(data) + kept])
    message = failure(lambda: image_rows.read(str(damaged))[""])
    assert str(damaged) in message


def test_more_rows_than_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(image_rows, "MEMORY_BYTES", 100)
    message = failure(lambda: image_rows.read(str(parquet(tmp_path)))[""])
    assert "class folders" in message


def test_nothing_but_caches(tmp_path):
    writers.arrow(tmp_path / "cache-1234.arrow", table([0]))
    assert str(tmp_path) in failure(image_rows.read, str(tmp_path))


def test_a_folder_called_as_a_file(tmp_path):
    (tmp_path / "a.parquet").mkdir()
    assert "a.parquet" in failure(image_rows.read, str(tmp_path / "a.parquet"))
