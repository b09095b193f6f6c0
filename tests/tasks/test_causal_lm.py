"""Next-token prediction: its loss, its metrics, what it reads, and its errors."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.tasks.causal_lm import CausalLanguageModeling
from gmlp_flax.tasks.inference.prediction import Answer, Settings
from gmlp_flax.tasks.inference.sampling import Sampling
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition
from tests.failures import raised
from tests.tasks import by_hand
from tests.training import tiny

KINDS = {
    "gmlp": {},
    "amlp": {"d_attn": 4},
    "transformer": {"block": "transformer", "heads": 2, "positions": "relative"},
}


def causal_config(folder, **model):
    """A config of a causal model of 16 tokens."""
    config = gmlp_config.changed(tiny.text_config(folder, **model), "causal_lm")
    config.model.causal = True
    return config


def large_params(task):
    """Initial parameters, scaled so that the outputs for different sequences differ clearly."""
    return by_hand.scaled_params(task, 3)


@pytest.fixture(scope="module", params=KINDS)
def causal(request, tmp_path_factory):
    """A task, its data and parameters."""
    folder = tmp_path_factory.mktemp("causal")
    config = causal_config(folder, **KINDS[request.param])
    task, data = tiny.open_task(config, folder)
    return task, data, large_params(task)


def heldout_windows(data) -> np.ndarray:
    """The tokens of all held-out windows."""
    windows = by_hand.all_examples(data.windows(HELDOUT))
    return by_hand.stacked(windows)["tokens"]


def test_each_token_of_the_text_is_a_target_once(causal):
    task, data, _ = causal
    windows = heldout_windows(data)
    tokenizer = task.tokenizer
    window_length = windows.shape[1]
    assert window_length == task.length + 1
    firsts = windows[:, 0]
    assert (firsts == tokenizer.cls_id).all()
    text = data.windows(HELDOUT).prepared
    targets = windows[:, 1:]
    is_text = targets != tokenizer.pad_id
    expected = text.read(0, text.tokens)
    assert_array_equal(targets[is_text], expected)
    # [SEP] is only at the ends of documents.
    ends = windows == tokenizer.sep_id
    assert ends.sum() == text.documents


def test_evaluation_against_numpy(causal):
    """The last window and the last batch are padded."""
    task, data, params = causal
    metrics, _ = by_hand.evaluate(task, data, params)
    windows = heldout_windows(data)
    targets = windows[:, 1:]
    is_text = targets != task.tokenizer.pad_id
    assert not is_text.all()
    assert len(windows) % 8
    apply = jax.jit(task.apply)
    inputs = windows[:, :-1]
    logits = apply(params, inputs)
    losses = by_hand.cross_entropies(logits, targets)[is_text]
    hits = by_hand.are_hits(logits, targets)[is_text]
    assert metrics["predictions"] == len(losses)
    assert metrics["examples"] == len(windows)
    loss = losses.mean()
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    perplexity = math.exp(loss)
    assert metrics["perplexity"] == pytest.approx(perplexity, rel=1e-4)
    accuracy = hits.mean()
    assert metrics["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    text_tokens = targets[is_text].tolist()
    text = task.tokenizer.decode(text_tokens)
    size = len(text.encode())
    bits = bits_per_byte(losses, size)
    assert metrics["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    names = {*task.eval_metrics, "predictions", "examples"}
    assert names == set(metrics)


def ar_hits(windows: np.ndarray, tokenizer, frequent: set[int]) -> np.ndarray:
    """Whether each token repeats an earlier bigram of its window, by a loop: bool like windows."""
    special = set(tokenizer.special_ids)
    hits = np.zeros(windows.shape, bool)
    for row, window in enumerate(windows.tolist()):
        earlier = set()
        for position in range(1, len(window)):
            first = window[position - 1]
            second = window[position]
            bigram = (first, second)
            bigram_number = first * tokenizer.vocab_size + second
            is_frequent = bigram_number in frequent
            is_ordinary = special.isdisjoint(bigram)
            hits[row, position] = bigram in earlier and is_ordinary and not is_frequent
            earlier.add(bigram)
    return hits


def test_ar_hits_of_an_evaluation_against_a_loop(causal):
    """Each held-out token counts once, for any batch size."""
    task, data, params = causal
    windows = heldout_windows(data)
    config = gmlp_config.mutable_copy(task.config)
    config.eval.recall_slices = True
    config.eval.frequent_bigrams = 20
    frequent_bigrams = sliced_data(config, data).frequent_bigrams
    frequent = set(frequent_bigrams.tolist())
    assert frequent
    hits = ar_hits(windows, task.tokenizer, frequent)[:, 1:]
    targets = windows[:, 1:]
    inputs = windows[:, :-1]
    logits = task.forward(params, inputs)
    losses = by_hand.cross_entropies(logits, targets)
    are_right = by_hand.are_hits(logits, targets)
    count = hits.sum()
    assert count > 3
    mean_loss = losses[hits].mean()
    accuracy = are_right[hits].mean()
    for batch_size in (3, 64):
        config.eval.batch_size = batch_size
        sliced = CausalLanguageModeling(config, task.files)
        metrics, _ = by_hand.evaluate(sliced, sliced_data(config, data), params)
        assert metrics["recall_predictions"] == count
        others = metrics["predictions"] - count
        assert metrics["other_predictions"] == others
        recall_loss = math.log(metrics["recall_perplexity"])
        assert recall_loss == pytest.approx(mean_loss, rel=1e-4)
        assert metrics["recall_accuracy"] == pytest.approx(accuracy)


def sliced_data(config, data):
    """The same data with another config."""
    return type(data)(config, data.run_files)


def bits_per_byte(losses: np.ndarray, size: int) -> float:
    """From losses in nats and the number of bytes of the text."""
    return losses.sum() / math.log(2) / size


def test_baseline_counts_the_ends_of_documents(causal):
    task, data, params = causal
    evaluator = Evaluator(task, data, Partition.make())
    evaluator(params)
    [baseline] = evaluator.baselines()
    text = data.windows(TRAIN).prepared
    tokens = text.read(0, text.tokens)
    counts = np.bincount(tokens, minlength=320) + 1.0
    counts[[0, 2, 4]] = 0
    shares = counts / counts.sum()
    targets = heldout_windows(data)[:, 1:]
    is_text = targets != 0
    target_shares = shares[targets[is_text]]
    losses = -np.log(target_shares)
    perplexity = math.exp(losses.mean())
    assert baseline.metrics["perplexity"] == pytest.approx(perplexity, rel=1e-5)
    sizes = task.tokenizer.byte_counts()[targets]
    bits = bits_per_byte(losses, sizes.sum())
    assert baseline.metrics["bits_per_byte"] == pytest.approx(bits, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_loss_has_no_gradient_from_future_tokens(kind, tmp_path):
    """Measured by the gradient for a table of positions, of which each row enters only at its
    position: the losses up to a position depend on all rows before it and on none after it."""
    model = KINDS[kind] | {"positions": "absolute"}
    task = CausalLanguageModeling(causal_config(tmp_path, **model))
    params = large_params(task)
    rng = np.random.default_rng(0)
    size = (3, task.length + 1)
    text = rng.integers(5, 320, size)
    keys = by_hand.keys(3)

    @jax.jit
    @jax.grad
    def gradient(params, tokens):
        batch = {"tokens": tokens, "key": keys}
        loss, _ = task.loss(params, batch)
        return loss

    positions = np.arange(task.length + 1)
    for count in (1, 7, task.length):
        # [PAD] is read but not predicted.
        tokens = np.where(positions <= count, text, 0)
        gradients = gradient(params, tokens)
        table = np.asarray(gradients["positions"]["table"])
        assert (table[count:] == 0).all()
        table_before = table[:count]
        before = np.abs(table_before).max(axis=1)
        assert (before > 0).all()


def test_bits_per_byte_of_an_untrained_byte_model(tmp_path):
    """Over a whole evaluation: a byte costs a little more than 8 bits for a model of zeros."""
    config = causal_config(tmp_path, vocab_size=261)
    config.data.tokenizer = "bytes"
    task, data = tiny.open_task(config, tmp_path / "run")
    params = jax.tree.map(jnp.zeros_like, task.shapes())
    metrics, _ = by_hand.evaluate(task, data, params)
    text = data.windows(HELDOUT).prepared
    size = text.tokens - text.documents
    expected = math.log2(261) * text.tokens / size
    assert metrics["bits_per_byte"] == pytest.approx(expected, rel=1e-5)
    assert 8 < expected < 8.3
    assert metrics["perplexity"] == pytest.approx(261, rel=1e-4)
    assert data.assets() == {"tokenizer.model": b"bytes\n"}


def most_likely_pieces(task, params, ids: list[int], count: int) -> list[str]:
    """The most likely pieces after some tokens."""
    tokens = np.array([ids])
    logits = task.apply(params, tokens)
    last_logits = logits[0, -1]
    best = by_hand.largest(last_logits, count)
    pieces = []
    for token in best.tolist():
        pieces.append(task.tokenizer.piece(token))
    return pieces


def test_most_likely_next_tokens(causal):
    task, _, params = causal
    tokenizer = task.tokenizer
    ids = [tokenizer.cls_id, *tokenizer.encode("the one")]
    settings = Settings(top=3)
    [predictions] = task.predictor.predict(params, ["the one"], settings)
    [candidates] = predictions
    expected = most_likely_pieces(task, params, ids, 3)
    assert by_hand.names_of(candidates) == expected
    assert task.predictor.label(1) == "next"
    [encoded] = task.predictor.encode(["the one"])
    encoded_ids = encoded[: len(ids)]
    assert encoded_ids.tolist() == ids


def test_end_of_a_long_line_is_read(causal):
    task, _, params = causal
    words = "the of and to in is that it for on with as was at by this from which"
    settings = Settings(top=4)
    [answer] = task.predictor.answers(params, [words], settings)
    tokens = task.tokenizer.encode(words)
    assert len(tokens) > 15
    assert f"{len(tokens)} tokens" in answer.note
    assert "last 15" in answer.note
    ids = [task.tokenizer.cls_id, *tokens[-15:]]
    [candidates] = answer.predictions
    expected = most_likely_pieces(task, params, ids, 4)
    assert by_hand.names_of(candidates) == expected
    assert task.predictor.note_of_prompt(15) == ""


def test_mask_is_refused(causal):
    task, _, params = causal
    predictor = task.predictor
    message = raised(RunError, predictor.predict, params, ["the [MASK]"])
    assert "[MASK]" in message
    message = raised(RunError, predictor.generate, params, "[MASK]", Sampling())
    assert "[MASK]" in message


def test_continued_text_follows_its_prompt(causal):
    task, _, _ = causal
    predictor = task.predictor
    continued = Answer("the", [], text=" one")
    assert predictor.format(continued) == "the one"
    ranked = Answer("the", [[("one", 0.5)]])
    assert predictor.format(ranked) == "the\n  next: one 50.0%"


@pytest.mark.parametrize(
    ("task", "model", "expected"),
    [
        (
            "causal_lm",
            {"causal": False},
            "config.model.causal is False: set it to True",
        ),
        (
            "causal_lm",
            {"block": "mixer", "causal": True},
            "'mixer', which mixes all tokens",
        ),
        (
            "masked_lm",
            {"causal": True},
            "'masked_lm' and config.model.causal is True",
        ),
        (
            "text_classification",
            {"causal": True, "pool": "cls"},
            "config.model.pool is 'cls', and the model is causal",
        ),
    ],
)
def test_contradicting_keys_are_refused(tmp_path, task, model, expected):
    block = model.get("block", "gmlp")
    text_config = tiny.text_config(tmp_path, block=block)
    config = gmlp_config.changed(text_config, task)
    config.model.update(model)
    assert expected in raised(ConfigError, gmlp_config.validate, config)


def test_causal_classifier_may_pool_the_mean(tmp_path):
    config = gmlp_config.changed(tiny.text_config(tmp_path), "text_classification")
    config.model.update(causal=True, pool="mean")
    gmlp_config.validate(config)
