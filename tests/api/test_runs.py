"""Runs from Python: with data in memory, an initial model, a user-defined optimizer and
callbacks."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import gmlp_flax as gf
from gmlp_flax import config as config_lib
from gmlp_flax.api import runs
from gmlp_flax.data import embedded
from gmlp_flax.errors import ConfigError, RunError, UserError
from tests.failures import raised

SHORT = {"steps": 4, "batch_size": 4, "log.every": 2, "checkpoint.every": 4, "eval.batch_size": 8}
TINY = {"layers": 1, "d_model": 8, "d_ffn": 16}
TEN = [str(number) for number in range(10)]


@pytest.fixture(scope="module")
def digits():
    source = embedded.embedded_digits("heldout")
    images = source.examples.images
    return images[:40], source.labels[:40]


@pytest.fixture(scope="module")
def data(digits):
    """Different examples to train on and to evaluate."""
    images, labels = digits
    train = (images[:30], labels[:30])
    test = (images[30:], labels[30:])
    return {"train": train, "test": test}


def images_config():
    config = config_lib.from_file("quickstart_image")
    config.model.update(TINY)
    return config


# Training.


@pytest.mark.slow
def test_train_with_arrays_an_optimizer_and_callbacks(digits, tmp_path):
    images, labels = digits
    columns = {"image": images[:30], "label": labels[:30]}
    heldout = (images[30:], labels[30:])
    data = {"train": columns, "test": heldout}
    options = {**SHORT, "eval.every": 2}
    out = tmp_path / "run"
    seen = []

    def call(step, values):
        seen.append((step, sorted(values)))

    def run(callbacks=()):
        return gf.train(
            images_config(),
            out,
            data=data,
            optimizer=optax.sgd(0.1),
            callbacks=callbacks,
            options=options,
        )

    with ThreadPoolExecutor(1) as pool:  # in a thread, which no signal reaches
        future = pool.submit(run, [call])
        result = future.result()
    assert result["step"] == 4
    assert result["eval"]["examples"] == 10
    steps = [step for step, _ in seen]
    assert steps == [2, 2, 4, 4]
    _, trained = seen[0]
    _, scored = seen[1]
    assert trained == ["train/accuracy", "train/grad_norm", "train/loss"]
    assert "eval/top1" in scored
    model = gf.load(out)
    expected = {str(label) for label in labels}
    assert set(model.classes) == expected
    assert model.predict(images[0])
    again = run()  # the run is finished
    assert again["eval"] == result["eval"]
    lines = (out / "metrics.jsonl").read_text().splitlines()
    for line in lines:
        assert "learning_rate" not in json.loads(line)  # only our optimizers have one


@pytest.mark.slow
def test_single_callback_is_accepted(data, tmp_path):
    steps = []

    def call(step, values):
        steps.append(step)

    gf.train(images_config(), tmp_path, data=data, callbacks=call, options=SHORT)
    assert steps == [2, 4, 4]


def test_error_in_a_callback_ends_the_run(data, tmp_path):
    def fail(step, values):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        gf.train(images_config(), tmp_path, data=data, callbacks=fail, options=SHORT)
    assert not (tmp_path / "result.json").exists()


@pytest.mark.slow
def test_passed_optimizer_is_used(data, tmp_path):
    sizes = {"image_size": 8, "patch_size": (2, 2), "channels": 1}
    start = gf.create("gmlp", classes=TEN, **sizes, **TINY)
    options = {**SHORT, "steps": 1, "checkpoint.every": 1}

    def body_after(name, optimizer):
        gf.train(
            images_config(),
            tmp_path / name,
            init=start,
            data=data,
            optimizer=optimizer,
            options=options,
        )
        trained = gf.load(tmp_path / name, "latest")
        return trained.params["encoder"]

    body = start.params["encoder"]
    unchanged_body = body_after("unchanged", optax.set_to_zero())
    assert jax.tree.all(jax.tree.map(np.array_equal, unchanged_body, body))
    trained_body = body_after("trained", None)
    assert not jax.tree.all(jax.tree.map(np.array_equal, trained_body, body))


@pytest.mark.slow
def test_texts_from_python_finetune_a_language_model(text_run, tmp_path, capsys):
    model = gf.load(text_run)
    train = []
    heldout = []
    for word in "abcdefgh":
        label = "no" if word in "ab" else "yes"
        train.append((f"The value {word} of a call.", label))
        heldout.append({"text": f"A value {word} of the call.", "label": label})
    data = {"train": iter(train), "heldout": heldout}
    result = gf.train("finetune_glue:own", tmp_path / "run", init=model, data=data, options=SHORT)
    assert result["eval"]["examples"] == 8
    tuned = gf.load(tmp_path / "run")
    assert set(tuned.classes) == {"no", "yes"}
    assert tuned.tokenizer == model.tokenizer
    d_model = model.config.model.d_model
    assert tuned.config.model.d_model == d_model
    scores = gf.evaluate(tuned, heldout)
    accuracy = result["eval"]["accuracy"]
    assert scores["accuracy"] == pytest.approx(accuracy)
    assert scores["examples"] == 8
    assert "newly initialized" in capsys.readouterr().err


class Feature:
    names = tuple("abcdefghij")


class Named(list):
    """The parts of a datasets.Dataset that are read: its rows, and the names of its labels."""

    features = {"img": object(), "label": Feature()}


def test_hugging_face_dataset(digits, tmp_path):
    images, labels = digits
    rows = []
    for image, label in zip(images, labels, strict=True):
        pixels = image[..., 0]
        row = {"img": pixels, "label": int(label)}
        rows.append(row)
    train = Named(rows[:30])
    data = {"train": train, "test": Named(rows[30:])}
    gf.train(images_config(), tmp_path, data=data, options=SHORT)
    model = gf.load(tmp_path)
    assert model.classes == Feature.names


@pytest.mark.slow
def test_grain_dataset(digits, tmp_path):
    grain = pytest.importorskip("grain")
    images, labels = digits
    rows = []
    for image, label in zip(images, labels, strict=True):
        rows.append({"image": image, "label": label})
    source = grain.MapDataset.source(rows)
    data = {"train": source[:30], "test": source[30:]}
    gf.train(images_config(), tmp_path, data=data, options=SHORT)
    model = gf.load(tmp_path)
    expected = {str(label) for label in labels}
    assert set(model.classes) == expected


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ([], {}, "no examples"),
        ([{"id": 3, "label": 1}], {}, "no input: it has id, label"),
        ([(np.zeros((8, 8)), None)], {}, "no label"),
        ("no/such/folder", {}, "no/such/folder"),
        (None, {"step": 3}, "did you mean 'steps'"),
        (None, {"steps": "many"}, "config.steps is 'many'"),
    ],
)
def test_train_refuses_invalid_arguments(data, options, words, tmp_path):
    arguments = {"data": data, "options": {**SHORT, **options}}
    run = tmp_path / "run"
    message = raised(UserError, gf.train, images_config(), run, **arguments)
    assert words in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"init": "digits"}, "'digits'"),
        ({"optimizer": "sgd"}, "'sgd'"),
    ],
)
def test_objects_that_are_not_models_or_optimizers_are_refused(arguments, words, tmp_path):
    run = tmp_path / "run"
    message = raised(UserError, gf.train, "cifar10:gmlp", run, **arguments)
    assert words in message
    assert not (tmp_path / "run").exists()


def test_options_change_a_copy_of_the_config():
    config = images_config()
    opened = runs.open_config(config, None, {"steps": 7, "optimizer.learning_rate": 0.5})
    assert opened.steps == 7
    assert opened.optimizer.learning_rate == 0.5
    assert config.steps != 7
    assert "stepz" in raised(ConfigError, runs.open_config, config, None, {"stepz": 7})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "config is None"),
        (Path("a.py"), "PosixPath('a.py')"),
    ],
)
def test_objects_that_are_not_configs_are_refused(config, words):
    message = raised(ConfigError, runs.open_config, config, None, {})
    assert words in message


# Evaluation.


@pytest.mark.slow
def test_evaluation_on_the_data_of_the_run_and_on_others(image_run):
    model = gf.load(image_run, "latest")
    source = embedded.embedded_digits("heldout")
    images = source.examples.images
    count = len(source.labels)
    whole = gf.evaluate(model, batch_size=64)
    assert whole["examples"] == count
    heldout = (images, source.labels)
    same = gf.evaluate(model, heldout)
    assert same["examples"] == count
    assert same["top1"] == pytest.approx(whole["top1"])
    assert same["loss"] == pytest.approx(whole["loss"], rel=1e-4)
    pairs = zip(images[:5], source.labels[:5], strict=True)
    few = list(pairs)
    scores = gf.evaluate(model, few)
    assert scores["examples"] == 5


def test_evaluation_on_texts(text_run):
    text = "The value of a name is the value of its object. " * 20
    model = gf.load(text_run)
    scores = gf.evaluate(model, [text])
    assert scores["perplexity"] > 1


PIXELS = np.zeros((8, 8, 8, 1), np.uint8)


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ((PIXELS, [0]), {}, "8 and 1 rows"),
        (3, {}, "the data are 3"),
        ((PIXELS, [70] * 8), {}, "the class '70' is not one of"),
        ((PIXELS, [0, 1] * 4), {"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_evaluate_refuses_invalid_arguments(image_run, data, options, words):
    model = gf.load(image_run)
    message = raised(UserError, gf.evaluate, model, data, **options)
    assert words in message


def test_models_that_cannot_be_evaluated_are_refused(text_run):
    images = (PIXELS, [0] * 8)
    message = raised(UserError, gf.evaluate, "digits", images)
    assert "'digits'" in message
    text_model = gf.load(text_run)
    message = raised(UserError, gf.evaluate, text_model, images)
    assert "ndarray" in message
    bare = gf.create("gmlp_base", length=16, vocab_size=50, **TINY)
    message = raised(RunError, gf.evaluate, bare, ["A"])
    assert "tokenizer" in message
