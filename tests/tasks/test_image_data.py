"""Where the images of a classifier come from, what is said of them, and how an evaluation counts
them."""

import json
import pickle
from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.data.holdout import HELDOUT, ROLES, TRAIN
from gmlp_flax.errors import DataError
from gmlp_flax.tasks.data import RunFiles
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.tasks.image_data import ImageData, evaluation_example, training_example
from tests.data import writers
from tests.data.images import image_files
from tests.failures import failure
from tests.training import tiny

PETS = ("cat", "dog", "eel")


def image_config(real: Path | str = "", **data):
    """Of a classifier of colour images."""
    config = tiny.image_config()
    config.model.channels = 3
    config.data.update(data)
    config.eval.real_labels = str(real)
    return config


def image_data(run: Path | None = None, real: Path | str = "", **data) -> ImageData:
    """The data of a run in a folder."""
    return ImageData(image_config(real, **data), RunFiles(str(run or "")))


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """Indexes of the tests are not kept in the cache of the user who runs them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def imagenet(tmp_path, monkeypatch):
    """TFDS's imagenet2012 in small: 11 to train on; of 26 to validate on, the 4th is no image, the
    6th no record."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    validation = []
    for index in range(26):
        content = b"no image" if index == 3 else None
        validation.append(image_files.record(index, image=content))
    validation[5] = b"\xff"
    shards = {
        "train": [[image_files.record(index) for index in range(11)]],
        "validation": [validation[:9], validation[9:]],
    }
    folder = tmp_path / "imagenet2012" / "5.1.0"
    writers.tfds_folder(folder, shards, "array_record", **image_files.FEATURES)
    return tmp_path


def class_folders(path: Path, names: dict[str, int]) -> str:
    """A folder for each class, with a number of images; all images differ."""
    files = {}
    for name, count in names.items():
        for number in range(count):
            files[f"{name}/{number}.png"] = image_files.png(len(files))
    return str(image_files.make_folder(path, files))


def label_names(data: ImageData, role: str) -> dict[str, str]:
    """The name of each image, and that of its label."""
    return image_files.classes_by_name(data.dataset(role))


def test_views_are_what_the_config_says():
    config = tiny.image_config()
    config.data.update(flip=False, min_scale=1.0, eval_crop=1.0)
    data = ImageData(config)
    heldout = embedded_digits(HELDOUT).examples
    with data.evaluation_batches(0, 1) as batches:
        images = next(batches)["image"]
    np.testing.assert_array_equal(images, [heldout[index]["image"] for index in range(8)])
    train = embedded_digits(TRAIN).examples
    known = {train[index]["image"].tobytes() for index in range(len(train))}
    with data.train_batches(0, 0, 1) as batches:
        seen = {image.tobytes() for image in next(batches)["image"]}
    assert len(seen) == 8
    assert seen <= known


def test_labels_go_with_their_images():
    data = ImageData(tiny.image_config())
    heldout = embedded_digits(HELDOUT)
    examples = data.labelled(HELDOUT)
    labels = [int(examples[index]["label"]) for index in range(len(examples))]
    assert labels == heldout.labels.tolist()
    assert data.classes == tuple("0123456789")


def test_examples_are_made_by_picklable_functions():
    """As workers need them."""
    config = tiny.image_config()
    record = {"image": image_files.noise(9, 8, 1), "label": np.int32(3), "name": "a"}
    example = pickle.loads(pickle.dumps(evaluation_example(config)))(record)
    assert example["image"].shape == (8, 8, 1)
    assert example["label"] == 3
    make = pickle.loads(pickle.dumps(training_example(config)))
    images = [make(record, np.random.default_rng(seed))["image"] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(images[0], images[1])
    assert (images[0] != images[2]).any()


def test_a_search_shares_the_digits_to_train_on():
    data = image_data(train="embedded", search=True, heldout_share=0.2)
    sizes = [len(data.dataset(role)) for role in ROLES]
    assert sum(sizes) <= len(embedded_digits(TRAIN))
    assert 0 < sizes[1] < sizes[0]


def test_lines_and_summary_of_class_folders(tmp_path):
    path = class_folders(tmp_path / "images", {"cat": 9, "dog": 5})
    data = image_data(train=path, heldout_share=0.2)
    [line] = data.lines(TRAIN)
    dataset = data.dataset(TRAIN)
    sizes = dict(zip(("cat", "dog"), dataset.class_counts().tolist(), strict=True))
    assert sum(sizes.values()) + len(data.dataset(HELDOUT)) == 14
    for name, size in sizes.items():
        assert f"{name} ({size})" in line
    summary = data.summary(TRAIN)
    assert summary.classes == sizes
    assert (summary.role, summary.units, summary.examples) == (TRAIN, "images", len(dataset))
    assert data.tokens(TRAIN) is None
    assert data.notes() == []


def test_notes_of_equal_images_and_of_classes_without_examples(tmp_path):
    train = class_folders(tmp_path / "train", {"cat": 3, "dog": 3, "eel": 1})
    same = (tmp_path / "train" / "cat" / "0.png").read_bytes()
    (tmp_path / "train" / "dog" / "9.png").write_bytes(same)
    heldout = image_files.make_folder(
        tmp_path / "heldout",
        {"cat/a.png": same, "cat/b.png": image_files.png(50), "dog/c.png": image_files.png(51)},
    )
    data = image_data(train=train, heldout=str(heldout))
    notes = data.notes()
    facts = ("to train on", "33%", "0.png")
    assert len(notes) == len(facts)
    for note, fact in zip(notes, facts, strict=True):
        assert fact in note
    [_, absent] = data.lines(HELDOUT)
    assert "'eel'" in absent


def test_held_out_images_that_cannot_be_read_are_met_at_the_start(imagenet):
    options = {"train": "tfds:imagenet2012", "min_scale": 1.0}
    assert "max_bad_records=1" in failure(image_data(max_bad_records=1, **options).notes)
    assert image_data(max_bad_records=2, **options).notes() == []


@pytest.mark.parametrize("has_real", [False, True])
def test_dark_images_of_a_bright_set_are_read(tmp_path, has_real):
    """In whatever view of the data: a share, with ReaL labels."""
    for number in range(1, 41):
        path = tmp_path / "images" / "ab"[number % 2] / f"ILSVRC2012_val_{number:08}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        value = 65535 if number < 9 else 2570
        Image.fromarray(np.full((8, 8), value, np.uint16)).save(path)
    real_path = tmp_path / "real.json"
    real_path.write_text(json.dumps([[number % 2] for number in range(1, 41)]))
    options = {"train": str(tmp_path / "images"), "heldout_share": 0.4}
    heldout = image_data(real=real_path if has_real else "", **options).labelled(HELDOUT)
    brightest = [int(heldout[index]["image"].max()) for index in range(len(heldout))]
    assert brightest.count(10) > 8
    assert {*brightest} <= {10, 255}
    assert ("real" in heldout[0]) == has_real


def predicted(image) -> np.ndarray:
    """What stands for a model: the class of the first pixel."""
    return image[:, 0, 0, 0].astype(np.int32) % 3


class FirstPixel(ImageClassification):
    """A task whose model reads the first pixel alone."""

    def apply(self, params, *inputs):
        return jnp.eye(3)[predicted(inputs[0])]


def summed_over_hosts(task, data: ImageData, hosts: int) -> dict:
    """The sums of an evaluation, as all hosts add them up."""
    sums = {}
    for host in range(hosts):
        with data.evaluation_batches(host, hosts) as batches:
            for batch in batches:
                for name, (total, weight) in task.evaluate(None, batch)[0].items():
                    before = sums.get(name, (0, 0))
                    sums[name] = (before[0] + np.float64(total), before[1] + float(weight))
    return sums


@pytest.mark.parametrize("hosts", [1, 3])
def test_evaluation_over_hosts(imagenet, hosts):
    """Batches of 12 do not divide 26; two of the 26 cannot be read, and three of the others have no
    ReaL label."""
    real = []
    for index in range(26):
        real.append([index % 3, (index + 1) % 3] if index % 2 else [(index + 2) % 3])
    real[8:11] = [[], [], []]
    (imagenet / "real.json").write_text(json.dumps(real))
    options = {"train": "tfds:imagenet2012", "max_bad_records": 2, "min_scale": 1.0}
    data = image_data(real=imagenet / "real.json", **options)
    data.config.eval.batch_size = 12
    task = FirstPixel(data.config, data.assets())
    sums = summed_over_hosts(task, data, hosts)
    metrics = task.summarize(sums, {}, data)

    read = [index for index in range(26) if index not in (3, 5)]
    make = evaluation_example(data.config)
    views = []
    for index in read:
        views.append(make({"image": image_files.png(index), "label": 0, "name": ""})["image"])
    guesses = dict(zip(read, predicted(np.stack(views)).tolist(), strict=True))
    hits = [guesses[index] == index % 3 for index in read]
    real_hits = [guesses[index] in real[index] for index in read if real[index]]
    assert metrics["top1"] == pytest.approx(np.mean(hits))
    assert metrics["real"] == pytest.approx(np.mean(real_hits))
    assert 0 < metrics["top1"] < 1
    assert 0 < metrics["real"] < 1
    assert (metrics["examples"], metrics["unread"], metrics["top5"]) == (26, 2, 1)
    assert {*task.eval_metrics, "examples", "unread"} == set(metrics)
    assert (sums["real"][1], sums["top1"][1], sums["examples"]) == (21, 24, (24, 26))
    most = max(Counter(index % 3 for index in read).values())
    assert task.baselines(sums, data)[0].metrics == {"top1": pytest.approx(most / 24)}


def test_more_bad_images_than_allowed_end_an_evaluation(imagenet):
    data = image_data(train="tfds:imagenet2012", max_bad_records=1)
    with data.evaluation_batches(0, 1) as batches:
        message = failure(lambda: list(batches))
    assert str(imagenet / "imagenet2012" / "5.1.0") in message
    assert "(1 bad records skipped before; " in message


@pytest.fixture
def pets(imagenet):
    """The folder of a run that knows three classes, in an order of its own."""
    folder = imagenet / "run"
    folder.mkdir()
    (folder / "classes.json").write_text(json.dumps(["dog", "eel", "cat"]))
    return folder


def test_held_out_data_of_other_classes_are_refused(imagenet):
    digits = class_folders(imagenet / "digits", {"cat": 1, "cow": 1, "dog": 1})
    data = image_data(train="tfds:imagenet2012", heldout=digits)
    message = failure(data.evaluation_examples)
    assert "'eel' only there" in message
    assert "'cow' only in" in message


def test_a_run_is_evaluated_without_its_training_data(pets):
    data = image_data(pets, train="nowhere", heldout="tfds:imagenet2012")
    assert data.classes == ("dog", "eel", "cat")
    assert data.evaluation_examples() == 26
    message = failure(data.train_batches, 0, 0, 1)
    assert "config.data.train" in message
    assert "nowhere" in message


def test_classes_of_held_out_data_may_be_in_another_order(pets):
    """As TFDS's cat, dog, eel are of a run that has them as dog, eel, cat: by name."""
    data = image_data(pets, train="nowhere", heldout="tfds:imagenet2012", max_bad_records=2)
    labels = []
    examples = data.labelled(HELDOUT)
    for index in range(26):
        labels.append(int(examples[index]["label"]))
    expected = [("dog", "eel", "cat").index(PETS[index % 3]) for index in range(26)]
    expected[3] = expected[5] = -1  # cannot be read
    assert labels == expected
    [line, *_] = data.lines(HELDOUT)
    assert "dog" in line


def test_training_data_take_the_order_of_the_run(pets):
    path = class_folders(pets.parent / "train", dict.fromkeys(PETS, 4))
    data = image_data(pets, train=path, heldout_share=0.3)
    for role in ROLES:
        assert data.dataset(role).classes == ("dog", "eel", "cat")
        for name, label in label_names(data, role).items():
            assert name.startswith(f"{label}/")
    assert json.loads(data.assets()["classes.json"]) == ["dog", "eel", "cat"]
    fresh = image_data(train=path, heldout_share=0.3)
    assert fresh.classes == PETS
    assert fresh.fingerprint(TRAIN) == data.fingerprint(TRAIN)


def test_training_data_without_a_class_of_the_run_are_refused(pets):
    path = class_folders(pets.parent / "train", {"cat": 4, "dog": 4})
    data = image_data(pets, train=path, heldout_share=0.3)
    assert "'eel' only there" in failure(data.training_examples)


def test_held_out_data_without_a_class_are_noted(pets):
    path = class_folders(pets.parent / "some", {"cat": 2, "dog": 3})
    data = image_data(pets, train="nowhere", heldout=path)
    assert data.evaluation_examples() == 5
    assert "'eel'" in data.lines(HELDOUT)[-1]


def test_words_of_the_run_are_kept(tmp_path):
    (tmp_path / "names.json").write_text('["one", "two"]')
    data = image_data(tmp_path, train="embedded")
    assert data.assets().keys() == {"classes.json", "names.json"}
    assert json.loads(data.assets()["names.json"]) == ["one", "two"]
    assert image_data(train="embedded").assets().keys() == {"classes.json"}


def test_real_labels_are_checked_before_training(imagenet):
    (imagenet / "real.json").write_text("[[0]]")
    photos = class_folders(imagenet / "photos", dict.fromkeys(PETS, 2))
    data = image_data(train=photos, heldout_share=0.5, real=imagenet / "real.json")
    assert "ILSVRC2012_val_" in failure(data.evaluation_examples)


def test_one_class_is_refused(tmp_path):
    path = class_folders(tmp_path / "images", {"cat": 4})
    message = failure(lambda: image_data(train=path).classes)
    assert repr(path) in message
    assert "4 examples with the class 'cat' alone" in message


@pytest.fixture
def numbered(tmp_path):
    """ImageNetV2's folders, 0 to 10, of which string order would take 10 for 2; the classes that
    the numbers mean; and the folder of a run."""
    class_folders(tmp_path / "v2", {str(number): 2 for number in range(11)})
    (tmp_path / "known").mkdir()
    return tmp_path


SYNSETS = [f"n{90000000 - number}" for number in range(11)]


def test_images_of_numbers_are_scored_by_a_class_map(numbered):
    known = numbered / "known"
    (known / "classes.json").write_text(json.dumps(SYNSETS))
    lines = [f"{name} a word, another\n" for name in SYNSETS]
    (numbered / "synsets.txt").write_text("".join(lines))
    options = {"train": "nowhere", "heldout": str(numbered / "v2")}
    for class_map in ("run", str(numbered / "synsets.txt")):
        found = label_names(image_data(known, class_map=class_map, **options), HELDOUT)
        assert len(found) == 22
        for name, label in found.items():
            assert label == SYNSETS[int(name.partition("/")[0])]
    message = failure(image_data(known, **options).evaluation_examples)
    assert "config.data.class_map=FILE" in message


def test_class_maps_that_cannot_be_used(numbered):
    options = {"train": "nowhere", "heldout": str(numbered / "v2")}
    known = numbered / "known"
    data = image_data(known, class_map="run", **options)
    assert "no list of classes yet" in failure(data.evaluation_examples)
    path = numbered / "classes.txt"
    for content in ("a\na\n", "a\n", "a\n\nb\n"):
        path.write_text(content)
        data = image_data(known, class_map=str(path), **options)
        assert "one class a line" in failure(data.evaluation_examples)
    path.write_text("a\nb\n")
    data = image_data(known, class_map=str(path), **options)
    assert "a class 10" in failure(data.evaluation_examples)


def test_files_that_are_no_images_and_equal_images_are_told(tmp_path):
    files = {"cat/notes.txt": b""}
    for name, numbers in (("cat/x", range(9)), ("dog/y", range(8, 13))):
        for number in numbers:
            files[f"{name}/{number}.png"] = image_files.png(number)
    path = str(image_files.make_folder(tmp_path / "images", files))
    data = image_data(train=path, heldout_share=0.2)
    assert data.training_examples() + data.evaluation_examples() == 14
    [_, *notes] = data.lines(TRAIN)
    assert any(".txt" in note for note in notes)
    assert "8.png" in data.notes()[-1]  # it lies in two classes


def test_rows_of_a_program(tmp_path):
    """An image in memory becomes a PNG file; the path of one stays."""
    config = image_config()
    pixels = image_files.noise(5, 4, 3)
    row = ImageData.row(config, [pixels], "2", str(tmp_path / "0"))
    assert row == {"file_name": f"{tmp_path.name}/0.png", "label": "2"}
    with Image.open(tmp_path / "0.png") as image:
        np.testing.assert_array_equal(image, pixels)
    path = tmp_path / "own.jpg"
    assert ImageData.row(config, [path], "cat", "unused") == {
        "file_name": str(path),
        "label": "cat",
    }
    with pytest.raises(DataError, match="image"):
        ImageData.row(config, [np.zeros(3)], 0, str(tmp_path / "1"))
    with pytest.raises(DataError, match="2 inputs"):
        ImageData.row(config, ["id 7", path], 0, "unused")
