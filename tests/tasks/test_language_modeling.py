"""What masked and causal language models share: the loss, counts of tokens, trivial models."""

import math

import jax
import numpy as np
import pytest

from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE
from gmlp_flax.tasks.causal_lm import CausalLanguageModeling
from gmlp_flax.tasks.language_modeling import LanguageModeling, cross_entropy
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from tests.training import tiny


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
