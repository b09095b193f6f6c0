"""Images in files of many. Each way to keep them holds the same six images of three classes."""

import io
import json
import pickle
import tarfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from gmlp_flax.data.images import sources, views
from gmlp_flax.data.images.sources import open_images, open_side
from gmlp_flax.data.splits import Side
from gmlp_flax.errors import DataError
from tests import failures
from tests.data import writers
from tests.data.images.image_files import make_folder, png

CLASSES = ("cat", "dog", "eel")
LABELS = [0, 1, 2, 0, 1, 2]


def table(indices=range(6), **columns):
    """As the package datasets writes images and their class labels."""
    images = [{"bytes": png(i), "path": f"{i}.png"} for i in indices]
    features = {"image": {"_type": "Image"}, "label": {"names": [*CLASSES], "_type": "ClassLabel"}}
    found = pyarrow.table({"image": images, "label": [LABELS[i] for i in indices]} | columns)
    return found.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )


def shard(path, indices):
    """A tar file as WebDataset writes them."""
    with tarfile.open(path, "w") as tar:
        for i in indices:
            for name, data in {
                f"{i:05}.png": png(i),
                f"{i:05}.cls": CLASSES[LABELS[i]].encode(),
            }.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def csv(path, header="file_name,label,note", row="images/{i}.png,{name},x"):
    make_folder(path.parent, {f"images/{i}.png": png(i) for i in range(6)})
    path.write_text(
        "\n".join([header, *(row.format(i=i, name=CLASSES[LABELS[i]]) for i in range(6))]) + "\n"
    )


def parquet(folder):
    pyarrow.parquet.write_table(table(), folder / "all.parquet")
    return folder / "all.parquet"


def shards_of_parquet(folder):
    (folder / "data").mkdir()
    pyarrow.parquet.write_table(table([0, 1, 2]), folder / "data/part-00000-of-00002.parquet")
    pyarrow.parquet.write_table(table([3, 4, 5]), folder / "data/part-00001-of-00002.parquet")
    (folder / "README.md").write_text("a card")
    return folder


def save_to_disk(folder):
    writers.arrow(folder / "data-00000-of-00001.arrow", table())
    writers.arrow(folder / "cache-1234.arrow", table([0]))
    (folder / "state.json").write_text("{}")
    return folder


def web_dataset(folder):
    shard(folder / "shard-000000.tar", [0, 1, 2])
    shard(folder / "shard-000001.tar", [3, 4, 5])
    return folder


def paths_in_a_table(folder):
    csv(folder / "labels.csv")
    return folder / "labels.csv"


def paths_in_parquet(folder):
    """As the package datasets keeps images of a folder that were never read: without their
    bytes."""
    csv(folder / "labels.csv")
    images = pyarrow.array([{"bytes": None, "path": f"images/{i}.png"} for i in range(6)])
    pyarrow.parquet.write_table(table(image=images), folder / "all.parquet")
    return folder / "all.parquet"


KINDS = [parquet, shards_of_parquet, save_to_disk, web_dataset, paths_in_a_table, paths_in_parquet]


@pytest.mark.parametrize("make", KINDS)
def test_every_kind_gives_the_same_images_and_classes(tmp_path, make):
    source = open_images(str(make(tmp_path))).of_split()
    assert (
        source.classes == CLASSES
        and source.labels.tolist() == LABELS
        and source.labels.dtype == np.int32
    )
    copied = pickle.loads(pickle.dumps(source))
    assert [copied[i]["image"] for i in range(6)] == [png(i) for i in range(6)]
    assert len({*source.names}) == 6 and copied.fingerprint() == source.fingerprint()
    assert source.fingerprint()["images"] == 6


@pytest.mark.parametrize("make", KINDS)
def test_where_the_data_lie_changes_neither_sides_nor_fingerprint(tmp_path, make):
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    one, two = (
        open_side(str(make(tmp_path / place)), Side("train", heldout_share=0.3))
        for place in ("one", "two")
    )
    assert one.fingerprint() == two.fingerprint() and one.indices.tolist() == two.indices.tolist()


@pytest.mark.parametrize("make", KINDS)
def test_every_kind_holds_out_a_share(tmp_path, make):
    path = str(make(tmp_path))
    train, heldout = (
        open_side(path, Side(side, heldout_share=0.3)) for side in ("train", "heldout")
    )
    # one of each class
    assert len(train) == len(heldout) == 3 and train.classes == heldout.classes == CLASSES
    images = [source[i]["image"] for source in (train, heldout) for i in range(3)]
    assert sorted(images) == sorted(map(png, range(6)))
    assert sources.class_sizes(train).tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "tar"])
def test_splits_by_the_names_of_files_and_folders(tmp_path, kind):
    if kind == "parquet":
        for split, indices in {"train": range(3), "test": range(3, 6)}.items():
            pyarrow.parquet.write_table(
                table(indices), tmp_path / f"{split}-00000-of-00001.parquet"
            )
    elif kind == "arrow":
        for split, indices in {"train": range(3), "test": range(3, 6)}.items():
            writers.arrow(tmp_path / split / "data-00000-of-00001.arrow", table(indices))
        (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    else:
        shard(tmp_path / "set-train-000.tar", range(3))
        shard(tmp_path / "set-test-000.tar", range(3, 6))
    train, heldout = (
        open_side(str(tmp_path), Side(side, heldout_share=0.5)) for side in ("train", "heldout")
    )
    assert [train[i]["image"] for i in range(len(train))] == [png(i) for i in range(3)]
    assert [heldout[i]["image"] for i in range(len(heldout))] == [png(i) for i in range(3, 6)]
    assert "to train on" in train.notes[0] and "held out" in train.notes[0]
    with pytest.raises(DataError, match="no split 'validation': it has 'test', 'train'"):
        open_side(str(tmp_path), Side("heldout", heldout_split="validation", heldout_share=0.5))


@pytest.mark.parametrize("shape", [(6, 9, 7), (6, 9, 7, 1), (6, 9, 7, 3)])
@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_of_pixels(tmp_path, shape, channels):
    """Keras' mnist.npz has x_train, y_train, x_test and y_test; a model of one channel or of three
    reads them."""
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.savez(
        tmp_path / "own.npz", x_train=pixels, y_train=LABELS, x_test=pixels[:4], y_test=LABELS[:4]
    )
    train, test = (
        open_side(str(tmp_path / "own.npz"), Side(side, heldout_share=0.1))
        for side in ("train", "heldout")
    )
    assert (len(train), len(test), train.classes) == (6, 4, ("0", "1", "2"))
    assert train.labels.tolist() == LABELS
    mode = Image.fromarray(pixels[3].reshape(9, 7) if pixels[3].size == 63 else pixels[3])
    expected = np.asarray(mode.convert({1: "L", 3: "RGB"}[channels])).reshape(9, 7, channels)
    np.testing.assert_array_equal(views.decode(train[3]["image"], "3", channels), expected)
    labels = np.array(LABELS)[:, None]  # as MedMNIST has them
    np.savez(
        tmp_path / "med.npz",
        train_images=pixels,
        train_labels=labels,
        val_images=pixels[:2],
        val_labels=labels[:2],
    )
    train, val = (
        open_side(str(tmp_path / "med.npz"), Side(side, heldout_share=0.1))
        for side in ("train", "heldout")
    )
    assert (train.labels.tolist(), val.labels.tolist()) == (LABELS, LABELS[:2])
    np.savez(tmp_path / "alone.npz", x=pixels, y=LABELS)
    assert len(open_images(str(tmp_path / "alone.npz")).of_split()) == 6


def failure(path):
    return failures.failure(open_side, str(path), Side("train", heldout_share=0.5))


def test_what_cannot_be_read_is_said_in_one_line(tmp_path):
    pyarrow.parquet.write_table(
        pyarrow.table({"text": ["a"], "label": [1]}), tmp_path / "text.parquet"
    )
    assert "no column 'image' or 'img'" in failure(tmp_path / "text.parquet")
    assert "found 'text', 'label'" in failure(tmp_path / "text.parquet")
    pyarrow.parquet.write_table(table(label=[0, 1, -1, 0, 1, 2]), tmp_path / "unlabelled.parquet")
    assert "row 2 has no image or no class" in failure(tmp_path / "unlabelled.parquet")
    csv(tmp_path / "x.csv", header="file_name,kind,note")
    for word in ("no column 'label' or", "found 'file_name', 'kind', 'note'"):
        assert word in failure(tmp_path / "x.csv")
    csv(tmp_path / "y.csv", header="photo,label,note")
    for word in ("no column 'image' or", "found 'photo', 'label', 'note'"):
        assert word in failure(tmp_path / "y.csv")
    (tmp_path / "base64.csv").write_text(f"image,label\n{'iVBORw0KGgo' * 1000},cat\n")
    assert "base64.csv, line 2 has no image or no class" in failure(tmp_path / "base64.csv")
    (tmp_path / "damaged.parquet").write_bytes(parquet(tmp_path).read_bytes()[:-50])
    assert "damaged.parquet: truncated, damaged or not parquet" in failure(
        tmp_path / "damaged.parquet"
    )


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": np.zeros(3)}, "expected arrays x_train and y_train, or train_images"),
        (
            {"x": np.zeros((3, 4, 4)), "y": np.zeros(3)},
            "x is float64 [3, 4, 4] and y has 3 entries",
        ),
        ({"x": np.zeros((3, 4, 4), np.uint8), "y": np.zeros(2)}, "y has 2 entries"),
        ({"x": np.zeros((3, 4, 4, 4), np.uint8), "y": np.zeros(3)}, "x is uint8 [3, 4, 4, 4]"),
        ({"x": np.zeros((3, 4), np.uint8), "y": np.zeros(3)}, "x is uint8 [3, 4]"),
        ({"x": np.array([{}]), "y": np.zeros(1)}, "damaged, or no arrays of numbers"),
    ],
)
def test_arrays_that_are_no_images(tmp_path, arrays, words):
    np.savez(tmp_path / "x.npz", **arrays)
    assert words in failure(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["cat", "Cat", "dog"] * 2, "two labels, 'cat' (2 rows) and 'Cat' (2)"),
        (["cat", "nan", "dog"] * 2, "line 3 has no image or no class"),
        (["0.5", "1.5", "2"] * 2, "real numbers such as '0.5' among the classes"),
        (
            ["a,train", "b,train", "a,test"] * 2,
            "the column 'note' seems to name splits ('test', 'train')",
        ),
    ],
)
def test_labels_that_are_no_classes(tmp_path, labels, words):
    rows = "".join(
        f"images/{i}.png,{label}{'' if ',' in label else ',x'}\n" for i, label in enumerate(labels)
    )
    (tmp_path / "a.csv").write_text(f"file_name,label,note\n{rows}")
    assert words in failure(tmp_path / "a.csv")


def test_columns_that_are_read_are_named(tmp_path):
    """Of CIFAR-100's two kinds of classes, the fine ones; and 1.0 is 1."""
    images = table().column("image")
    columns = {"img": images, "coarse_label": [0] * 6, "fine_label": [0.0, 1.0, 2.0] * 2}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    source = open_side(str(tmp_path / "a.parquet"), Side("train"))
    assert source.classes == ("0", "1", "2")
    assert source.notes == (
        "a.parquet: images and their classes by the columns 'img' and 'fine_label'",
    )
    csv(tmp_path / "b.csv", header="file_name;label;fold", row="images/{i}.png;{name};{i}")
    notes = open_side(str(tmp_path / "b.csv"), Side("train")).notes
    assert "has ';' between its columns" in notes[0] and "'fold' may number folds" in notes[2]


def test_an_image_in_several_rows(tmp_path):
    csv(tmp_path / "a.csv")
    rows = (tmp_path / "a.csv").read_text().splitlines()
    (tmp_path / "b.csv").write_text("\n".join([*rows, *rows[1:], *rows[1:]]))
    sides = [
        open_side(str(tmp_path / "b.csv"), Side(side, heldout_share=0.3))
        for side in ("train", "heldout")
    ]
    ours, theirs = ({side[i]["image"] for i in range(len(side))} for side in sides)
    assert (
        f"about {len(ours & theirs) / len(theirs):.0%} of the held-out images"
        in sources.check_overlap(*sides)
    )
    (tmp_path / "c.csv").write_text("\n".join([*rows, rows[1].replace("cat", "dog")]))
    assert "the image of c.csv, line 2 has another class in another row" in failure(
        tmp_path / "c.csv"
    )
    for split, indices in {"train": range(6), "test": [0, 1, 2]}.items():
        pyarrow.parquet.write_table(table(indices), tmp_path / f"{split}.parquet")
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.csv").unlink()
    for image in (tmp_path / "images").iterdir():
        image.unlink()
    sides = [
        open_side(str(tmp_path), Side(side, heldout_share=0.3)) for side in ("train", "heldout")
    ]
    assert "about 100% of the held-out images" in sources.check_overlap(*sides)


def test_arrays_of_several_files_and_of_one_split(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 4), np.uint8)
    for name, count in {"train-0": 3, "train-1": 3, "test": 6}.items():
        np.savez(tmp_path / f"{name}.npz", x=pixels[:count], y=LABELS[:count])
    sides = [
        open_side(str(tmp_path), Side(side, heldout_share=0.3)) for side in ("train", "heldout")
    ]
    assert [side.labels.tolist() for side in sides] == [[0, 1, 2, 0, 1, 2], LABELS]
    np.savez(tmp_path / "a.npz", x_train=pixels, y_train=LABELS, x_train_2=pixels, y_train_2=LABELS)
    assert "of its arrays x_train, x_train_2 two are of one split" in failure(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("kind", "names"), [("S", ("a", "b")), ("U", ("a", "b")), ("?", ("False", "True"))]
)
def test_labels_of_other_types(tmp_path, kind, names):
    labels = np.array([0, 1] * 3, "?") if kind == "?" else np.array(["a", "b"] * 3, kind)
    np.savez(tmp_path / "a.npz", x=np.zeros((6, 4, 4), np.uint8), y=labels)
    source = open_images(str(tmp_path / "a.npz")).of_split()
    assert source.classes == names and source.labels.tolist() == [0, 1] * 3


def test_several_labels_in_a_cell_are_named(tmp_path):
    rows = "".join(
        f"images/{i}.png,{label}\n" for i, label in enumerate(["Mass", "Mass|Nodule", "None"] * 2)
    )
    (tmp_path / "a.csv").write_text(f"file_name,label\n{rows}")
    notes = "; ".join(open_images(str(tmp_path / "a.csv")).of_split().notes)
    assert (
        "'Mass|Nodule' (2 rows), taken as 1 classes, may mean several labels" in notes
        and "'None' (2 rows)" in notes
    )


def test_a_folder_of_images_is_read_as_one_whatever_lies_beside(tmp_path):
    make_folder(
        tmp_path, dict.fromkeys(("cat/a.png", "cat/b.png", "dog/c.png", "dog/d.png"), png(1))
    )
    pyarrow.parquet.write_table(table(), tmp_path / "all.parquet")
    shard(tmp_path / "old.tar", [0, 1])
    assert open_images(str(tmp_path)).of_split().classes == ("cat", "dog")


def test_files_of_no_split_beside_others(tmp_path):
    pyarrow.parquet.write_table(table(), tmp_path / "train.parquet")
    pyarrow.parquet.write_table(table(), tmp_path / "more.parquet")
    assert "'more.parquet' is of no split" in failure(tmp_path)


def test_paths_of_windows(tmp_path):
    csv(tmp_path / "a.csv", row="images\\{i}.png,{name},x")
    found = open_images(str(tmp_path / "a.csv")).of_split()
    assert [found[i]["image"] for i in range(6)] == [png(i) for i in range(6)]
    (tmp_path / "images\\0.png").write_bytes(png(9))  # a name of its own on other systems
    assert open_images(str(tmp_path / "a.csv")).of_split()[0]["image"] == png(9)


def test_a_column_of_bytes(tmp_path):
    content = pyarrow.table(
        {"image": [png(i) for i in range(6)], "label": [CLASSES[label] for label in LABELS]}
    )
    pyarrow.parquet.write_table(content, tmp_path / "a.parquet")
    found = open_images(str(tmp_path / "a.parquet")).of_split()
    assert [found[i]["image"] for i in range(6)] == [
        png(i) for i in range(6)
    ] and found.labels.tolist() == LABELS
