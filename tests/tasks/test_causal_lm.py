"""Next-token prediction: its loss, its metrics, what it sees, and its mistakes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.tasks.causal_lm import CausalLanguageModeling
from gmlp_flax.tasks.generation import Sampling
from gmlp_flax.tasks.prediction import Answer, Settings
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition
from tests.failures import raised
from tests.training import tiny

KINDS = {
    "gmlp": {},
    "amlp": {"d_attn": 4},
    "transformer": {"block": "transformer", "heads": 2, "positions": "relative"},
}


def causal_config(folder, **model):
    """Of a causal model of 16 tokens."""
    config = gmlp_config.changed(tiny.text_config(folder, **model), "causal_lm")
    config.model.causal = True
    return config


def large_params(task):
    """Fresh ones, made large enough for the model to tell sequences apart."""
    return jax.tree.map(lambda x: 3 * x, jax.jit(task.init)(jax.random.key(0)))


@pytest.fixture(scope="module", params=KINDS)
def causal(request, tmp_path_factory):
    """A task, its data and parameters."""
    folder = tmp_path_factory.mktemp("causal")
    task, data = tiny.open_task(causal_config(folder, **KINDS[request.param]), folder)
    return task, data, large_params(task)


def heldout_windows(data) -> np.ndarray:
    """The tokens of all held-out windows."""
    windows = data.windows(HELDOUT)
    return np.stack([windows[index]["tokens"] for index in range(len(windows))])


def test_every_token_of_the_text_is_a_target_once(causal):
    task, data, _ = causal
    windows = heldout_windows(data)
    tokenizer = task.tokenizer
    assert windows.shape[1] == task.length + 1
    assert (windows[:, 0] == tokenizer.cls_id).all()
    text = data.windows(HELDOUT).prepared
    targets = windows[:, 1:]
    assert targets[targets != tokenizer.pad_id].tolist() == text.read(0, text.tokens).tolist()
    # A [SEP] stands where a document ends, and nowhere else.
    assert (windows == tokenizer.sep_id).sum() == text.documents


def losses_by_hand(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """In nats, float64 [batch, tokens]."""
    exact = np.asarray(logits, np.float64)
    largest = exact.max(-1, keepdims=True)
    normalised = exact - largest - np.log(np.exp(exact - largest).sum(-1, keepdims=True))
    return -np.take_along_axis(normalised, targets[..., None], -1)[..., 0]


def test_evaluation_against_numpy(causal):
    """Perplexity of tokens, and bits for each byte of the text; the last window and the last batch
    are padded."""
    task, data, params = causal
    metrics, _ = Evaluator(task, data, Partition.make())(params)
    windows = heldout_windows(data)
    targets = windows[:, 1:]
    is_text = targets != task.tokenizer.pad_id
    assert not is_text.all()
    assert len(windows) % 8
    logits = jax.jit(task.apply)(params, windows[:, :-1])
    losses = losses_by_hand(logits, targets)[is_text]
    hits = (np.asarray(logits).argmax(-1) == targets)[is_text]
    assert (metrics["predictions"], metrics["examples"]) == (len(losses), len(windows))
    assert metrics["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(losses.mean()), rel=1e-4)
    assert metrics["accuracy"] == pytest.approx(hits.mean(), abs=1e-6)
    text = task.tokenizer.decode(targets[is_text].tolist())
    size = len(text.encode())
    assert metrics["bits_per_byte"] == pytest.approx(losses.sum() / math.log(2) / size, rel=1e-5)
    assert {*task.eval_metrics, "predictions", "examples"} == set(metrics)


def test_the_baseline_has_seen_the_ends_of_documents(causal):
    task, data, params = causal
    evaluator = Evaluator(task, data, Partition.make())
    evaluator(params)
    [found] = evaluator.baselines()
    text = data.windows(TRAIN).prepared
    counts = np.bincount(text.read(0, text.tokens), minlength=320) + 1.0
    counts[[0, 2, 4]] = 0
    targets = heldout_windows(data)[:, 1:]
    losses = -np.log(counts[targets[targets != 0]] / counts.sum())
    assert found.metrics["perplexity"] == pytest.approx(math.exp(losses.mean()), rel=1e-5)
    size = task.tokenizer.byte_counts()[targets].sum()
    bits = losses.sum() / math.log(2) / size
    assert found.metrics["bits_per_byte"] == pytest.approx(bits, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_the_loss_from_the_future_is_exactly_0(kind, tmp_path):
    """Seen through a table of positions, of which each row enters at its place alone: losses up to
    a place move no row behind it, and all rows before."""
    model = KINDS[kind] | {"positions": "absolute"}
    task = CausalLanguageModeling(causal_config(tmp_path, **model))
    params = large_params(task)
    text = np.random.default_rng(0).integers(5, 320, (3, task.length + 1))
    keys = jax.random.split(jax.random.key(0), 3)

    @jax.jit
    @jax.grad
    def gradient(params, tokens):
        return task.loss(params, {"tokens": tokens, "key": keys})[0]

    for places in (1, 7, task.length):
        # [PAD] is read, but not predicted.
        tokens = np.where(np.arange(task.length + 1) <= places, text, 0)
        table = np.asarray(gradient(params, tokens)["positions"]["table"])
        assert (table[places:] == 0).all()
        assert (np.abs(table[:places]).max(axis=1) > 0).all()


def test_bytes_need_no_training(tmp_path):
    """A whole evaluation: a byte costs 8 bits and a little for a model that knows nothing."""
    config = causal_config(tmp_path, vocab_size=261)
    config.data.tokenizer = "bytes"
    task, data = tiny.open_task(config, tmp_path / "run")
    params = jax.tree.map(jnp.zeros_like, task.shapes())
    metrics, _ = Evaluator(task, data, Partition.make())(params)
    text = data.windows(HELDOUT).prepared
    expected = math.log2(261) * text.tokens / (text.tokens - text.documents)
    assert metrics["bits_per_byte"] == pytest.approx(expected, rel=1e-5)
    assert 8 < expected < 8.3
    assert metrics["perplexity"] == pytest.approx(261, rel=1e-4)
    assert data.assets() == {"tokenizer.model": b"bytes\n"}


def test_the_likeliest_next_tokens(causal):
    task, _, params = causal
    [[ranked]] = task.predictor.predict(params, ["the one"], Settings(top=3))
    tokenizer = task.tokenizer
    ids = [tokenizer.cls_id, *tokenizer.encode("the one")]
    logits = np.asarray(task.apply(params, np.array([ids])))[0, -1]
    best = np.argsort(-logits)[:3]
    assert [piece for piece, _ in ranked] == [tokenizer.piece(int(token)) for token in best]
    assert task.predictor.label(1) == "next"
    assert task.predictor.encode(["the one"])[0, : len(ids)].tolist() == ids


def test_of_a_long_line_the_end_is_read(causal):
    task, _, params = causal
    words = "the of and to in is that it for on with as was at by this from which"
    [long] = task.predictor.answers(params, [words], Settings(top=4))
    tokens = len(task.tokenizer.encode(words))
    assert tokens > 15
    assert f"{tokens} tokens" in long.note
    assert "last 15" in long.note
    ids = [task.tokenizer.cls_id, *task.tokenizer.encode(words)[-15:]]
    logits = np.asarray(task.apply(params, np.array([ids])))[0, -1]
    best = np.argsort(-logits)[:4]
    expected = [task.tokenizer.piece(int(token)) for token in best]
    assert [piece for piece, _ in long.predictions[0]] == expected
    assert task.predictor.note_of_prompt(15) == ""


def test_a_mask_is_refused(causal):
    task, _, params = causal
    predictor = task.predictor
    assert "[MASK]" in raised(RunError, predictor.predict, params, ["the [MASK]"])
    assert "[MASK]" in raised(RunError, predictor.generate, params, "[MASK]", Sampling())


def test_a_continued_text_is_shown_behind_its_prompt(causal):
    predictor = causal[0].predictor
    assert predictor.format(Answer("the", [], text=" one")) == "the one"
    ranked = Answer("the", [[("one", 0.5)]])
    assert predictor.format(ranked) == "the\n  next: one 50.0%"


@pytest.mark.parametrize(
    ("task", "model", "expected"),
    [
        ("causal_lm", {"causal": False}, "config.model.causal is False: set it to True"),
        ("causal_lm", {"block": "mixer", "causal": True}, "'mixer', which mixes all tokens"),
        ("masked_lm", {"causal": True}, "'masked_lm' and config.model.causal is True"),
        (
            "text_classification",
            {"causal": True, "pool": "cls"},
            "config.model.pool is 'cls', and the model is causal",
        ),
    ],
)
def test_what_a_config_may_not_be(tmp_path, task, model, expected):
    block = model.get("block", "gmlp")
    config = gmlp_config.changed(tiny.text_config(tmp_path, block=block), task)
    config.model.update(model)
    assert expected in raised(ConfigError, gmlp_config.validate, config)


def test_a_causal_classifier_may_pool_the_mean(tmp_path):
    config = gmlp_config.changed(tiny.text_config(tmp_path), "text_classification")
    config.model.update(causal=True, pool="mean")
    gmlp_config.validate(config)
