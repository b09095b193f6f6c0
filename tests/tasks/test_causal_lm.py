"""Next-token prediction: its loss, its metrics, what it sees, and its mistakes."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.tasks.causal_lm import CausalLanguageModeling
from gmlp_flax.tasks.generation import Sampling
from gmlp_flax.training import evaluation
from gmlp_flax.training.partition import Partition
from tests.failures import raised
from tests.training import tiny

KINDS = {
    "gmlp": {},
    "amlp": {"d_attn": 4},
    "transformer": {"block": "transformer", "heads": 2, "positions": "relative"},
}


def causal_config(folder, **model):
    config = gmlp_config.changed(tiny.text_config(folder, **model), "causal_lm")
    config.model.causal = True
    return config


@pytest.fixture(scope="module", params=KINDS)
def task(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("causal")
    return CausalLanguageModeling(causal_config(folder, **KINDS[request.param]), str(folder))


@pytest.fixture(scope="module")
def params(task):
    """Fresh ones, made large enough for the model to tell sequences apart."""
    return jax.tree.map(lambda x: 3 * x, jax.jit(task.init)(jax.random.key(0)))


def held_out(task):
    source = task.windows("heldout")
    return np.stack([source[index]["tokens"] for index in range(len(source))])


def test_every_token_of_the_text_is_a_target_once(task):
    windows, pad = held_out(task), task.tokenizer.pad_id
    assert windows.shape[1] == task.length + 1 and (windows[:, 0] == task.tokenizer.cls_id).all()
    text = task.windows("heldout").prepared
    assert windows[:, 1:][windows[:, 1:] != pad].tolist() == text.read(0, text.tokens).tolist()
    # A [SEP] stands where a document ends, and nowhere else.
    assert (windows == task.tokenizer.sep_id).sum() == text.documents


def test_evaluation_against_numpy(task, params):
    """Perplexity of tokens, and bits for each byte of the text; the last window and the last batch
    are padded."""
    metrics, _ = evaluation.Evaluator(task, Partition.make())(params)
    windows = held_out(task)
    assert (windows == task.tokenizer.pad_id).any() and len(windows) % 8
    logits = np.asarray(jax.jit(task.apply)(params, windows[:, :-1]), np.float64)
    losses, hits, text = [], [], []
    for window, rows in zip(windows, logits, strict=True):
        for target, row in zip(window[1:], rows, strict=True):
            if target != task.tokenizer.pad_id:
                losses.append(math.log(np.exp(row - row.max()).sum()) + row.max() - row[target])
                hits.append(row.argmax() == target)
                text.append(int(target))
    # in one line: each begins with a space that the first one lacks
    documents = task.tokenizer.decode(text)
    assert metrics["predictions"] == len(losses) and metrics["examples"] == len(windows)
    assert metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-4)
    assert metrics["accuracy"] == pytest.approx(np.mean(hits), abs=1e-6)
    size = len(documents.encode()) + 1
    assert metrics["bits_per_byte"] == pytest.approx(sum(losses) / math.log(2) / size, rel=1e-5)
    assert {*task.eval_metrics, "predictions", "examples"} == set(metrics)


def test_the_baseline_has_seen_the_ends_of_documents(task, params):
    evaluator = evaluation.Evaluator(task, Partition.make())
    evaluator(params)
    [found] = evaluator.baselines()
    text = task.windows("train").prepared
    counts = np.bincount(text.read(0, text.tokens), minlength=320) + 1.0
    counts[[0, 2, 4]] = 0
    targets = held_out(task)[:, 1:]
    losses = -np.log(counts[targets[targets != 0]] / counts.sum())
    assert found.metrics["perplexity"] == pytest.approx(math.exp(losses.mean()), rel=1e-5)
    size = task.tokenizer.byte_counts()[targets].sum()
    assert found.metrics["bits_per_byte"] == pytest.approx(
        losses.sum() / math.log(2) / size, rel=1e-5
    )


def batch_of(tokens):
    return {
        "tokens": np.asarray(tokens, np.int32),
        "key": jax.random.split(jax.random.key(0), len(tokens)),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_the_loss_from_the_future_is_exactly_0(kind, tmp_path):
    """Seen through a table of positions, of which each row enters at its place alone: losses up to
    a place move no row behind it, and all rows before."""
    model = KINDS[kind] | {"positions": "absolute"}
    task = CausalLanguageModeling.without_data(causal_config(tmp_path, **model))
    params = jax.tree.map(lambda x: 3 * x, jax.jit(task.init)(jax.random.key(0)))
    text = np.random.default_rng(0).integers(5, 320, (3, task.length + 1))
    gradient = jax.jit(jax.grad(lambda params, batch: task.loss(params, batch)[0]))
    for places in (1, 7, task.length):
        # [PAD] is read, but not predicted
        tokens = np.where(np.arange(task.length + 1) <= places, text, 0)
        table = np.asarray(gradient(params, batch_of(tokens))["positions"]["table"])
        assert (table[places:] == 0).all() and (np.abs(table[:places]).max(axis=1) > 0).all()


def test_documents_in_windows(tmp_path):
    """A window holds parts of several; its end is the text's."""
    (tmp_path / "text.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in ("abc", "d", "efghijk"))
    )
    config = causal_config(tmp_path, length=6)
    config.data.update(train=str(tmp_path / "text.jsonl"), tokenizer="bytes")
    task = CausalLanguageModeling(config, str(tmp_path / "run"))
    config.data.heldout = config.data.train
    letters = {"[CLS]": "<", "[SEP]": ">", "[PAD]": "_"}
    windows = [[task.tokenizer.piece(token) for token in row] for row in held_out(task)]
    assert ["".join(letters.get(piece, piece) for piece in row) for row in windows] == [
        "<abc>d>",
        "<efghij",
        "<k>____",
    ]


def test_bytes_need_no_training(tmp_path):
    """A whole evaluation: a byte costs 8 bits and a little for a model that knows nothing."""
    config = causal_config(tmp_path)
    config.data.tokenizer, config.model.vocab_size = "bytes", 261
    task = CausalLanguageModeling(config, str(tmp_path / "run"))
    metrics, _ = evaluation.Evaluator(task, Partition.make())(
        jax.tree.map(jnp.zeros_like, task.shapes())
    )
    text = task.windows("heldout").prepared
    expected = math.log2(261) * text.tokens / (text.tokens - text.documents)
    assert metrics["bits_per_byte"] == pytest.approx(expected, rel=1e-5) and 8 < expected < 8.3
    assert metrics["perplexity"] == pytest.approx(261, rel=1e-4) and task.assets() == {
        "tokenizer.model": b"bytes\n"
    }


def test_the_likeliest_next_tokens(task, params):
    ((ranked,),) = task.predict(params, ["the one"], top=3)
    ids = [task.tokenizer.cls_id, *task.tokenizer.encode("the one")]
    logits = np.asarray(task.apply(params, np.array([ids])))[0, -1]
    assert [piece for piece, _ in ranked] == [
        task.tokenizer.piece(int(i)) for i in np.argsort(-logits)[:3]
    ]
    for call in (
        lambda: task.predict(params, ["the [MASK]"]),
        lambda: task.generate(params, "[MASK]", Sampling()),
    ):
        assert "[MASK]" in raised(RunError, call)


def test_what_a_config_may_not_be(tmp_path):
    for message, task, model in (
        ("config.model.causal is False: set it to True", "causal_lm", {"causal": False}),
        ("'mixer', which mixes all tokens", "causal_lm", {"block": "mixer", "causal": True}),
        ("'masked_lm' and config.model.causal is True", "masked_lm", {"causal": True}),
    ):
        config = gmlp_config.changed(
            tiny.text_config(tmp_path, block=model.get("block", "gmlp")), task
        )
        config.model.update(model)
        assert message in raised(ConfigError, gmlp_config.validate, config)
    config = gmlp_config.changed(tiny.text_config(tmp_path), "text_classification")
    config.model.update(causal=True, pool="cls")
    refused = tasks.find("text_classification").without_data(config).shapes
    assert "config.model.pool is 'cls', and the model is causal" in raised(ConfigError, refused)
    config.model.pool = "mean"
    assert tasks.find("text_classification").without_data(config).shapes()
