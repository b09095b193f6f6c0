"""Answers as spans of a passage: the loss against NumPy, SQuAD's scores and files, and answers to
single questions."""

import json

import jax
import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.finetuning import squad_answers
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.tasks.prediction import Settings
from gmlp_flax.tasks.question_answering import NO_ANSWER
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition
from tests.data.finetuning.squad_files import colours
from tests.failures import raised
from tests.tasks import question_files
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
    """Fresh ones, made large enough for the model to tell places apart."""
    task, _ = open_version(folder)
    return jax.tree.map(lambda x: 5 * x, jax.jit(task.init)(jax.random.key(0)))


def all_windows(data, role: str) -> dict[str, np.ndarray]:
    """All windows of a role, as one batch."""
    windows = data.examples(role)
    items = [windows[index] for index in range(len(windows))]
    return {name: np.stack([item[name] for item in items]) for name in items[0]}


def reference(task, params, batch):
    """float64 logits [2, windows, tokens], without padding, and the loss of each window."""
    is_token = batch["tokens"] != task.tokenizer.pad_id
    scores = jax.jit(task.apply)(params, batch["tokens"], batch["segments"], is_token)
    logits = np.where(is_token, np.moveaxis(np.array(scores, np.float64), -1, 0), -np.inf)
    normalised = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    rows = np.arange(len(is_token))
    losses = -(normalised[0, rows, batch["start"]] + normalised[1, rows, batch["end"]]) / 2
    return logits, losses


def test_training_loss_against_numpy(folder, params):
    task, data = open_version(folder)
    batch = all_windows(data, TRAIN)
    batch["key"] = jax.random.split(jax.random.key(1), len(batch["start"]))
    logits, losses = reference(task, params, batch)
    total, sums = jax.jit(task.loss)(params, batch)
    best = logits.argmax(-1)
    hits = (best[0] == batch["start"]) & (best[1] == batch["end"])
    assert set(sums) == set(task.metrics)
    assert float(total) == float(sums["loss"][0]) == pytest.approx(losses.sum(), rel=1e-5)
    assert float(sums["accuracy"][0]) == hits.sum()
    assert float(sums["accuracy"][1]) == len(losses)


def test_evaluation(opened, params):
    """Scores of every window once, in order, whatever the batches; and the answers that they
    give."""
    task, data = opened
    batch = all_windows(data, HELDOUT)
    logits, losses = reference(task, params, batch)
    found = {}
    for size in (27, 50):
        data.config.eval.batch_size = size
        found[size] = Evaluator(task, data, Partition.make())(params)
    assert len(losses) % 27
    metrics, outputs = found[27]
    assert found[50][0] == pytest.approx(metrics, rel=1e-4)
    assert metrics["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert metrics["windows"] == len(losses)
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :, :5]
    np.testing.assert_allclose(outputs["null"], logits[:, :, 0].sum(0), rtol=1e-4, atol=1e-4)
    for side, name in enumerate(("start", "end")):
        scores = np.take_along_axis(logits[side], order[side], 1)
        np.testing.assert_allclose(outputs[f"{name}_scores"], scores, rtol=1e-4, atol=1e-4)
        at_positions = np.take_along_axis(logits[side], outputs[f"{name}_positions"], 1)
        np.testing.assert_allclose(at_positions, scores, rtol=1e-4, atol=1e-4)


def files_and_metrics(task, data, params):
    """What a whole evaluation writes, and its metrics."""
    metrics, outputs = Evaluator(task, data, Partition.make())(params)
    files = {}
    for name, content in task.prediction_files(outputs, data).items():
        files[name] = json.loads(content)
    return files, metrics


def test_files_give_the_metrics(opened, params):
    task, data = opened
    files, metrics = files_and_metrics(task, data, params)
    questions = data.examples(HELDOUT).questions
    scored = squad_answers.evaluate(questions, files["predictions.json"])
    assert scored["missing_filled_with_empty"] == 0
    common = scored.keys() & metrics.keys()
    assert {"f1", "exact"} <= common
    assert {name: metrics[name] for name in common} == {name: scored[name] for name in common}
    assert set(files["nbest_predictions.json"]) == {question.id for question in questions}
    assert all(len(answers) <= 5 + 1 for answers in files["nbest_predictions.json"].values())


def test_files_of_v1(folder, params):
    task, data = open_version(folder, "v1.1")
    files, metrics = files_and_metrics(task, data, params)
    assert set(files) == {"predictions.json", "nbest_predictions.json"}
    assert list(metrics) == ["exact", "f1", "total", "loss", "accuracy", "windows"]
    for name, answers in files["nbest_predictions.json"].items():
        assert answers[0]["text"] == files["predictions.json"][name]
        assert len(answers) <= 5


def test_files_of_v2(folder, params):
    task, data = open_version(folder, "v2.0")
    files, metrics = files_and_metrics(task, data, params)
    assert {"HasAns_f1", "NoAns_exact", "best_f1", "best_f1_thresh"} < set(metrics)
    odds = files["null_odds.json"]
    for name, text in files["predictions.json"].items():
        assert (odds[name] > 0) == (not text)
    assert metrics["best_f1"] >= metrics["f1"]
    assert metrics["best_exact"] >= metrics["exact"]


def oracle(data) -> dict[str, np.ndarray]:
    """Outputs that point at each window's target."""
    batch = all_windows(data, HELDOUT)
    null = np.where(batch["start"] == 0, 10.0, -10.0).astype(np.float32)
    outputs = {"null": null}
    for side in ("start", "end"):
        outputs[f"{side}_positions"] = batch[side][:, None]
        outputs[f"{side}_scores"] = np.full((len(null), 1), 5, np.float32)
    return outputs


SUMS = dict.fromkeys(("loss", "accuracy", "examples"), (3.0, 6.0))


def test_an_oracle_of_v1(folder):
    task, data = open_version(folder)
    questions = data.examples(HELDOUT).questions
    assert task.summarize(SUMS, oracle(data), data) == {
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


def test_an_oracle_of_v2(folder):
    task, data = open_version(folder, "v2.0")
    metrics = task.summarize(SUMS, oracle(data), data)
    assert len(task.eval_metrics) == 10
    assert set(task.eval_metrics) < set(metrics)
    for name in ("exact", "HasAns_f1", "NoAns_f1", "best_f1"):
        assert metrics[name] == 100
    questions = data.examples(HELDOUT).questions
    share = 100 * sum(question.impossible for question in questions) / len(questions)
    assert 0 < share < 100
    [baseline] = task.baselines(SUMS, data)
    assert baseline == ("no answer to any question", {"exact": share, "f1": share})


def test_scores_are_percentages_already(opened):
    shown = opened[0].format_metrics({"exact": 50.0, "accuracy": 0.5, "loss": 0.5})
    assert shown == "exact 50.0%  accuracy 50.0%  loss 0.5"


def test_having_no_answer_needs_a_model_that_looks_ahead():
    config = gmlp_config.default("question_answering")
    config.model.causal = True
    config.squad.version = "v2.0"
    assert "squad.version=v1.1" in raised(ConfigError, gmlp_config.validate, config)
    config.squad.version = "v1.1"
    gmlp_config.validate(config)


@pytest.mark.parametrize(("threshold", "is_unanswered"), [(-1e9, True), (1e9, False)])
def test_predictions_follow_the_threshold(folder, params, threshold, is_unanswered):
    task, _ = open_version(folder, "v2.0")
    task.config.squad.null_threshold = threshold
    predict = task.predictor.predict
    context = colours(0)["paragraphs"][0]["context"]
    line = f"What is the road?\t{context}"
    [[first]] = predict(params, [line], Settings(top=3))
    assert len(first) == 3
    assert (first[0][0] == NO_ANSWER) == is_unanswered
    [[candidates]] = predict(params, [line], Settings(top=500))
    assert len(candidates) > 3
    assert all(text in context or text == NO_ANSWER for text, _ in candidates)
    assert sum(share for _, share in candidates) == pytest.approx(1)


@pytest.mark.parametrize("line", ["no tab", "no passage\t", "\tno question"])
def test_a_line_is_a_question_and_a_passage(folder, line):
    task, _ = open_version(folder)
    assert "a tab between" in raised(RunError, task.predictor.prepare, line)


def test_a_passage_alone_is_answered_as_in_an_evaluation(folder, params):
    """Among others, or alone; a passage has several windows."""
    task, data = open_version(folder)
    questions = data.examples(HELDOUT).questions[:4]
    lines = [f"{question.question}\t{question.context}" for question in questions]
    assert len(task.predictor.prepare(lines[0]).examples) > 1
    files, _ = files_and_metrics(task, data, params)
    for batch_size in (1, 3):
        settings = Settings(top=1, batch_size=batch_size)
        answers = task.predictor.predict(params, lines, settings)
        for question, [[(text, share)]] in zip(questions, answers, strict=True):
            expected = files["nbest_predictions.json"][question.id][0]
            assert text == expected["text"]
            assert share == pytest.approx(expected["probability"], rel=1e-3)


def test_encoded_lines_have_their_first_window(folder):
    task, data = open_version(folder)
    question = data.examples(HELDOUT).questions[0]
    batch = task.predictor.encode([f"{question.question}\t{question.context}"])
    window = data.examples(HELDOUT)[0]
    for name in ("tokens", "segments"):
        np.testing.assert_array_equal(batch[name][0], window[name])
