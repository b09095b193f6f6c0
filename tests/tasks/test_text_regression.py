"""Regression on sentences and pairs: GLUE's STS-B and the user's columns, scores against scipy, and
the scale of the labels."""

import json
import math

import jax
import numpy as np
import pytest
import scipy.stats

import gmlp_flax as gf
from gmlp_flax.data.holdout import HELDOUT, ROLES, TRAIN
from gmlp_flax.tasks.data.base import RunFiles
from gmlp_flax.tasks.text_regression import (
    SCALE_FILE,
    Scale,
    TextRegression,
    TextRegressionData,
    correlation,
)
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition
from tests import preloaded
from tests.failures import failure
from tests.tasks import by_hand, labelled_files
from tests.training import tiny

KIND = "text_regression"


def number_config(vocabulary, train, task: str = "stsb", **data):
    """A config of a model of 32 tokens."""
    config = labelled_files.config(KIND, vocabulary, train, task, **data)
    config.batch_size = 4
    config.model.length = 32
    return config


def evaluator_of(task, data) -> Evaluator:
    """An evaluation on one device."""
    partition = Partition.make(devices=jax.devices()[:1])
    return Evaluator(task, data, partition)


@pytest.fixture
def stsb(vocabulary, tmp_path):
    """A task on 12 pairs, its data with 7 pairs held out, and parameters."""
    config = number_config(vocabulary, labelled_files.stsb(tmp_path))
    task, data = tiny.open_task(config, tmp_path / "run")
    params = task.init(jax.random.key(1))
    return task, data, params


def test_glue_prediction_files(stsb):
    task, data, _ = stsb
    train = data.dataset(TRAIN).labels
    expected = []
    for number in range(12):
        expected.append(number % 11 / 2)
    assert train.tolist() == expected
    assert len(data.dataset(HELDOUT)) == 7
    mean_and_deviation = (train.mean(), train.std())
    scale = pytest.approx(mean_and_deviation)
    assert task.scale == scale
    assert data.scale == scale


def test_scores(stsb):
    """Correlations equal scipy's; the loss is divided by the variance of the training labels."""
    task, data, params = stsb
    heldout = data.dataset(HELDOUT).labels
    evaluate = evaluator_of(task, data)
    metrics, outputs = evaluate(params)
    predicted = outputs["label"]
    rank_correlation, _ = scipy.stats.spearmanr(heldout, predicted)
    linear_correlation, _ = scipy.stats.pearsonr(heldout, predicted)
    loss = relative_loss(data, predicted)
    assert metrics == {
        "spearman": pytest.approx(rank_correlation),
        "pearson": pytest.approx(linear_correlation),
        "loss": pytest.approx(loss, rel=1e-4),
        "examples": 7,
    }
    assert {*task.eval_metrics, "examples"} == set(metrics)


def relative_loss(data, predicted) -> float:
    """The mean squared error of the held-out labels divided by the variance of training labels."""
    errors = data.dataset(HELDOUT).labels - predicted
    variance = data.dataset(TRAIN).labels.var()
    return np.square(errors).mean() / variance


def test_baseline_is_the_mean_training_label(stsb):
    task, data, params = stsb
    evaluator = evaluator_of(task, data)
    evaluator(params)
    [baseline] = evaluator.baselines()
    loss = relative_loss(data, data.dataset(TRAIN).labels.mean())
    assert baseline.metrics == {"loss": pytest.approx(loss, rel=1e-5)}


def test_predictions_are_written_and_answered(stsb):
    task, data, params = stsb
    evaluate = evaluator_of(task, data)
    _, outputs = evaluate(params)
    first = outputs["label"][0]
    [content] = task.prediction_files(outputs, data).values()
    lines = content.decode().splitlines()
    assert lines[:2] == ["index\tprediction", f"0\t{first:.6g}"]
    line = "\t".join(labelled_files.pair(12))
    [answer] = task.predictor.predict(params, [line])
    score = pytest.approx(float(first), rel=1e-4)
    assert answer == [[("score", score)]]


@pytest.mark.slow
def test_training_loss_is_divided_by_the_variance(stsb):
    task, data, params = stsb
    batch = by_hand.first_batch(data)
    batch["key"] = by_hand.keys(4)
    total, sums = task.loss(params, batch)
    predicted = task.predicted(params, batch)
    predicted = np.asarray(predicted, np.float64)
    errors = predicted - batch["label"]
    squares = np.square(errors)
    train_labels = data.dataset(TRAIN).labels
    labels = train_labels.astype(np.float64)
    expected = squares.sum() / labels.var()
    assert float(total) == pytest.approx(expected, rel=1e-4)
    assert by_hand.weight(sums, "loss") == 4


def test_lines_and_notes(stsb):
    _, data, _ = stsb
    [line] = data.lines(HELDOUT)
    for fact in ("heldout: ", "7 rows", "sentence1, sentence2"):
        assert fact in line
    assert data.summary(TRAIN).classes == {}
    assert data.summary(TRAIN).shown[0].endswith("-> 0")
    [ranges, *_] = data.notes()
    assert "0 to 5" in ranges
    assert "held out 0 to 3" in ranges


def test_test_set_has_no_scores(vocabulary, tmp_path):
    folder = labelled_files.stsb(tmp_path, has_test=True)
    config = number_config(vocabulary, folder, heldout_split="test")
    task, data = tiny.open_task(config, tmp_path / "run")
    evaluator = evaluator_of(task, data)
    params = task.init(jax.random.key(0))
    metrics, outputs = evaluator(params)
    assert metrics == {"examples": 5, "unlabelled": 5}
    assert np.isfinite(outputs["label"]).all()
    assert evaluator.baselines() == []
    assert "held out none" in data.notes()[0]


@pytest.mark.parametrize(
    ("score", "is_allowed"),
    [
        (0, True),
        (5, True),
        (5.01, False),
        (-2, False),
        (30, False),
    ],
)
def test_scores_outside_the_range_are_refused(vocabulary, tmp_path, score, is_allowed):
    """STS-B has scores from 0 to 5; -1 marks a row of a test set."""
    lines = ["sentence1\tsentence2\tscore\n"]
    values = (0, 2.5, -1, score)
    for number, value in enumerate(values):
        lines.append(f"a {number}\tb {number}\t{value}\n")
    path = tmp_path / "a.tsv"
    path.write_text("".join(lines))
    config = number_config(vocabulary, path, heldout=str(path))
    data = TextRegressionData(config)
    if is_allowed:
        labels = data.dataset(TRAIN).labels.tolist()
        assert labels == [0, 2.5, score]
    else:
        message = failure(data.dataset, TRAIN)
        assert f"'{score}'" in message


NUMBERS = [1e6, -1, 250.5, "", -3e5] * 8


def write_prices(folder, price=None):
    """Writes texts with large and negative numbers, -1 among them, and empty cells; or with one value
    for all."""
    records = []
    for number, label in enumerate(NUMBERS):
        words, _ = labelled_files.pair(number)
        cell = label if price is None else price
        records.append({"words": f"{words} {number}", "price": cell})
    return labelled_files.json_rows(folder / "own.jsonl", records)


@pytest.fixture
def prices(vocabulary, tmp_path):
    """A config of the user's numbers."""
    config = number_config(vocabulary, write_prices(tmp_path), "own", heldout_share=0.2)
    config.own.update(text="words", label="price")
    return config


def test_labels_of_own_data(prices):
    data = TextRegressionData(prices)
    labels = []
    for role in ROLES:
        labels += data.dataset(role).labels.tolist()
    labels_of_texts = []
    for label in NUMBERS:
        if label != "":
            labels_of_texts.append(label)
    expected = sorted(labels_of_texts)
    assert sorted(labels) == expected
    assert "8 rows without a label" in "\n".join(data.lines(TRAIN))
    assert "-3e+05 to 1e+06, held out -3e+05 to 1e+06" in data.notes()[0]
    examples = len(data.dataset(TRAIN))
    assert data.tokens(TRAIN).examples == examples


@pytest.mark.parametrize("wrong", ["dear", math.inf, True, 1e300, "1_000", "1.2.3", "50%"])
def test_non_numeric_labels_are_refused(prices, tmp_path, wrong):
    write_prices(tmp_path, wrong)
    message = failure(TextRegressionData(prices).dataset, TRAIN)
    assert message.startswith("config.data.train: ")
    assert "'price'" in message


def test_constant_labels_are_refused(prices, tmp_path):
    write_prices(tmp_path, 3)
    data = TextRegressionData(prices)
    assert "labels are 3.0" in failure(data.assets)


def test_scale_of_a_run_is_kept(prices):
    """For any data."""
    files = RunFiles(local={SCALE_FILE: b'{"mean": 7, "deviation": 0.5}'})
    data = TextRegressionData(prices, files)
    assert data.scale == (7, 0.5)
    task = TextRegression(prices, data.assets())
    assert task.scale == (7, 0.5)
    assert TextRegression(prices).scale == Scale(0.0, 1.0)


def test_head_has_one_output(prices):
    shapes = TextRegression(prices).shapes()
    assert shapes["head"]["kernel"].shape == (8, 1)


DAMAGED = [
    b"{}",
    b"[]",
    b'{"mean": "x", "deviation": 1}',
    b'{"mean": 1, "deviation": NaN}',
    b'{"mean": true, "deviation": 1}',
    b'{"mean": 1, "deviation": 0}',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_scale_of_a_model_is_refused(prices, content):
    message = failure(TextRegression, prices, {SCALE_FILE: content})
    assert SCALE_FILE in message


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_scale_of_a_run_is_refused(prices, tmp_path, content):
    path = tmp_path / SCALE_FILE
    path.write_bytes(content)
    data = TextRegressionData(prices, RunFiles(str(tmp_path)))
    assert str(path) in failure(data.assets)


def test_constant_predictions_have_zero_correlation():
    rising = np.arange(4.0)
    falling = 3 - 2 * rising
    constant = np.ones(4)
    assert correlation(rising, constant) == 0
    assert correlation(constant, rising) == 0
    assert correlation(rising, falling) == pytest.approx(-1)


def write_lengths(folder):
    """Writes 300 texts, each with a number computed from its word count."""
    words = tiny.WORDS * 2
    records = {}
    for number in range(300):
        first = number % 9
        count = 2 + number % 20
        chosen = words[first : first + count]
        text = " ".join(chosen)
        label = 1000 + 100 * len(chosen)
        records[text] = {"text": text, "label": label}
    return labelled_files.json_rows(folder / "own.jsonl", records.values())


@pytest.mark.slow
def test_run_learns_keeps_its_scale_and_predicts(vocabulary, tmp_path):
    """The label is a function of the word count. The scale belongs to the run and not to later data."""
    path = write_lengths(tmp_path)
    config = number_config(vocabulary, path, "own", heldout_share=0.2)
    config.batch_size = 32
    config.steps = 150
    config.model.length = 64
    config.optimizer.update(learning_rate=0.01, warmup=10)
    run = tmp_path / "run"
    result = gf.train(config, str(run))
    metrics = result["eval"]
    assert metrics["spearman"] > 0.8
    assert metrics["loss"] < 0.4
    model = gf.load(run)
    new_metrics = gf.evaluate(model, str(path))
    assert new_metrics["spearman"] > 0.8
    text = (run / SCALE_FILE).read_text()
    scale = json.loads(text)
    assert scale["mean"] > 1000
    [answer] = model.predict(["the a of"])
    score = pytest.approx(1300, abs=500)
    assert answer == [[("score", score)]]
    line = " ".join(tiny.WORDS[:16]) + "\n"
    done = preloaded.gmlp("predict", f"--workdir={run}", input=line)
    assert done.returncode == 0, done.stderr
    _, number = done.stdout.splitlines()
    assert float(number) == pytest.approx(2600, abs=500)
