"""Where the images of a classifier come from, notes on them, and how an evaluation counts
them."""

import json
import pickle
from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.data.holdout import HELDOUT, ROLES, TRAIN
from gmlp_flax.errors import DataError
from gmlp_flax.tasks.data.base import RunFiles
from gmlp_flax.tasks.data.images import ImageData, evaluation_example, training_example
from gmlp_flax.tasks.image_classification import ImageClassification
from tests.data import writers
from tests.data.images import image_files
from tests.failures import failure
from tests.tasks import by_hand
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
    """The data of the run in a folder."""
    config = image_config(real, **data)
    files = RunFiles(str(run or ""))
    return ImageData(config, files)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """Keeps indexes out of the cache of the user who runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def imagenet(tmp_path, monkeypatch):
    """A small copy of TFDS's imagenet2012: 11 training and 26 validation records. The 4th validation
    record holds no image, and the 6th is no record."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    validation = []
    for index in range(26):
        content = b"no image" if index == 3 else None
        validation.append(image_files.record(index, image=content))
    validation[5] = b"\xff"
    train = []
    for index in range(11):
        train.append(image_files.record(index))
    shards = {
        "train": [train],
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
            path_of_image = f"{name}/{number}.png"
            files[path_of_image] = image_files.png(len(files))
    return str(image_files.make_folder(path, files))


def label_names(data: ImageData, role: str) -> dict[str, str]:
    """The class name of each image, by the name of the image."""
    return image_files.classes_by_name(data.dataset(role))


def all_of(examples, name: str) -> list:
    """One field of all examples."""
    values = []
    for example in by_hand.all_examples(examples):
        values.append(example[name])
    return values


@pytest.fixture
def unchanged_views():
    """The embedded digits with views that are the images themselves."""
    config = tiny.image_config()
    config.data.update(flip=False, min_scale=1.0, eval_crop=1.0)
    return ImageData(config)


def test_evaluation_views_follow_the_config(unchanged_views):
    heldout = embedded_digits(HELDOUT).examples
    with unchanged_views.evaluation_batches(0, 1) as batches:
        images = next(batches)["image"]
    assert_array_equal(images, all_of(heldout, "image")[:8])


def test_training_views_follow_the_config(unchanged_views):
    train = embedded_digits(TRAIN).examples
    known = {image.tobytes() for image in all_of(train, "image")}
    batch = by_hand.first_batch(unchanged_views)
    views = {image.tobytes() for image in batch["image"]}
    assert len(views) == 8
    assert views <= known


def test_labels_stay_with_their_images():
    data = ImageData(tiny.image_config())
    labels = all_of(data.labelled(HELDOUT), "label")
    expected = embedded_digits(HELDOUT).labels
    assert_array_equal(labels, expected)
    assert data.classes == tuple("0123456789")


def pickled(function):
    """A copy of a function, as workers get it."""
    return pickle.loads(pickle.dumps(function))


RECORD = {
    "image": image_files.noise(9, 8, 1),
    "label": np.int32(3),
    "name": "a",
}


def test_evaluation_transform_is_picklable():
    example = pickled(evaluation_example(tiny.image_config()))(RECORD)
    assert example["image"].shape == (8, 8, 1)
    assert example["label"] == 3


def test_training_transform_is_picklable():
    make = pickled(training_example(tiny.image_config()))
    images = []
    for seed in (0, 0, 1):
        example = make(RECORD, np.random.default_rng(seed))
        images.append(example["image"])
    first, with_same_seed, with_other_seed = images
    assert_array_equal(first, with_same_seed)
    assert (first != with_other_seed).any()


def test_search_splits_the_training_digits():
    data = image_data(train="embedded", search=True, heldout_share=0.2)
    train = len(data.dataset(TRAIN))
    heldout = len(data.dataset(HELDOUT))
    assert train + heldout <= len(embedded_digits(TRAIN))
    assert 0 < heldout < train


def test_lines_and_summary_of_class_folders(tmp_path):
    path = class_folders(tmp_path / "images", {"cat": 9, "dog": 5})
    data = image_data(train=path, heldout_share=0.2)
    [line] = data.lines(TRAIN)
    dataset = data.dataset(TRAIN)
    cats, dogs = dataset.class_counts().tolist()
    heldout = data.dataset(HELDOUT)
    total = cats + dogs + len(heldout)
    assert total == 14
    assert f"cat ({cats})" in line
    assert f"dog ({dogs})" in line
    summary = data.summary(TRAIN)
    assert summary.classes == {"cat": cats, "dog": dogs}
    assert summary.role == TRAIN
    assert summary.units == "images"
    assert summary.examples == len(dataset)
    assert data.tokens(TRAIN) is None
    assert data.notes() == []


def test_notes_of_equal_images_and_of_classes_without_examples(tmp_path):
    train = class_folders(tmp_path / "train", {"cat": 3, "dog": 3, "eel": 1})
    same_path = tmp_path / "train" / "cat" / "0.png"
    same = same_path.read_bytes()
    (tmp_path / "train" / "dog" / "9.png").write_bytes(same)
    heldout_files = {
        "cat/a.png": same,
        "cat/b.png": image_files.png(50),
        "dog/c.png": image_files.png(51),
    }
    heldout = image_files.make_folder(tmp_path / "heldout", heldout_files)
    data = image_data(train=train, heldout=str(heldout))
    notes = data.notes()
    facts = ("to train on", "33%", "0.png")
    assert len(notes) == len(facts)
    for note, fact in zip(notes, facts, strict=True):
        assert fact in note
    [_, few, absent] = data.lines(HELDOUT)
    assert "3 held-out examples are too few" in few
    assert "33 points" in few
    assert "'eel'" in absent


def test_unreadable_held_out_images_are_found_at_the_start(imagenet):
    options = {"train": "tfds:imagenet2012", "min_scale": 1.0}
    strict = image_data(max_bad_records=1, **options)
    assert "max_bad_records=1" in failure(strict.notes)
    lenient = image_data(max_bad_records=2, **options)
    assert lenient.notes() == []


@pytest.mark.parametrize("has_real", [False, True])
def test_dark_images_of_a_bright_set_are_read(tmp_path, has_real):
    """Of a share of one folder, with and without ReaL labels."""
    files = {}
    real = []
    for number in range(1, 41):
        value = 65535 if number < 9 else 2570
        pixels = np.full((8, 8), value, np.uint16)
        label = "ab"[number % 2]
        image = Image.fromarray(pixels)
        name = f"{label}/ILSVRC2012_val_{number:08}.png"
        files[name] = image_files.encoded(image)
        real.append([number % 2])
    folder = image_files.make_folder(tmp_path / "images", files)
    real_path = tmp_path / "real.json"
    real_path.write_text(json.dumps(real))
    real_labels = real_path if has_real else ""
    data = image_data(real=real_labels, train=str(folder), heldout_share=0.4)
    heldout = data.labelled(HELDOUT)
    brightest = []
    for image in all_of(heldout, "image"):
        brightest.append(int(image.max()))
    assert brightest.count(10) > 8
    assert {*brightest} <= {10, 255}
    assert ("real" in heldout[0]) == has_real


def predicted(image) -> np.ndarray:
    """A stand-in for a model: the class is that of the first pixel."""
    first_pixels = image[:, 0, 0, 0].astype(np.int32)
    return first_pixels % 3


class FirstPixel(ImageClassification):
    """A task whose model reads only the first pixel."""

    def apply(self, params, *inputs):
        return jnp.eye(3)[predicted(inputs[0])]


def summed_over_hosts(task, data: ImageData, hosts: int) -> dict:
    """The sums of an evaluation over all hosts."""
    totals = {}
    for host in range(hosts):
        with data.evaluation_batches(host, hosts) as batches:
            for batch in batches:
                sums, _ = task.evaluate(None, batch)
                for name, (total, weight) in sums.items():
                    total_before, weight_before = totals.get(name, (0, 0))
                    new_total = total_before + np.float64(total)
                    new_weight = weight_before + float(weight)
                    totals[name] = (new_total, new_weight)
    return totals


def real_labels() -> list[list[int]]:
    """For 26 images: two labels for the odd ones, one for the even ones, none for three."""
    labels = []
    for index in range(26):
        next_class = (index + 1) % 3
        if index in (8, 9, 10):
            labels.append([])
        elif index % 2:
            labels.append([index % 3, next_class])
        else:
            labels.append([(index + 2) % 3])
    return labels


@pytest.fixture
def with_real(imagenet):
    """The data of the small ImageNet with ReaL labels, in batches of 12."""
    path = imagenet / "real.json"
    path.write_text(json.dumps(real_labels()))
    options = {"train": "tfds:imagenet2012", "max_bad_records": 2, "min_scale": 1.0}
    data = image_data(real=path, **options)
    data.config.eval.batch_size = 12
    return data


# Two of the 26 cannot be read.
READ = [index for index in range(26) if index not in (3, 5)]


@pytest.mark.parametrize("hosts", [1, 3])
def test_evaluation_over_hosts(with_real, hosts):
    """Batches of 12 do not divide 26; two of the 26 cannot be read, and three of the others have no
    ReaL label."""
    data = with_real
    task = FirstPixel(data.config, data.assets())
    sums = summed_over_hosts(task, data, hosts)
    metrics = task.summarize(sums, {}, data)

    make = evaluation_example(data.config)
    real = real_labels()
    hits = []
    real_hits = []
    for index in READ:
        record = {"image": image_files.png(index), "label": 0, "name": ""}
        example = make(record)
        [guess] = predicted(example["image"][None])
        hits.append(guess == index % 3)
        if real[index]:
            real_hits.append(guess in real[index])
    top1 = np.mean(hits)
    assert metrics["top1"] == pytest.approx(top1)
    assert metrics["real"] == pytest.approx(np.mean(real_hits))
    assert 0 < metrics["top1"] < 1
    assert 0 < metrics["real"] < 1
    assert metrics["examples"] == 26
    assert metrics["unread"] == 2
    assert metrics["top5"] == 1
    names = {*task.eval_metrics, "examples", "unread"}
    assert names == set(metrics)
    assert by_hand.weight(sums, "real") == 21
    assert by_hand.weight(sums, "top1") == 24
    assert sums["examples"] == (24, 26)


def test_evaluation_fails_at_more_bad_images_than_allowed(imagenet):
    data = image_data(train="tfds:imagenet2012", max_bad_records=1)
    with data.evaluation_batches(0, 1) as batches:
        message = failure(lambda: list(batches))
    assert str(imagenet / "imagenet2012" / "5.1.0") in message
    assert "(1 bad records skipped before; " in message


@pytest.fixture
def pets(imagenet):
    """The folder of a run with three classes in another order than the data's."""
    folder = imagenet / "run"
    folder.mkdir()
    (folder / "classes.json").write_text(json.dumps(["dog", "eel", "cat"]))
    return folder


def test_held_out_data_with_other_classes_are_refused(imagenet):
    digits = class_folders(imagenet / "digits", {"cat": 1, "cow": 1, "dog": 1})
    data = image_data(train="tfds:imagenet2012", heldout=digits)
    message = failure(data.evaluation_examples)
    assert "'eel' only there" in message
    assert "'cow' only in" in message


def test_run_is_evaluated_without_its_training_data(pets):
    data = image_data(pets, train="missing", heldout="tfds:imagenet2012")
    assert data.classes == ("dog", "eel", "cat")
    assert data.evaluation_examples() == 26
    message = failure(data.train_batches, 0, 0, 1)
    assert "config.data.train" in message
    assert "missing" in message


def test_classes_of_held_out_data_may_be_in_another_order(pets):
    """They are matched by name: the data have cat, dog, eel, and the run dog, eel, cat."""
    data = image_data(pets, train="missing", heldout="tfds:imagenet2012", max_bad_records=2)
    labels = []
    for label in all_of(data.labelled(HELDOUT), "label"):
        labels.append(int(label))
    expected = []
    for index in range(26):
        name = PETS[index % 3]
        expected.append(data.classes.index(name))
    expected[3] = -1  # unreadable
    expected[5] = -1
    assert labels == expected
    [line, *_] = data.lines(HELDOUT)
    assert "dog" in line


@pytest.mark.parametrize("hosts", [1, 3])
def test_baseline_over_hosts(with_real, hosts):
    task = FirstPixel(with_real.config, with_real.assets())
    sums = summed_over_hosts(task, with_real, hosts)
    [baseline, *_] = task.baselines(sums, with_real)
    counts = Counter(index % 3 for index in READ)
    most = max(counts.values())
    share = pytest.approx(most / 24)
    assert baseline.metrics == {"top1": share}


def test_training_data_keep_the_class_order_of_the_run(pets):
    numbers = {"cat": 4, "dog": 4, "eel": 4}
    path = class_folders(pets.parent / "train", numbers)
    data = image_data(pets, train=path, heldout_share=0.3)
    for role in ROLES:
        assert data.dataset(role).classes == ("dog", "eel", "cat")
        for name, label in label_names(data, role).items():
            assert name.startswith(f"{label}/")
    classes = json.loads(data.assets()["classes.json"])
    assert classes == ["dog", "eel", "cat"]


def test_training_data_without_a_class_of_the_run_are_refused(pets):
    path = class_folders(pets.parent / "train", {"cat": 4, "dog": 4})
    data = image_data(pets, train=path, heldout_share=0.3)
    assert "'eel' only there" in failure(data.training_examples)


def test_held_out_data_without_a_class_get_a_note(pets):
    path = class_folders(pets.parent / "some", {"cat": 2, "dog": 3})
    data = image_data(pets, train="missing", heldout=path)
    assert data.evaluation_examples() == 5
    assert "'eel'" in data.lines(HELDOUT)[-1]


def test_order_of_classes_does_not_change_the_fingerprint(pets):
    numbers = {"cat": 4, "dog": 4, "eel": 4}
    path = class_folders(pets.parent / "train", numbers)
    data = image_data(pets, train=path, heldout_share=0.3)
    fresh = image_data(train=path, heldout_share=0.3)
    assert fresh.classes == PETS
    fingerprint = data.fingerprint(TRAIN)
    assert fresh.fingerprint(TRAIN) == fingerprint


def test_class_words_of_the_run_are_kept(tmp_path):
    (tmp_path / "names.json").write_text('["one", "two"]')
    files = image_data(tmp_path, train="embedded").assets()
    assert files.keys() == {"classes.json", "names.json"}
    assert json.loads(files["names.json"]) == ["one", "two"]
    files = image_data(train="embedded").assets()
    assert files.keys() == {"classes.json"}


def test_real_labels_are_checked_before_training(imagenet):
    (imagenet / "real.json").write_text("[[0]]")
    photos = class_folders(imagenet / "photos", dict.fromkeys(PETS, 2))
    data = image_data(train=photos, heldout_share=0.5, real=imagenet / "real.json")
    assert "ILSVRC2012_val_" in failure(data.evaluation_examples)


def test_single_class_is_refused(tmp_path):
    path = class_folders(tmp_path / "images", {"cat": 4})
    message = failure(lambda: image_data(train=path).classes)
    assert repr(path) in message
    assert "4 examples with the class 'cat' alone" in message


def test_run_is_evaluated_on_one_of_its_classes(pets):
    path = class_folders(pets.parent / "cats", {"cat": 3})
    data = image_data(pets, train="missing", heldout=path)
    assert data.evaluation_examples() == 3
    assert data.dataset("heldout").class_counts().tolist() == [0, 0, 3]


@pytest.fixture
def numbered(tmp_path):
    """The folders 0 to 10 of ImageNetV2, of which string order would take 10 for 2, and the empty
    folder of a run."""
    counts = {}
    for number in range(11):
        counts[str(number)] = 2
    class_folders(tmp_path / "v2", counts)
    (tmp_path / "known").mkdir()
    return tmp_path


SYNSETS = [f"n{90000000 - number}" for number in range(11)]


@pytest.fixture
def synsets(numbered):
    """A run whose classes are synsets, and the file that lists them."""
    known = numbered / "known"
    (known / "classes.json").write_text(json.dumps(SYNSETS))
    lines = [f"{name} a word, another\n" for name in SYNSETS]
    path = numbered / "synsets.txt"
    path.write_text("".join(lines))
    return known, path


@pytest.mark.parametrize("is_of_run", [True, False])
def test_class_map_scores_numbered_images(numbered, synsets, is_of_run):
    known, path = synsets
    class_map = "run" if is_of_run else str(path)
    heldout = str(numbered / "v2")
    data = image_data(known, class_map=class_map, train="missing", heldout=heldout)
    labels = label_names(data, HELDOUT)
    assert len(labels) == 22
    for name, label in labels.items():
        number, _, _ = name.partition("/")
        assert label == SYNSETS[int(number)]


def test_numbered_images_need_a_class_map(numbered, synsets):
    known, _ = synsets
    data = image_data(known, train="missing", heldout=str(numbered / "v2"))
    assert "config.data.class_map=FILE" in failure(data.evaluation_examples)


def test_unusable_class_maps_are_refused(numbered):
    options = {"train": "missing", "heldout": str(numbered / "v2")}
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


def test_notes_of_other_files_and_of_equal_images(tmp_path):
    files = {"cat/notes.txt": b""}
    for number in range(9):
        files[f"cat/x/{number}.png"] = image_files.png(number)
    for number in range(8, 13):
        files[f"dog/y/{number}.png"] = image_files.png(number)
    folder = image_files.make_folder(tmp_path / "images", files)
    path = str(folder)
    data = image_data(train=path, heldout_share=0.2)
    examples = data.training_examples() + data.evaluation_examples()
    assert examples == 14
    [_, *notes] = data.lines(TRAIN)
    assert any(".txt" in note for note in notes)
    assert "8.png" in data.notes()[-1]  # it is in two classes


def test_examples_from_python(tmp_path):
    """An image in memory becomes a PNG file, and the path of one stays."""
    config = image_config()
    pixels = image_files.noise(5, 4, 3)
    folder = str(tmp_path / "0")
    row = ImageData.row(config, [pixels], "2", folder)
    assert row == {"file_name": f"{tmp_path.name}/0.png", "label": "2"}
    with Image.open(tmp_path / "0.png") as image:
        assert_array_equal(image, pixels)
    path = tmp_path / "own.jpg"
    row = ImageData.row(config, [path], "cat", "unused")
    assert row == {"file_name": str(path), "label": "cat"}
    no_image = np.zeros(3)
    folder = str(tmp_path / "1")
    with pytest.raises(DataError, match="image"):
        ImageData.row(config, [no_image], 0, folder)
    with pytest.raises(DataError, match="2 inputs"):
        ImageData.row(config, ["id 7", path], 0, "unused")
