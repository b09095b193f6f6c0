"""Where the images of a classifier come from, and how an evaluation counts them."""

import json
from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.training import loop
from tests.data import writers
from tests.data.images import image_files
from tests.failures import failure
from tests.training import tiny


def task(folder, *, real="", **data):
    config = tiny.image_config()
    config.model.update(channels=3)
    config.data.update(**data)
    config.eval.real_labels = str(real)
    folder.mkdir(exist_ok=True)
    return ImageClassification(config, str(folder))


@pytest.fixture
def imagenet(tmp_path, monkeypatch):
    """TFDS's imagenet2012 in small: 11 to train on; of 26 to validate on, the 4th is no image, the
    6th no record."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    validation = [image_files.record(i, image=b"no image" if i == 3 else None) for i in range(26)]
    validation[5] = b"\xff"
    shards = {
        "train": [[image_files.record(i) for i in range(11)]],
        "validation": [validation[:9], validation[9:]],
    }
    writers.tfds_folder(
        tmp_path / "imagenet2012" / "5.1.0", shards, "array_record", **image_files.FEATURES
    )
    return tmp_path


def predicted(image):
    """What stands for a model: the class of the first pixel."""
    return image[:, 0, 0, 0].astype(np.int32) % 3


def test_held_out_images_that_cannot_be_read_are_met_at_the_start(imagenet):
    options = {"train": "tfds:imagenet2012", "min_scale": 1.0}
    assert "max_bad_records=1" in failure(
        task(imagenet / "one", max_bad_records=1, **options).notes
    )
    assert task(imagenet / "two", max_bad_records=2, **options).notes() == []


@pytest.mark.parametrize("real", [False, True])
def test_dark_images_of_a_bright_set_are_read(tmp_path, real):
    """In whatever view of the data: a share, with ReaL labels."""
    for number in range(1, 41):
        path = tmp_path / "images" / "ab"[number % 2] / f"ILSVRC2012_val_{number:08}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 65535 if number < 9 else 2570, np.uint16)).save(path)
    (tmp_path / "real.json").write_text(json.dumps([[number % 2] for number in range(1, 41)]))
    given = tmp_path / "real.json" if real else ""
    heldout = task(
        tmp_path / "run", train=str(tmp_path / "images"), heldout_share=0.4, real=given
    ).labelled("heldout")
    brightest = [int(heldout[i]["image"].max()) for i in range(len(heldout))]
    assert brightest.count(10) > 8 and {*brightest} <= {10, 255}


@pytest.mark.parametrize("hosts", [1, 3])
def test_evaluation_over_hosts(imagenet, hosts, monkeypatch):
    """Batches of 12 do not divide 26; two of the 26 cannot be read, and three of the others have no
    ReaL label."""
    real = [[i % 3, (i + 1) % 3] if i % 2 else [(i + 2) % 3] for i in range(26)]
    real[8], real[9], real[10] = [], [], []
    (imagenet / "real.json").write_text(json.dumps(real))
    own = task(
        imagenet / "run",
        train="tfds:imagenet2012",
        max_bad_records=2,
        min_scale=1.0,
        real=imagenet / "real.json",
    )
    own.config.eval.batch_size = 12
    monkeypatch.setattr(own, "apply", lambda _, image: jnp.eye(3)[predicted(image)])
    sums = {}
    for host in range(hosts):
        with own.evaluation_batches(host, hosts) as batches:
            for batch in batches:
                for name, pair in own.evaluate(None, batch)[0].items():
                    total, weight = sums.get(name, (0, 0))
                    sums[name] = total + np.asarray(pair[0], np.float64), weight + float(pair[1])
    metrics = own.summarize(sums, {})

    read = [i for i in range(26) if i not in (3, 5)]
    records = [{"image": image_files.png(i), "label": 0, "name": ""} for i in read]
    views = np.stack([own.evaluation_example(record)["image"] for record in records])
    guesses = dict(zip(read, predicted(views).tolist(), strict=True))
    labelled = [i for i in read if real[i]]
    assert metrics["top1"] == pytest.approx(np.mean([guesses[i] == i % 3 for i in read]))
    assert metrics["real"] == pytest.approx(np.mean([guesses[i] in real[i] for i in labelled]))
    assert (metrics["examples"], metrics["unread"], metrics["top5"]) == (26, 2, 1)
    assert {*own.eval_metrics, "examples", "unread"} == set(metrics)
    assert sums["real"][1] == 21 and sums["top1"][1] == 24 and sums["examples"] == (24, 26)
    assert own.baselines(sums)[0].metrics == {
        "top1": pytest.approx(max(Counter(i % 3 for i in read).values()) / 24)
    }
    assert 0 < metrics["top1"] < 1 and 0 < metrics["real"] < 1


def test_bad_images_of_all_hosts_count(imagenet):
    """Each host may be below the limit and all of them above it."""
    own = task(imagenet / "run", train="tfds:imagenet2012", max_bad_records=1)
    sums = dict.fromkeys(("loss", "top1", "top5"), (3.0, 4.0))
    assert own.summarize(sums | {"examples": (25, 26)}, {})["unread"] == 1
    assert {*own.eval_metrics, "examples"} == set(own.summarize(sums | {"examples": (26, 26)}, {}))
    expected = "2 of 26 held-out images cannot be read (config.data.max_bad_records=1; standard error names them)"
    assert expected in failure(own.summarize, sums | {"examples": (24, 26)}, {})
    with own.evaluation_batches(0, 1) as batches:
        message = failure(lambda: list(batches))
    assert (
        str(imagenet / "imagenet2012" / "5.1.0") in message
        and "(1 bad records skipped before; " in message
    )


def test_classes_must_be_those_of_the_training_data_and_of_the_run(imagenet):
    digits = imagenet / "digits"
    image_files.make_folder(
        digits, {f"{name}/a.png": image_files.png(0) for name in ("cat", "cow", "dog")}
    )
    own = task(imagenet / "run", train="tfds:imagenet2012", heldout=str(digits))
    assert "5.1.0: 'eel' only there, 'cow' only in " in failure(own.evaluation_examples)
    known = imagenet / "known"
    own = task(known, train="nowhere", heldout="tfds:imagenet2012")
    (known / "classes.json").write_text(json.dumps(["cat", "dog", "eel"]))
    assert own.evaluation_examples() == 26  # the training data need not be there to evaluate
    assert "config.data.train: no images at 'nowhere'" in failure(own.train_batches, 0, 0, 1)
    (known / "classes.json").write_text(json.dumps(["dog", "cat", "eel"]))
    own = task(known, train="tfds:imagenet2012")
    assert "are in another order, label 0 is 'cat' and not 'dog'; give" in failure(
        own.evaluation_examples
    )


def test_real_labels_are_checked_before_training(imagenet):
    (imagenet / "real.json").write_text("[[0]]")
    image_files.make_folder(
        imagenet / "photos", {f"{c}/{i}.png": b"" for c in ("cat", "dog", "eel") for i in (1, 2)}
    )
    own = task(
        imagenet / "run",
        train=str(imagenet / "photos"),
        heldout_share=0.5,
        real=imagenet / "real.json",
    )
    assert "has no number in its name, expected names with ILSVRC2012_val_" in failure(
        own.evaluation_examples
    )


def test_one_class_is_refused(tmp_path):
    images = image_files.make_folder(
        tmp_path / "images", {f"cat/{n}.png": image_files.png(n) for n in range(4)}
    )
    message = failure(lambda: task(tmp_path / "run", train=str(images)).classes)
    assert (
        f"{str(images)!r} has 4 images of 1 class, 'cat': a classifier needs at least two classes"
        in message
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("classes.json", b'{"a": 1}', "classes.json is damaged: expected a list of names"),
        ("classes.json", "[]".encode("utf-16"), "classes.json: not JSON ("),
        ("names.json", b'["a"]', "names.json has 1 names for 10 classes: remove it, or mend it"),
        ("names.json", b"[null]", "names.json is damaged: expected a list of names"),
    ],
)
def test_damaged_names_of_a_run(tmp_path, name, content, message):
    made = task(tmp_path / "run", train="embedded")
    (tmp_path / "run" / name).write_bytes(content)
    assert message in failure(lambda: made.names)


def test_images_of_numbers_are_scored_by_a_class_map(imagenet, capsys):
    """ImageNetV2's folders: string order would take 10 for 2."""
    known = imagenet / "known"
    files = {f"{number}/{i}.png": image_files.png(number) for number in range(11) for i in (1, 2)}
    image_files.make_folder(imagenet / "v2", files)
    own = task(known, train="nowhere", heldout=str(imagenet / "v2"), class_map="run")
    assert "this run has no list of classes yet" in failure(own.evaluation_examples)
    names = [f"n{90000000 - i}" for i in range(11)]
    (known / "classes.json").write_text(json.dumps(names))
    (imagenet / "synsets.txt").write_text("".join(f"{name} a word, another\n" for name in names))
    for given in ("run", str(imagenet / "synsets.txt")):
        source = task(known, train="nowhere", heldout=str(imagenet / "v2"), class_map=given).source(
            "heldout"
        )
        labels = {
            item["name"]: int(item["label"]) for item in map(source.__getitem__, range(len(source)))
        }
        assert labels == {name: int(name.partition("/")[0]) for name in files}
    assert "config.data.class_map=FILE" in failure(
        task(known, train="nowhere", heldout=str(imagenet / "v2")).evaluation_examples
    )
    (imagenet / "synsets.txt").write_text("a\na\n")
    own = task(
        known,
        train="nowhere",
        heldout=str(imagenet / "v2"),
        class_map=str(imagenet / "synsets.txt"),
    )
    assert "expected a line for each class" in failure(own.evaluation_examples)


def test_what_was_assumed_is_told_once_and_classes_are_counted(tmp_path, capsys):
    numbers = {"cat/x": range(9), "dog/y": range(8, 13)}
    files = {f"{folder}/{i}.png": image_files.png(i) for folder in numbers for i in numbers[folder]}
    path = str(image_files.make_folder(tmp_path / "images", files | {"cat/notes.txt": b""}))
    own = task(tmp_path / "run", train=path, heldout_share=0.2)
    assert own.training_examples() + own.evaluation_examples() == 14
    assert capsys.readouterr().err.splitlines() == [
        f"{path!r}: 2 folders inside class folders count to these, such as 'cat/x'",
        f"{path!r}: ignored 1 files that are no images (.txt 1)",
    ]
    train = own.source("train")
    assert own.class_sizes() == [
        sum(train[i]["label"] == c for i in range(len(train))) for c in (0, 1)
    ]
    few, many = sorted(zip(own.class_sizes(), ("cat", "dog"), strict=True))
    assert (
        f"(the smallest {few[1]}: {few[0]}, the largest {many[1]}: {many[0]})"
        in loop.about_data(own)
    )
    assert own.notes()[-1].startswith("note: 2 images lie in two classes")  # png(8)
