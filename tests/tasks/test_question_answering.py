"""Answers as spans of a passage: the loss against NumPy, SQuAD's scores and files, and answers to
single questions."""

import json
from typing import NamedTuple

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.finetuning import squad_answers
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.tasks.inference.prediction import Settings
from gmlp_flax.tasks.question_answering import NO_ANSWER
from tests.data.finetuning.squad_files import colours
from tests.failures import raised
from tests.tasks import by_hand, question_files
from tests.training import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight articles of both versions, and a tokenizer."""
    return question_files.write_all(tmp_path_factory.mktemp("squad"))


def open_version(folder, version: str = "v1.1"):
    """The task of a version, and its data."""
    return tiny.open_task(question_files.config(folder, version), folder / "run")


@pytest.fixture(scope="module", params=["v1.1", "v2.0"])
def opened(request, folder):
    return open_version(folder, request.param)


@pytest.fixture(scope="module")
def params(folder):
    """Initial parameters, scaled so that the outputs for different positions differ clearly."""
    task, _ = open_version(folder)
    return by_hand.scaled_params(task, 5)


def all_windows(data, role: str) -> dict[str, np.ndarray]:
    """All windows of a role, as one batch."""
    windows = by_hand.all_examples(data.examples(role))
    return by_hand.stacked(windows)


class Reference(NamedTuple):
    """float64 logits [windows, tokens], with -inf for padding, and the loss of each window."""

    start_logits: np.ndarray
    end_logits: np.ndarray
    losses: np.ndarray


def reference(task, params, batch) -> Reference:
    """What the task computes, without its padding and batches."""
    is_token = batch["tokens"] != task.tokenizer.pad_id
    apply = jax.jit(task.apply)
    tokens = batch["tokens"]
    scores = apply(params, tokens, batch["segments"], is_token)
    exact = np.asarray(scores, np.float64)
    starts_and_ends = np.moveaxis(exact, -1, 0)
    start_logits, end_logits = np.where(is_token, starts_and_ends, -np.inf)
    start_losses = by_hand.cross_entropies(start_logits, batch["start"])
    end_losses = by_hand.cross_entropies(end_logits, batch["end"])
    losses = (start_losses + end_losses) / 2
    return Reference(start_logits, end_logits, losses)


def test_training_loss_against_numpy(folder, params):
    task, data = open_version(folder)
    batch = all_windows(data, TRAIN)
    examples = len(batch["start"])
    batch["key"] = by_hand.keys(examples, seed=1)
    expected = reference(task, params, batch)
    total, sums = jax.jit(task.loss)(params, batch)
    starts = batch["start"]
    ends = batch["end"]
    start_hits = by_hand.are_hits(expected.start_logits, starts)
    end_hits = by_hand.are_hits(expected.end_logits, ends)
    hits = start_hits & end_hits
    assert set(sums) == set(task.metrics)
    total_loss = expected.losses.sum()
    loss = pytest.approx(total_loss, rel=1e-5)
    assert float(total) == loss
    assert by_hand.total(sums, "loss") == loss
    assert by_hand.total(sums, "accuracy") == hits.sum()
    assert by_hand.weight(sums, "accuracy") == len(hits)


def test_evaluation(opened, params):
    """The scores of every window, once and in order, for any batch size; and the answers that they
    give."""
    task, data = opened
    batch = all_windows(data, HELDOUT)
    expected = reference(task, params, batch)
    windows = len(expected.losses)
    data.config.eval.batch_size = 50
    in_one_batch, _ = by_hand.evaluate(task, data, params)
    data.config.eval.batch_size = 27
    assert windows % 27
    metrics, outputs = by_hand.evaluate(task, data, params)
    assert in_one_batch == pytest.approx(metrics, rel=1e-4)
    loss = expected.losses.mean()
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["windows"] == windows
    null_start = expected.start_logits[:, 0]
    null_end = expected.end_logits[:, 0]
    null = null_start + null_end
    assert_allclose(outputs["null"], null, rtol=1e-4, atol=1e-4)
    starts = outputs["start_positions"]
    check_five_best(expected.start_logits, starts, outputs["start_scores"])
    ends = outputs["end_positions"]
    check_five_best(expected.end_logits, ends, outputs["end_scores"])


def files_and_metrics(task, data, params):
    """The files that a whole evaluation writes, as JSON, and its metrics."""
    metrics, outputs = by_hand.evaluate(task, data, params)
    files = {}
    for name, content in task.prediction_files(outputs, data).items():
        files[name] = json.loads(content)
    return files, metrics


def check_five_best(logits, positions, scores) -> None:
    """Checks the five positions that an evaluation keeps of each window, [windows, 5], against the
    logits [windows, tokens]."""
    order = np.argsort(-logits, axis=-1, kind="stable")
    best = order[:, :5]
    expected = np.take_along_axis(logits, best, 1)
    at_positions = np.take_along_axis(logits, positions, 1)
    assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    assert_allclose(at_positions, expected, rtol=1e-4, atol=1e-4)


def test_prediction_files_reproduce_the_metrics(opened, params):
    task, data = opened
    files, metrics = files_and_metrics(task, data, params)
    questions = data.examples(HELDOUT).questions
    scored = squad_answers.evaluate(questions, files["predictions.json"])
    assert scored["missing_filled_with_empty"] == 0
    common = scored.keys() & metrics.keys()
    assert {"f1", "exact"} <= common
    for name in common:
        assert metrics[name] == scored[name]
    lists = files["nbest_predictions.json"]
    ids = {question.id for question in questions}
    assert lists.keys() == ids
    for answers in lists.values():
        assert len(answers) <= 5 + 1


def test_files_of_v1(folder, params):
    task, data = open_version(folder, "v1.1")
    files, metrics = files_and_metrics(task, data, params)
    assert set(files) == {"predictions.json", "nbest_predictions.json"}
    assert list(metrics) == ["exact", "f1", "total", "loss", "accuracy", "windows"]
    predictions = files["predictions.json"]
    for name, answers in files["nbest_predictions.json"].items():
        best, *_ = answers
        assert best["text"] == predictions[name]
        assert len(answers) <= 5


def test_files_of_v2(folder, params):
    task, data = open_version(folder, "v2.0")
    files, metrics = files_and_metrics(task, data, params)
    assert {"HasAns_f1", "NoAns_exact", "best_f1", "best_f1_thresh"} < set(metrics)
    odds = files["null_odds.json"]
    for name, text in files["predictions.json"].items():
        is_unanswered = text == ""
        assert (odds[name] > 0) == is_unanswered
    assert metrics["best_f1"] >= metrics["f1"]
    assert metrics["best_exact"] >= metrics["exact"]


def oracle(data) -> dict[str, np.ndarray]:
    """Outputs that point at each window's target."""
    batch = all_windows(data, HELDOUT)
    starts = batch["start"][:, None]
    ends = batch["end"][:, None]
    scores = np.full(starts.shape, 5, np.float32)
    is_unanswered = batch["start"] == 0
    return {
        "null": np.where(is_unanswered, np.float32(10), np.float32(-10)),
        "start_positions": starts,
        "start_scores": scores,
        "end_positions": ends,
        "end_scores": scores,
    }


SUMS = dict.fromkeys(("loss", "accuracy", "examples"), (3.0, 6.0))


def test_oracle_scores_100_on_v1(folder):
    task, data = open_version(folder)
    questions = data.examples(HELDOUT).questions
    metrics = task.summarize(SUMS, oracle(data), data)
    assert metrics == {
        "exact": 100,
        "f1": 100,
        "total": len(questions),
        "loss": 0.5,
        "accuracy": 0.5,
        "windows": 6,
    }
    assert set(task.eval_metrics) == {"exact", "f1", "loss", "accuracy"}
    passages = {question.id: question.context for question in questions}
    f1 = squad_answers.evaluate(questions, passages)["f1"]
    assert 0 < f1 < 50
    [baseline] = task.baselines(SUMS, data)
    assert baseline == ("the whole passage as the answer", {"exact": 0, "f1": f1})


def test_oracle_scores_100_on_v2(folder):
    task, data = open_version(folder, "v2.0")
    metrics = task.summarize(SUMS, oracle(data), data)
    assert len(task.eval_metrics) == 10
    assert set(task.eval_metrics) < set(metrics)
    for name in ("exact", "HasAns_f1", "NoAns_f1", "best_f1"):
        assert metrics[name] == 100


def test_scores_are_percentages(opened):
    task, _ = opened
    shown = task.format_metrics({"exact": 50.0, "accuracy": 0.5, "loss": 0.5})
    assert shown == "exact 50.0%  accuracy 50.0%  loss 0.5"


def test_causal_model_of_v2_is_refused():
    config = gmlp_config.default("question_answering")
    config.model.causal = True
    config.squad.version = "v2.0"
    assert "squad.version=v1.1" in raised(ConfigError, gmlp_config.validate, config)
    config.squad.version = "v1.1"
    gmlp_config.validate(config)


def test_v2_baseline_answers_nothing(folder):
    task, data = open_version(folder, "v2.0")
    questions = data.examples(HELDOUT).questions
    impossible = [question for question in questions if question.impossible]
    percentage = 100 * len(impossible)
    share = percentage / len(questions)
    assert 0 < share < 100
    [baseline] = task.baselines(SUMS, data)
    assert baseline == ("no answer to any question", {"exact": share, "f1": share})


@pytest.mark.parametrize(("threshold", "is_unanswered"), [(-1e9, True), (1e9, False)])
def test_predictions_depend_on_the_threshold(folder, params, threshold, is_unanswered):
    task, _ = open_version(folder, "v2.0")
    task.config.squad.null_threshold = threshold
    predict = task.predictor.predict
    paragraph = colours(0)["paragraphs"][0]
    context = paragraph["context"]
    line = f"What is the road?\t{context}"
    settings = Settings(top=3)
    [predictions] = predict(params, [line], settings)
    [three] = predictions
    assert len(three) == 3
    best, *_ = by_hand.names_of(three)
    assert (best == NO_ANSWER) == is_unanswered
    settings = Settings(top=500)
    [predictions] = predict(params, [line], settings)
    [candidates] = predictions
    assert len(candidates) > 3
    for text, _ in candidates:
        assert text in context or text == NO_ANSWER
    shares = by_hand.shares_of(candidates)
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("line", ["no tab", "no passage\t", "\tno question"])
def test_line_is_a_question_and_a_passage(folder, line):
    task, _ = open_version(folder)
    message = raised(RunError, task.predictor.prepare, line)
    assert "a tab between" in message


def as_line(question) -> str:
    return f"{question.question}\t{question.context}"


@pytest.mark.parametrize("batch_size", [1, 3])
def test_single_passage_is_answered_as_in_evaluation(folder, params, batch_size):
    """In a batch of its windows or in single ones; a passage has several windows."""
    task, data = open_version(folder)
    questions = data.examples(HELDOUT).questions[:4]
    lines = [as_line(question) for question in questions]
    first_line, *_ = lines
    prepared = task.predictor.prepare(first_line)
    assert len(prepared.examples) > 1
    files, _ = files_and_metrics(task, data, params)
    lists = files["nbest_predictions.json"]
    settings = Settings(top=1, batch_size=batch_size)
    answers = task.predictor.predict(params, lines, settings)
    for question, [candidates] in zip(questions, answers, strict=True):
        [(text, share)] = candidates
        expected, *_ = lists[question.id]
        assert text == expected["text"]
        probability = expected["probability"]
        assert share == pytest.approx(probability, rel=1e-3)


def test_encode_returns_the_first_window(folder):
    task, data = open_version(folder)
    examples = data.examples(HELDOUT)
    line = as_line(examples.questions[0])
    batch = task.predictor.encode([line])
    window = examples[0]
    for name in ("tokens", "segments"):
        assert_array_equal(batch[name][0], window[name])
