import functools
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.errors import DataError
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling, mask_tokens
from gmlp_flax.training import evaluation
from gmlp_flax.training.partition import Partition
from tests.training import tiny

SPECIAL = (0, 1, 2, 3, 4)
TOKENIZER = SimpleNamespace(special_ids=SPECIAL, mask_id=4, vocab_size=50)
LENGTH = 24


@functools.cache
def masking(rate=0.15, max_predictions=20, mask_share=0.8, random_share=0.1):
    """Compiled for one length: keys [n] and tokens [n, 24]."""
    mask = functools.partial(
        mask_tokens,
        tokenizer=TOKENIZER,
        rate=rate,
        max_predictions=max_predictions,
        mask_share=mask_share,
        random_share=random_share,
    )
    return jax.jit(jax.vmap(mask))


def masked(seed, tokens, **options):
    found = masking(**options)(jax.random.key(seed)[None], np.asarray(tokens, np.int32)[None])
    return jax.tree.map(lambda x: np.array(x[0]), found)


sequences = st.lists(st.integers(0, 49), min_size=LENGTH, max_size=LENGTH)


@pytest.mark.smoke
@given(
    sequences,
    st.integers(0, 2**31 - 1),
    st.sampled_from([(0.15, 20), (0.15, 2), (0.9, 20), (0.01, 3)]),
)
def test_properties(tokens, seed, options):
    rate, most = options
    tokens = np.array(tokens)
    found = masked(seed, tokens, rate=rate, max_predictions=most)
    chosen = found.positions[found.weights == 1]
    ordinary = np.flatnonzero(~np.isin(tokens, SPECIAL))
    assert set(chosen) <= set(ordinary) and len(set(chosen)) == len(chosen)
    # NumPy and JAX both round halves to even.
    count = (
        min(most, max(1, round(float(np.float32(rate) * np.float32(len(ordinary))))))
        if len(ordinary)
        else 0
    )
    assert len(chosen) == min(count, len(ordinary)) == found.weights.sum()
    np.testing.assert_array_equal(found.targets[found.weights == 1], tokens[chosen])
    untouched = np.setdiff1d(np.arange(LENGTH), chosen)
    np.testing.assert_array_equal(found.inputs[untouched], tokens[untouched])
    replaced = found.inputs[chosen]
    assert not np.isin(replaced, [token for token in SPECIAL if token != TOKENIZER.mask_id]).any()


@pytest.mark.parametrize(
    ("length", "most", "share"), [(135, 20, None), (512, 77, None), (512, 20, "3.9% of 510 tokens")]
)
def test_a_cap_that_masks_less_than_the_rate_is_told(tmp_path, length, most, share):
    config = tiny.text_config(tmp_path, length=length)
    config.masking.max_predictions = most
    notes = MaskedLanguageModeling.without_data(config).notes()
    assert len(notes) == (share is not None)
    assert not notes or (share in notes[0] and "--config.masking.max_predictions=76" in notes[0])


def test_only_special_tokens():
    found = masked(0, np.resize(SPECIAL, LENGTH))
    assert found.weights.sum() == 0
    np.testing.assert_array_equal(found.inputs, np.resize(SPECIAL, LENGTH))


@pytest.fixture(scope="module")
def many():
    """20,000 masked copies of one sequence without special tokens, 4 predictions each."""
    tokens = np.resize(np.arange(5, 25), LENGTH).astype(np.int32)
    keys = jax.random.split(jax.random.key(7), 20_000)
    return tokens, jax.device_get(masking()(keys, np.tile(tokens, (len(keys), 1))))


def within(count, trials, probability):
    """Five standard deviations of a binomial: one false alarm in two million."""
    return abs(count - trials * probability) < 5 * math.sqrt(
        trials * probability * (1 - probability)
    )


def test_eighty_ten_ten(many):
    _, found = many
    real = found.weights == 1
    assert (real.sum(1) == 4).all()
    replaced, targets = (
        np.take_along_axis(found.inputs, found.positions, 1)[real],
        found.targets[real],
    )
    assert within((replaced == TOKENIZER.mask_id).sum(), real.sum(), 0.8)
    # A random token is the target itself once in 45 times.
    assert within((replaced == targets).sum(), real.sum(), 0.1 + 0.1 / 45)
    random = replaced[(replaced != TOKENIZER.mask_id) & (replaced != targets)]
    assert within(len(random), real.sum(), 0.1 * 44 / 45)
    assert set(random) == set(range(5, 50))
    counts = np.bincount(random, minlength=50)[30:]  # These never are targets.
    assert all(within(count, real.sum(), 0.1 / 45) for count in counts)


def test_every_position_is_as_likely(many):
    _, found = many
    counts = np.bincount(found.positions[found.weights == 1], minlength=LENGTH)
    assert all(within(count, 20_000, 4 / LENGTH) for count in counts)


@pytest.fixture(scope="module")
def params(text_task):
    """Fresh ones, made large enough for the model to tell sequences apart."""
    return jax.tree.map(lambda x: 3 * x, jax.jit(text_task.init)(jax.random.key(0)))


def test_evaluation_against_numpy(text_task, params):
    """Perplexity is exp of the mean over all masked tokens; the last batch is padded, its padding
    counts nothing."""
    text_task.config.eval.batch_size = 8
    metrics, _ = evaluation.Evaluator(text_task, Partition.make())(params)
    examples = [
        text_task.windows("heldout")[index] for index in range(text_task.evaluation_examples())
    ]
    assert len(examples) % 8
    batch = {
        name: np.stack([example[name] for example in examples]) for name in ("tokens", "index")
    }
    masks = text_task.fixed_mask(batch, text_task.config.eval.seed)
    logits = np.array(jax.jit(text_task.apply)(params, masks.inputs, masks.positions), np.float64)
    targets, real = np.array(masks.targets), np.array(masks.weights) == 1
    log_probabilities = np.take_along_axis(
        logits - np.log(np.exp(logits).sum(-1, keepdims=True)), targets[..., None], -1
    )
    losses, hits = -log_probabilities[real], (logits.argmax(-1) == targets)[real]
    assert metrics["predictions"] == len(losses) and metrics["examples"] == len(examples)
    assert metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)
    assert metrics["accuracy"] == pytest.approx(np.mean(hits), abs=1e-6)


def test_summary_of_a_hopeless_model(text_task):
    metrics = text_task.summarize(
        {"loss": (8000.0, 10.0), "accuracy": (0.0, 10.0), "examples": (3.0, 3.0)}, {}
    )
    assert metrics == {
        "perplexity": math.inf,
        "accuracy": 0.0,
        "loss": 800.0,
        "predictions": 10,
        "examples": 3,
    }
    assert {*text_task.eval_metrics, "predictions", "examples"} == set(metrics)
    with pytest.raises(DataError, match="config.data.heldout"):
        text_task.summarize(
            {"loss": (0.0, 0.0), "accuracy": (0.0, 0.0), "examples": (3.0, 3.0)}, {}
        )
