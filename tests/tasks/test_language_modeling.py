"""What masked and causal language models share: the loss, counts of tokens, trivial models,
and documents of a window that do not see each other."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE
from gmlp_flax.errors import ConfigError
from gmlp_flax.tasks.causal_lm import CausalLanguageModeling
from gmlp_flax.tasks.language_modeling import LanguageModeling, cross_entropy
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from tests.failures import raised
from tests.training import tiny

BLOCKS = {
    "transformer": {"block": "transformer", "heads": 2, "positions": "relative"},
    "convolution": {"block": "convolution", "heads": 2, "kernel_widths": (3,)},
}


def test_cross_entropy_against_numpy():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 30, (3, 5, 11))
    targets = rng.integers(0, 11, (3, 5))
    weights = rng.integers(0, 2, (3, 5)).astype(np.float32)
    sums = cross_entropy(np.float32(logits), targets, weights)
    shifted = logits - logits.max(-1, keepdims=True)
    normalised = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    losses = -np.take_along_axis(normalised, targets[..., None], -1)[..., 0]
    assert float(sums["loss"][0]) == pytest.approx((losses * weights).sum(), rel=1e-5)
    assert float(sums["accuracy"][0]) == ((logits.argmax(-1) == targets) * weights).sum()
    assert float(sums["loss"][1]) == float(sums["accuracy"][1]) == weights.sum()


def test_a_logit_of_minus_infinity_beside_the_target_costs_nothing():
    logits = np.float32([[0.0, -np.inf, 0.0]])
    sums = cross_entropy(logits, np.array([2]), np.ones(1, np.float32))
    assert float(sums["loss"][0]) == pytest.approx(math.log(2))


def test_tokens_are_counted_by_their_weights(masked):
    task, _ = masked
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, 320, (4, 16))
    weights = rng.random((4, 16)).astype(np.float32)
    counts, total = jax.jit(task.token_counts)(tokens, weights)
    expected = np.bincount(tokens.ravel(), weights.ravel(), minlength=320)
    np.testing.assert_allclose(counts, expected, rtol=1e-6)
    assert float(total) == pytest.approx(weights.sum())


def test_frequencies_add_one_to_each_token_that_may_be_a_target(masked):
    task, data = masked
    counts = data.token_counts
    shares = task.frequencies(data)
    special = list(task.tokenizer.special_ids)
    assert not shares[special].any()
    assert shares.sum() == pytest.approx(1)
    ordinary = np.delete(np.arange(320), special)
    total = counts[ordinary].sum() + len(ordinary)
    np.testing.assert_allclose(shares[ordinary], (counts[ordinary] + 1) / total)
    assert counts.max() > 100  # the text was counted


def test_a_token_that_is_no_target_costs_the_baseline_nothing(masked):
    task, data = masked
    shares = task.frequencies(data)
    targets = np.zeros(320)
    targets[7] = 3
    [baseline] = LanguageModeling.baselines(task, {"targets": (targets, 3.0)}, data)
    assert baseline.metrics["perplexity"] == pytest.approx(1 / shares[7])


@pytest.mark.parametrize(
    ("kind", "tokens"), [(MaskedLanguageModeling, 16), (CausalLanguageModeling, 17)]
)
def test_sizes_of_examples(tmp_path, kind, tokens):
    """A causal model's window has a token more than the model reads."""
    task = kind(tiny.text_config(tmp_path))
    assert task.units_per_example == 16
    assert task.example_shapes()["tokens"][0] == (tokens,)
    assert task.unit == "tokens"


def test_a_pretrained_model_shares_its_tokenizer_alone():
    assert LanguageModeling.inheritance.files == (TOKENIZER_FILE,)
    assert not LanguageModeling.inheritance.model


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (MaskedLanguageModeling, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]),
        (CausalLanguageModeling, ["[PAD]", "[CLS]", "[MASK]"]),
    ],
)
def test_what_is_never_a_target(tmp_path, kind, names):
    """A causal model predicts [SEP], which ends a document."""
    task = kind(tiny.text_config(tmp_path), {TOKENIZER_FILE: b"bytes\n"})
    assert [task.tokenizer.piece(token) for token in task.unpredicted] == names


def masking_config(folder, block, kind):
    config = tiny.text_config(folder, **BLOCKS[block])
    if kind is CausalLanguageModeling:
        config = gmlp_config.changed(config, "causal_lm")
        config.model.causal = True
    config.data.mask_documents = True
    gmlp_config.validate(config)
    return config


def large_params(task):
    return jax.tree.map(lambda leaf: 3 * leaf, jax.jit(task.init)(jax.random.key(0)))


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        ("transformer", MaskedLanguageModeling),
        ("convolution", MaskedLanguageModeling),
        ("transformer", CausalLanguageModeling),
    ],
)
def test_losses_do_not_depend_on_other_documents(block, kind, tmp_path):
    """Of windows of two documents that end at the eighth token: with other tokens in one of them,
    the logits of the other are the same to the last bit."""
    config = masking_config(tmp_path, block, kind)
    task, _ = tiny.open_task(config, tmp_path)
    params = large_params(task)
    tokens = np.random.default_rng(0).integers(5, 300, (2, 16)).astype(np.int32)
    tokens[:, 0] = task.tokenizer.cls_id
    tokens[:, [7, 15]] = task.tokenizer.sep_id
    other = tokens.copy()
    other[:, 1:7] = 77

    @jax.jit
    def logits(tokens):
        mask = task.padding_mask(tokens)
        hidden = task.bind(params).hidden(tokens, padding_mask=mask)
        return task.bind(params).logits(hidden)

    first = logits(tokens)
    second = logits(other)
    np.testing.assert_array_equal(first[:, 8:], second[:, 8:])
    assert np.abs(first[:, :8] - second[:, :8]).max() > 1e-3
    config.data.mask_documents = False
    task, _ = tiny.open_task(config, tmp_path)
    unmasked = jax.jit(lambda tokens: task.bind(params).hidden(tokens))
    assert np.abs(unmasked(tokens) - unmasked(other))[:, 8:].max() > 1e-4


def test_the_documents_of_a_window(tmp_path):
    config = masking_config(tmp_path, "transformer", MaskedLanguageModeling)
    task, _ = tiny.open_task(config, tmp_path)
    ids = task.tokenizer
    tokens = jnp.array([[ids.cls_id, 9, 9, ids.sep_id, 9, ids.sep_id, ids.sep_id, 9, 0, 0]])
    assert task.padding_mask(tokens).tolist() == [[1, 1, 1, 1, 2, 2, 3, 4, 0, 0]]


@pytest.mark.parametrize("kind", [MaskedLanguageModeling, CausalLanguageModeling])
def test_training_sees_the_mask(kind, tmp_path):
    """The loss of a batch differs from that without it."""
    losses = []
    for mask_documents in (True, False):
        config = masking_config(tmp_path, "transformer", kind)
        config.data.mask_documents = mask_documents
        task, data = tiny.open_task(config, tmp_path)
        params = large_params(task)
        with data.train_batches(0, 0, 1) as batches:
            batch = next(iter(batches))
        keys = jax.random.split(jax.random.key(0), len(batch["tokens"]))
        loss, _ = task.loss(params, batch | {"key": keys})
        losses.append(float(loss))
    assert abs(losses[0] / losses[1] - 1) > 1e-4


def test_blocks_that_mix_all_tokens_are_refused(tmp_path):
    config = tiny.text_config(tmp_path)
    config.data.mask_documents = True
    message = raised(ConfigError, gmlp_config.validate, config)
    assert "config.data.mask_documents" in message
    assert "transformer" in message
