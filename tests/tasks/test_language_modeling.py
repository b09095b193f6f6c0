"""What masked and causal language models share: the loss, counts of tokens, baselines, and
documents of a window that do not depend on each other."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE
from gmlp_flax.errors import ConfigError
from gmlp_flax.tasks.causal_lm import CausalLanguageModeling
from gmlp_flax.tasks.language_modeling import LanguageModeling, cross_entropy
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from tests.failures import raised
from tests.tasks import by_hand
from tests.training import tiny

BLOCKS = {
    "transformer": {"block": "transformer", "heads": 2, "positions": "relative"},
    "convolution": {"block": "convolution", "heads": 2, "kernel_widths": (3,)},
}


def test_cross_entropy_against_numpy():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 30, (3, 5, 11))
    targets = rng.integers(0, 11, (3, 5))
    numbers = rng.integers(0, 2, (3, 5))
    weights = numbers.astype(np.float32)
    float_logits = np.float32(logits)
    sums = cross_entropy(float_logits, targets, weights)
    losses = weights * by_hand.cross_entropies(logits, targets)
    hits = weights * by_hand.are_hits(logits, targets)
    total_weight = weights.sum()
    loss = by_hand.total(sums, "loss")
    assert loss == pytest.approx(losses.sum(), rel=1e-5)
    assert by_hand.total(sums, "accuracy") == hits.sum()
    assert by_hand.weight(sums, "loss") == total_weight
    assert by_hand.weight(sums, "accuracy") == total_weight


def test_logit_of_minus_infinity_for_another_class_costs_nothing():
    logits = np.float32([[0.0, -np.inf, 0.0]])
    target = np.array([2])
    weight = np.ones(1, np.float32)
    sums = cross_entropy(logits, target, weight)
    loss = by_hand.total(sums, "loss")
    assert loss == pytest.approx(math.log(2))


def test_tokens_count_by_their_weights(masked):
    task, _ = masked
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, 320, (4, 16))
    numbers = rng.random((4, 16))
    weights = numbers.astype(np.float32)
    counts, total = jax.jit(task.token_counts)(tokens, weights)
    flat_weights = weights.ravel()
    expected = np.bincount(tokens.ravel(), flat_weights, minlength=320)
    assert_allclose(counts, expected, rtol=1e-6)
    assert float(total) == pytest.approx(weights.sum())


def test_frequencies_are_smoothed_by_one_for_possible_targets(masked):
    task, data = masked
    counts = data.token_counts
    shares = task.frequencies(data)
    special = list(task.tokenizer.special_ids)
    assert not shares[special].any()
    assert shares.sum() == pytest.approx(1)
    ordinary = np.delete(np.arange(320), special)
    smoothed = counts[ordinary] + 1
    expected = smoothed / smoothed.sum()
    assert_allclose(shares[ordinary], expected)
    assert counts.max() > 100  # the text was counted


def test_tokens_without_targets_cost_the_baseline_nothing(masked):
    task, data = masked
    shares = task.frequencies(data)
    targets = np.zeros(320)
    targets[7] = 3
    sums = {"targets": (targets, 3.0)}
    [baseline] = LanguageModeling.baselines(task, sums, data)
    assert baseline.metrics["perplexity"] == pytest.approx(1 / shares[7])


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        (MaskedLanguageModeling, 16),
        (CausalLanguageModeling, 17),
    ],
)
def test_sizes_of_examples(tmp_path, kind, tokens):
    """A window of a causal model has one token more than the model reads."""
    task = kind(tiny.text_config(tmp_path))
    assert task.units_per_example == 16
    shape = task.example_shapes()["tokens"][0]
    assert shape == (tokens,)
    assert task.unit == "tokens"


def test_only_the_tokenizer_of_a_pretrained_model_is_inherited():
    assert LanguageModeling.inheritance.files == (TOKENIZER_FILE,)
    assert not LanguageModeling.inheritance.model


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (MaskedLanguageModeling, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]),
        (CausalLanguageModeling, ["[PAD]", "[CLS]", "[MASK]"]),
    ],
)
def test_tokens_that_are_never_targets(tmp_path, kind, names):
    """A causal model predicts [SEP], which ends a document."""
    config = tiny.text_config(tmp_path)
    task = kind(config, {TOKENIZER_FILE: b"bytes\n"})
    pieces = []
    for token in task.unpredicted:
        pieces.append(task.tokenizer.piece(token))
    assert pieces == names


def masking_config(folder, block, kind):
    config = tiny.text_config(folder, **BLOCKS[block])
    if kind is CausalLanguageModeling:
        config = gmlp_config.changed(config, "causal_lm")
        config.model.causal = True
    config.data.mask_documents = True
    gmlp_config.validate(config)
    return config


def large_params(task):
    """Initial parameters, scaled so that the outputs for different sequences differ clearly."""
    return by_hand.scaled_params(task, 3)


def windows_with_another_start(tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Two windows of two documents each, which end at the eighth and the last token, and the same
    windows with other tokens in the first document."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(5, 300, (2, 16))
    windows = numbers.astype(np.int32)
    windows[:, 0] = tokenizer.cls_id
    windows[:, [7, 15]] = tokenizer.sep_id
    changed = windows.copy()
    changed[:, 1:7] = 77
    return windows, changed


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        ("transformer", MaskedLanguageModeling),
        ("convolution", MaskedLanguageModeling),
        ("transformer", CausalLanguageModeling),
    ],
)
def test_losses_do_not_depend_on_other_documents(block, kind, tmp_path):
    """If the tokens of one document of a window change, the logits of the other one are bit
    identical."""
    config = masking_config(tmp_path, block, kind)
    task, _ = tiny.open_task(config, tmp_path)
    model = task.bind(large_params(task))
    windows, changed = windows_with_another_start(task.tokenizer)

    @jax.jit
    def logits(tokens):
        mask = task.padding_mask(tokens)
        hidden = model.hidden(tokens, padding_mask=mask)
        return model.logits(hidden)

    first = logits(windows)
    second = logits(changed)
    assert_array_equal(first[:, 8:], second[:, 8:])
    before = first[:, :8]
    after = second[:, :8]
    change = np.abs(before - after)
    assert change.max() > 1e-3


def test_document_numbers_of_a_window(tmp_path):
    config = masking_config(tmp_path, "transformer", MaskedLanguageModeling)
    task, _ = tiny.open_task(config, tmp_path)
    ids = task.tokenizer
    cls = ids.cls_id
    sep = ids.sep_id
    window = [cls, 9, 9, sep, 9, sep, sep, 9, 0, 0]
    tokens = jnp.array([window])
    mask = task.padding_mask(tokens)
    assert mask.tolist() == [[1, 1, 1, 1, 2, 2, 3, 4, 0, 0]]


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        ("transformer", MaskedLanguageModeling),
        ("convolution", MaskedLanguageModeling),
        ("transformer", CausalLanguageModeling),
    ],
)
def test_documents_without_a_mask_depend_on_each_other(block, kind, tmp_path):
    config = masking_config(tmp_path, block, kind)
    config.data.mask_documents = False
    task, _ = tiny.open_task(config, tmp_path)
    windows, changed = windows_with_another_start(task.tokenizer)
    model = task.bind(large_params(task))
    hidden = jax.jit(model.hidden)
    difference = hidden(windows) - hidden(changed)
    change = np.abs(difference)
    assert change[:, 8:].max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", [MaskedLanguageModeling, CausalLanguageModeling])
def test_training_uses_the_document_mask(kind, tmp_path):
    """The loss of a batch changes if the mask is off."""
    losses = []
    for mask_documents in (True, False):
        config = masking_config(tmp_path, "transformer", kind)
        config.data.mask_documents = mask_documents
        task, data = tiny.open_task(config, tmp_path)
        batch = by_hand.first_batch(data)
        keys = by_hand.keys(len(batch["tokens"]))
        keyed_batch = {**batch, "key": keys}
        loss, _ = task.loss(large_params(task), keyed_batch)
        losses.append(float(loss))
    masked, unmasked = losses
    assert abs(masked / unmasked - 1) > 1e-4


def test_blocks_that_mix_all_tokens_are_refused(tmp_path):
    config = tiny.text_config(tmp_path)
    config.data.mask_documents = True
    message = raised(ConfigError, gmlp_config.validate, config)
    assert "config.data.mask_documents" in message
    assert "transformer" in message
