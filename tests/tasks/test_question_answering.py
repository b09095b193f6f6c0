import json

import jax
import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.finetuning import squad_answers
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.tasks.question_answering import QuestionAnswering
from gmlp_flax.training import evaluation
from gmlp_flax.training.partition import Partition
from tests.data.finetuning.squad_files import article, colours, entry, write
from tests.failures import raised

LENGTH = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight articles, of which some have a question without an answer, and a tokenizer."""
    folder = tmp_path_factory.mktemp("squad")
    articles = [colours(i) for i in range(8)]
    write(folder / "v1.1.json", *articles)
    write(folder / "v2.0.json", *(colours(i, impossible=i % 2 == 0) for i in range(8)))
    texts = [one["paragraphs"][0]["context"] for one in articles]
    Tokenizer.train([*texts, "What is the road?"] * 9, 320).save(folder / "tokenizer.model")
    return folder


def make(folder, version="v1.1", run="none", **data):
    config = gmlp_config.from_file("configs/finetune_squad.py", f"{version},scale=small")
    config.batch_size, config.steps, config.eval.batch_size = 8, 6, 8
    config.model.update(
        layers=2,
        d_model=8,
        d_ffn=16,
        length=LENGTH,
        vocab_size=320,
        spatial_init_std=0.02,
        dropout=0.0,
    )
    config.squad.update(stride=8, max_query=12, n_best=5, max_answer=9)
    config.data.update(
        tokenizer=str(folder / "tokenizer.model"), train=str(folder / f"{version}.json")
    )
    config.data.update(heldout_share=0.3, **data)
    return QuestionAnswering(config, str(folder / run))


@pytest.fixture(scope="module", params=["v1.1", "v2.0"])
def task(request, folder):
    return make(folder, request.param)


@pytest.fixture(scope="module")
def params(folder):
    """Fresh ones, made large enough for the model to tell places apart."""
    return jax.tree.map(lambda x: 5 * x, jax.jit(make(folder).init)(jax.random.key(0)))


def all_windows(task, side):
    windows = task.examples(side)
    items = [windows[i] for i in range(len(windows))]
    return {name: np.stack([item[name] for item in items]) for name in items[0]}


def reference(task, params, batch):
    """float64 logits [2, windows, tokens], without padding, and the loss of each window."""
    seen = batch["tokens"] != task.tokenizer.pad_id
    logits = np.array(
        jax.jit(task.apply)(params, batch["tokens"], batch["segments"], seen), np.float64
    )
    logits = np.where(seen, np.moveaxis(logits, -1, 0), -np.inf)
    normalised = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    rows = np.arange(len(seen))
    losses = -(normalised[0, rows, batch["start"]] + normalised[1, rows, batch["end"]]) / 2
    return logits, losses


def test_passages_on_both_sides_are_counted(folder, tmp_path):
    old, new = colours(0), colours(20)
    new["paragraphs"][0]["context"] += " The end."
    write(tmp_path / "heldout.json", old, new)
    count = len(old["paragraphs"][0]["qas"])
    assert any(
        f"note: {count} of {2 * count} held-out examples have texts" in line
        for line in heldout_notes(folder, tmp_path)
    )
    write(tmp_path / "heldout.json", new)
    assert not any("trained on" in line for line in heldout_notes(folder, tmp_path))


def heldout_notes(folder, path):
    return make(folder, heldout=str(path / "heldout.json")).notes()


def test_training_loss_against_numpy(folder, params):
    task = make(folder)
    batch = all_windows(task, "train")
    batch["key"] = jax.random.split(jax.random.key(1), len(batch["start"]))
    logits, losses = reference(task, params, batch)
    total, sums = jax.jit(task.loss)(params, batch)
    hits = (logits[0].argmax(-1) == batch["start"]) & (logits[1].argmax(-1) == batch["end"])
    assert set(sums) == set(task.metrics)
    assert float(total) == float(sums["loss"][0]) == pytest.approx(losses.sum(), rel=1e-5)
    assert float(sums["accuracy"][0]) == hits.sum() and float(sums["accuracy"][1]) == len(losses)


def test_evaluation(task, params):
    """Scores of every window once, in order, whatever the batches; and the answers that they
    give."""
    batch = all_windows(task, "heldout")
    logits, losses = reference(task, params, batch)
    found = {}
    for size in (27, 50):
        task.config.eval.batch_size = size
        found[size] = evaluation.Evaluator(task, Partition.make())(params)
    assert len(losses) % 27 and found[50][0] == pytest.approx(found[27][0], rel=1e-4)
    metrics, outputs = found[27]
    assert metrics["loss"] == pytest.approx(losses.mean(), rel=1e-5) and metrics["windows"] == len(
        losses
    )
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :, :5]
    np.testing.assert_allclose(outputs["null"], logits[:, :, 0].sum(0), rtol=1e-4, atol=1e-4)
    for side, name in enumerate(("start", "end")):
        scores = np.take_along_axis(logits[side], order[side], 1)
        np.testing.assert_allclose(outputs[f"{name}_scores"], scores, rtol=1e-4, atol=1e-4)
        at = np.take_along_axis(logits[side], outputs[f"{name}_positions"], 1)
        np.testing.assert_allclose(at, scores, rtol=1e-4, atol=1e-4)


def test_files_give_the_metrics(task, params):
    metrics, outputs = evaluation.Evaluator(task, Partition.make())(params)
    files = {name: json.loads(content) for name, content in task.prediction_files(outputs).items()}
    questions = task.examples("heldout").questions
    scored = squad_answers.evaluate(questions, files["predictions.json"])
    assert scored["missing_filled_with_empty"] == 0
    assert (
        all(metrics[name] == scored[name] for name in scored.keys() & metrics.keys())
        and "f1" in metrics
    )
    assert set(files["nbest_predictions.json"]) == {question.id for question in questions}
    if task.config.squad.version == "v1.1":
        assert set(files) == {"predictions.json", "nbest_predictions.json"}
        assert list(metrics) == ["exact", "f1", "total", "loss", "accuracy", "windows"]
        for name, answers in files["nbest_predictions.json"].items():
            assert answers[0]["text"] == files["predictions.json"][name] and len(answers) <= 5
    else:
        assert {"HasAns_f1", "NoAns_exact", "best_f1", "best_f1_thresh"} < set(metrics)
        odds = files["null_odds.json"]
        assert all(
            (odds[name] > 0) == (not text) for name, text in files["predictions.json"].items()
        )
        assert metrics["best_f1"] >= metrics["f1"] and metrics["best_exact"] >= metrics["exact"]


def oracle(task):
    """Outputs that point at each window's target."""
    batch = all_windows(task, "heldout")
    null = np.where(batch["start"] == 0, 10.0, -10.0).astype(np.float32)
    scores = np.full((len(null), 1), 5, np.float32)
    places = {f"{side}_positions": batch[side][:, None] for side in ("start", "end")}
    return {"start_scores": scores, "end_scores": scores, "null": null} | places


SUMS = dict.fromkeys(("loss", "accuracy", "examples"), (3.0, 6.0))


def test_an_oracle(folder):
    task = make(folder)
    count = len(task.examples("heldout").questions)
    scores = {"exact": 100, "f1": 100, "total": count, "loss": 0.5, "accuracy": 0.5, "windows": 6}
    assert task.summarize(SUMS, oracle(task)) == scores
    assert set(task.eval_metrics) == {"exact", "f1", "loss", "accuracy"}
    passages = {question.id: question.context for question in task.examples("heldout").questions}
    f1 = squad_answers.evaluate(task.examples("heldout").questions, passages)["f1"]
    assert (
        task.baselines(SUMS) == [("the whole passage as the answer", {"exact": 0, "f1": f1})]
        and 0 < f1 < 50
    )
    task = make(folder, "v2.0")
    metrics = task.summarize(SUMS, oracle(task))
    assert len(task.eval_metrics) == 10 and set(task.eval_metrics) < set(metrics)
    questions = task.examples("heldout").questions
    share = 100 * sum(question.impossible for question in questions) / len(questions)
    assert (
        task.baselines(SUMS) == [("no answer to any question", {"exact": share, "f1": share})]
        and 0 < share < 100
    )
    assert (
        task.format_metrics({"exact": 50.0, "accuracy": 0.5, "loss": 0.5})
        == "exact 50.0%  accuracy 50.0%  loss 0.5"
    )
    assert (
        metrics["exact"] == metrics["HasAns_f1"] == metrics["NoAns_f1"] == metrics["best_f1"] == 100
    )


def test_what_is_reported(folder, tmp_path, capsys):
    context = "red\u00ad \u200d green greenish"
    entries = [
        entry(name, "which?", context, text)
        for name, text in (("a", "red"), ("b", "gr"), ("c", "\u200d"))
    ]
    wrong = entry("d", "which?", context, "red") | {
        "answers": [{"text": "blue", "answer_start": 0}]
    }
    path = write(tmp_path / "a.json", article("x", context, *entries, wrong))
    task = make(folder, heldout=str(folder / "v1.1.json"))
    task.config.data.update(train=str(path), max_bad_records=1)
    assert [question.id for question in task.examples("train").questions] == ["a", "b"]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"train questions: 1 left out, the first: {path}, question d: ")
    assert lines[1:] == [
        "train questions: 1 of 3 have an answer that no token holds, and are left out"
    ]
    make(folder).examples("heldout")
    assert not capsys.readouterr().err


def test_too_short_a_length(folder):
    task = make(folder)
    task.config.model.length = 15
    with pytest.raises(DataError, match="^config.model.length: length=15 .*squad.max_query=12"):
        task.evaluation_examples()


def test_having_no_answer_needs_a_model_that_looks_ahead(folder):
    task = make(folder, "v2.0")
    task.config.model.causal = True
    assert "squad.version=v1.1" in raised(ConfigError, task.shapes)
    task.config.squad.version = "v1.1"
    assert task.shapes()


@pytest.mark.parametrize(("threshold", "first"), [(-1e9, True), (1e9, False)])
def test_predictions_follow_the_threshold(folder, params, threshold, first):
    task = make(folder, "v2.0")
    task.config.squad.null_threshold = threshold
    context = colours(0)["paragraphs"][0]["context"]
    [[found]] = task.predict(params, [f"What is the road?\t{context}"], top=3)
    assert (found[0][0] == "(no answer)") == first
    [[found]] = task.predict(params, [f"What is the road?\t{context}"], top=500)
    assert len(found) > 3 and all(text in context or text == "(no answer)" for text, _ in found)
    assert sum(share for _, share in found) == pytest.approx(1)
    for line in ("no tab", "no passage\t", "\tno question"):
        told = raised(RunError, task.predict, params, [line])
        assert told.startswith("give a question and a passage with a tab between them, not ")
