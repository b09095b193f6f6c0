"""Data from Python code, as examples and as files that runs read."""

import itertools
import json
from pathlib import Path

import fsspec
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from gmlp_flax import config as config_lib
from gmlp_flax.api import examples
from gmlp_flax.checkpoints import RUN_FILE
from gmlp_flax.errors import RunError
from gmlp_flax.tasks.data.base import RunFiles
from gmlp_flax.tasks.data.images import ImageData
from gmlp_flax.tasks.text_classification import TextClassificationData
from tests.failures import failure, raised

TEXTS = [("good", "yes"), ("bad", "no")]


@pytest.fixture
def text_config():
    return config_lib.open_config("finetune_glue:own")


@pytest.fixture
def image_config():
    return config_lib.from_file("quickstart_image")


# Examples.


class Table:
    """Like pandas' DataFrame, which iterates over the names of its columns instead of its rows."""

    def keys(self):
        return ["text", "label"]

    def __getitem__(self, name):
        columns = {"text": ["good", "bad"], "label": ["yes", "no"]}
        return columns[name]

    def __iter__(self):
        return iter(self.keys())


GREY = np.zeros((2, 2), np.uint8)
GOOD_AND_BAD = [(("good",), "yes"), (("bad",), "no")]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(TEXTS, GOOD_AND_BAD, id="list of pairs"),
        pytest.param(iter(TEXTS), GOOD_AND_BAD, id="iterator of pairs"),
        pytest.param(Table(), GOOD_AND_BAD, id="table"),
        pytest.param((["good", "bad"], ["yes", "no"]), GOOD_AND_BAD, id="columns"),
        pytest.param({"text": ["good"], "label": [1]}, [(("good",), 1)], id="dict of columns"),
        pytest.param([{"text": "good", "labels": True}], [(("good",), True)], id="rows"),
        pytest.param(
            [{"text": "good", "label": 1, "labels": 2, "id": 3}],
            [(("good",), 1)],
            id="rows with other columns",
        ),
        pytest.param(
            [{"a": "one", "b": "two", "label": 0}],
            [(("one", "two"), 0)],
            id="rows of two texts",
        ),
        pytest.param(
            ["good", "bad"],
            [(("good",), None), (("bad",), None)],
            id="texts without labels",
        ),
        pytest.param([(("one", "two"), "yes")], [(("one", "two"), "yes")], id="pairs of texts"),
        pytest.param([("good", np.int64(3))], [(("good",), 3)], id="NumPy label"),
    ],
)
def test_examples(data, expected):
    assert list(examples.examples(data)) == expected


def test_numeric_labels_are_names_without_declared_names():
    data = [("a", 1), ("b", "x"), ("c", -1)]
    labels = [label for _, label in examples.examples(data)]
    assert labels == [1, "x", -1]


class Feature:
    names = ("no", "yes")


class Named(list):
    """The parts of a datasets.Dataset that are read: its rows, and the names of its labels."""

    features = {"text": object(), "label": Feature()}


def test_labels_are_positions_in_declared_names():
    rows = []
    for label in (1, 0, -1, 7, "yes"):
        rows.append({"text": "good", "label": label})
    data = Named(rows)
    labels = [label for _, label in examples.examples(data)]
    assert labels == ["yes", "no", None, 7, "yes"]
    assert examples.class_names(TEXTS) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "no examples"),
        (3, "the data are 3"),
        (None, "the data are None"),
        (("a", "b", "c"), "the data are ('a', 'b', 'c')"),
        ((["a", "b"], [0]), "2 and 1 rows"),
        ({"text": ["a"], "label": []}, "1 and 0 rows"),
        ({"text": ["a"], "label": 3}, "3 as a column"),
        ((np.zeros((1, 2, 2)), np.array(3)), "array(3) as a column"),
        ([{"id": 3, "label": 1}], "it has id, label"),
        ([{}], "no input"),
        ([("a", "b", "c")], "('a', 'b', 'c')"),
        ([((), 1)], "((), 1)"),
        (
            (np.zeros((2, 4, 4, 3), np.uint8), np.eye(2)),
            "a label is an array [2]: expected text or a number; of one-hot labels give",
        ),
    ],
)
def test_invalid_examples_are_refused(data, words):
    found = examples.examples(data)
    assert words in failure(list, found)


# Files.


def texts_in(keys) -> list[str]:
    """The stored training texts."""
    texts = []
    for line in Path(keys["data.train"]).read_text().splitlines():
        record = json.loads(line)
        texts.append(record["text"])
    return texts


def test_paths_are_kept(text_config, tmp_path):
    folder = str(tmp_path / "data")
    keys = examples.store("train.tsv", text_config, folder)
    assert keys == {"data.train": "train.tsv"}
    data = {"train": Path("a.tsv"), "validation": "b.tsv", "test": "c.tsv"}
    keys = examples.store(data, text_config, folder)
    assert keys == {"data.train": "a.tsv", "data.heldout": "b.tsv"}
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("names", "unread"),
    [
        (("train", "validation", "test"), "test"),
        (("train", "heldout", "validation", "other"), "validation, other"),
        (("train", "test"), ""),
        (("heldout",), ""),
    ],
)
def test_ignored_splits_are_reported(names, unread, text_config, tmp_path, capsys):
    """With paths of up to three splits, of which two would be held out."""
    data = {name: f"{name}.tsv" for name in names}
    folder = str(tmp_path / "data")
    examples.store(data, text_config, folder)
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).splitlines()
    if not unread:
        assert lines == []
        return
    [line] = lines
    assert line.endswith(f"are read, and not {unread}")


def test_path_and_examples_together(text_config, tmp_path):
    keys = examples.store({"train": TEXTS, "heldout": "b.tsv"}, text_config, str(tmp_path / "data"))
    assert keys["data.heldout"] == "b.tsv"
    assert texts_in(keys) == ["good", "bad"]


def test_run_without_a_step_is_written_again(text_config, tmp_path):
    """The data of an earlier start are not silently read. The data of a run that has taken a step are
    not lost."""
    folder = str(tmp_path / "run" / "data")
    odd = [*TEXTS, (3, "no")]  # an invalid example after valid ones
    assert "int" in failure(examples.store, odd, text_config, folder)
    keys = examples.store(TEXTS, text_config, folder)
    assert texts_in(keys) == ["good", "bad"]
    keys = examples.store([("new", "yes")], text_config, folder)
    assert texts_in(keys) == ["new"]
    (tmp_path / "run" / RUN_FILE).write_text("{}")  # the first step is taken
    again = examples.store([("new", "yes")], text_config, folder)
    assert again == keys
    other_texts = TEXTS
    other_labels = [("new", "no")]
    with_heldout = {"train": [("new", "yes")], "test": TEXTS}
    for others in (other_texts, other_labels, with_heldout):
        message = raised(RunError, examples.store, others, text_config, folder)
        assert f"the run in {tmp_path / 'run'} was trained on" in message
    assert texts_in(keys) == ["new"]
    run = tmp_path / "run"
    names = {path.name for path in run.iterdir()}
    assert names == {"data", RUN_FILE}


def test_changed_pixels_are_other_data(image_config, tmp_path):
    """Also held-out pixels; the same pixels in another array are the same data."""
    folder = tmp_path / "run" / "data"
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 8, 8, 1), dtype=np.uint8)
    labels = [0, 1, 0, 1]
    train = (pixels, labels)
    heldout = (pixels[:2], labels[:2])
    pixel_data = {"train": train, "test": heldout}
    keys = examples.store(pixel_data, image_config, str(folder))
    (tmp_path / "run" / RUN_FILE).write_text("{}")
    copies = pixels.copy()
    pairs = list(zip(copies, labels, strict=True))
    same = {"train": pairs, "test": heldout}
    assert examples.store(same, image_config, str(folder)) == keys
    changed = pixels[:2].copy()
    changed[1, 3, 3] ^= 1
    other_pixels = (changed, labels[:2])
    other_labels = (pixels[:2], [1, 0])
    fewer = (pixels[:1], labels[:1])
    for test in (other_pixels, other_labels, fewer):
        others = {"train": train, "test": test}
        message = raised(RunError, examples.store, others, image_config, str(folder))
        assert "heldout" in message
        assert str(folder) in message


def endless():
    while True:
        yield from TEXTS


def test_stream_is_written_as_far_as_the_steps_read(text_config, tmp_path, capsys):
    text_config.steps = 3
    text_config.batch_size = 8
    text_config.data.heldout_share = 0.2
    keys = examples.store(endless(), text_config, str(tmp_path / "a"))
    assert len(texts_in(keys)) == 30  # of which 24 are training examples
    assert "the first 30 examples" in capsys.readouterr().err
    data = {"train": endless(), "test": TEXTS}
    folder = str(tmp_path / "b")
    keys = examples.store(data, text_config, folder)
    assert len(texts_in(keys)) == 24
    whole = [("good", "yes")] * 50
    folder = str(tmp_path / "c")
    keys = examples.store(whole, text_config, folder)
    assert len(texts_in(keys)) == 50


def test_endless_held_out_stream_is_refused(text_config, tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "MOST_HELDOUT", 100)
    data = {"train": TEXTS, "test": endless()}
    message = failure(examples.store, data, text_config, str(tmp_path / "data"))
    assert "heldout" in message
    assert "100 examples" in message


def test_text_stream_for_a_language_model(tmp_path):
    config = config_lib.open_config("quickstart_text")
    config.steps = 2
    config.batch_size = 4
    config.model.length = 32
    config.data.heldout_share = 0.5
    texts = itertools.repeat("x" * 100)
    folder = str(tmp_path / "data")
    keys = examples.store(texts, config, folder)
    tokens = 2 * 4 * 32 / 0.5
    characters = tokens * examples.CHARACTERS_OF_TOKEN
    count = len(texts_in(keys))
    assert count == pytest.approx(characters / 100, abs=1)


def test_user_folder_is_never_deleted(text_config, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    message = raised(RunError, examples.store, TEXTS, text_config, str(folder))
    assert str(folder) in message
    assert (folder / "thesis.txt").read_text() == "mine"


def test_remote_folder(text_config):
    message = raised(RunError, examples.store, TEXTS, text_config, "memory://runs/data")
    assert "memory://runs/data" in message


def test_local_image_files_stay_and_remote_ones_are_copied(image_config, tmp_path):
    local = str(tmp_path / "a.png")
    remote = "memory://own_images/b.png"
    for path, level in ((local, 10), (remote, 200)):
        image = Image.new("L", (8, 8), level)
        with fsspec.open(path, "wb") as file:
            image.save(file, "PNG")
    pairs = [(local, "dark"), (remote, "light")]
    data = {"train": pairs, "heldout": pairs[::-1]}
    folder = str(tmp_path / "data")
    keys = examples.store(data, image_config, folder)
    assert not (tmp_path / "data" / "train_files" / "0.png").exists()
    image_config.update_from_flattened_dict(keys)
    source = ImageData(image_config, RunFiles())
    levels_of_role = (("train", [10, 200]), ("heldout", [200, 10]))
    for role, levels in levels_of_role:
        read = source.labelled(role)
        for index, level in enumerate(levels):
            assert read[index]["image"].mean() == level


def test_images_are_read_back_unchanged(image_config, tmp_path):
    """Pixels in memory, read by the reader of a run."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 8, 8, 1), dtype=np.uint8)
    train = (pixels, [1, 0, 1, 0])
    test = (pixels[:2], [0, 1])
    data = {"train": train, "test": test}
    folder = str(tmp_path / "data")
    keys = examples.store(data, image_config, folder)
    image_config.update_from_flattened_dict(keys)
    source = ImageData(image_config, RunFiles())
    assert source.classes == ("0", "1")
    for role, count in (("train", 4), ("heldout", 2)):
        read = source.labelled(role)
        assert len(read) == count
        for index in range(count):
            image = read[index]["image"]
            assert_array_equal(image, pixels[index])
    heldout = source.labelled("heldout")
    assert heldout[0]["label"] == 0
    assert heldout[1]["label"] == 1


def test_numbered_classes_are_ordered_by_size(image_config, tmp_path):
    """In whatever order they occur: a label is its position."""
    four_of_each = np.repeat(np.arange(12), 4)
    labels = np.random.default_rng(0).permutation(four_of_each)
    levels_by_image = labels.astype(np.uint8)
    levels = levels_by_image.reshape(48, 1, 1, 1)
    pixels = np.broadcast_to(levels, (48, 8, 8, 1))
    folder = str(tmp_path / "data")
    keys = examples.store((pixels, labels), image_config, folder)
    image_config.update_from_flattened_dict(keys)
    source = ImageData(image_config, RunFiles())
    names = [str(number) for number in range(12)]
    assert source.classes == tuple(names)
    read = source.labelled("train")
    for index in range(len(read)):
        example = read[index]
        assert example["label"] == example["image"].mean()


class Letters:
    names = ("b", "c", "a")


def test_declared_classes_keep_their_order(image_config, text_config, tmp_path):
    labels = [2, 0, 1] * 4
    rows = []
    for label in labels:
        image = np.full((8, 8), label, np.uint8)
        rows.append({"image": image, "label": label})
    data = Named(rows)
    data.features = {"label": Letters()}
    keys = examples.store(data, image_config, str(tmp_path / "images"))
    image_config.update_from_flattened_dict(keys)
    source = ImageData(image_config, RunFiles())
    assert source.classes == ("b", "c", "a")
    read = source.labelled("train")
    for index in range(len(read)):
        example = read[index]
        assert example["label"] == example["image"].mean()
    rows = []
    for label in labels:
        rows.append({"text": f"text {label}", "label": label})
    texts = Named(rows)
    texts.features = {"label": Letters()}
    folder = str(tmp_path / "texts")
    keys = examples.store(texts, text_config, folder)
    text_config.update_from_flattened_dict(keys)
    dataset = TextClassificationData(text_config).dataset("train")
    assert dataset.classes == ("b", "c", "a")
    dataset_rows = dataset.examples.rows
    for row, label in zip(dataset_rows, dataset.labels, strict=True):
        assert row.texts == (f"text {label}",)


def read_images(config, data, folder, classes=()):
    """The training images, after they have been stored."""
    keys = examples.store(data, config, str(folder), classes)
    config.update_from_flattened_dict(keys)
    return ImageData(config, RunFiles()).dataset("train")


def test_single_class_is_refused(image_config, tmp_path):
    pixels = np.zeros((4, 8, 8, 1), np.uint8)
    data = (pixels, ["cat"] * 4)
    message = failure(read_images, image_config, data, tmp_path / "data")
    assert "'cat' alone" in message


@pytest.mark.parametrize(
    ("label", "classes", "words"),
    [
        (7, ("cat", "dog"), "the class '7' is not one of 'cat', 'dog'"),
        (0, ("1", "2", "3"), "the class '0' is not one of '1', '2', '3'"),
        (None, (), "has no label"),
        ("Cat", ("cat", "dog"), "'Cat'"),
    ],
)
def test_label_without_a_class_is_refused(image_config, tmp_path, label, classes, words):
    pixels = np.zeros((8, 8, 1), np.uint8)
    example = (pixels, label)
    data = [example, example]
    message = failure(read_images, image_config, data, tmp_path / "data", classes)
    assert words in message


def test_text_instead_of_an_image_is_refused(image_config, text_config, tmp_path):
    pixels = [(GREY, "yes")]
    message = failure(examples.store, pixels, text_config, str(tmp_path / "a"))
    assert "ndarray" in message
    numbers = [(3, "yes"), (4, "no")]
    folder = str(tmp_path / "b")
    message = failure(examples.store, numbers, image_config, folder)
    assert "int" in message
