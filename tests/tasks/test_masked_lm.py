"""Masked language modelling: which tokens are masked and by what, metrics against NumPy, trivial
models against counts by hand, and the tokens that fill a mask."""

import collections
import functools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling, mask_tokens
from gmlp_flax.tasks.prediction import Settings
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition
from tests.failures import failure, raised
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


def masked_sequence(seed: int, tokens: np.ndarray, **options):
    """One sequence, masked."""
    keys = jax.random.key(seed)[None]
    found = masking(**options)(keys, np.asarray(tokens, np.int32)[None])
    return jax.tree.map(lambda x: np.array(x[0]), found)


def expected_count(ordinary: int, rate: float, most: int) -> int:
    """How many tokens are predicted."""
    if not ordinary:
        return 0
    # NumPy and JAX both round halves to even.
    rounded = round(float(np.float32(rate) * np.float32(ordinary)))
    return min(most, max(1, rounded), ordinary)


sequences = st.lists(st.integers(0, 49), min_size=LENGTH, max_size=LENGTH)


@pytest.mark.smoke
@given(
    sequences,
    st.integers(0, 2**31 - 1),
    st.sampled_from([(0.15, 20), (0.15, 2), (0.9, 20), (0.01, 3)]),
)
def test_only_chosen_tokens_change(tokens, seed, options):
    rate, most = options
    tokens = np.array(tokens)
    found = masked_sequence(seed, tokens, rate=rate, max_predictions=most)
    chosen = found.positions[found.weights == 1]
    ordinary = np.flatnonzero(~np.isin(tokens, SPECIAL))
    assert set(chosen) <= set(ordinary)
    assert len(set(chosen)) == len(chosen) == found.weights.sum()
    assert len(chosen) == expected_count(len(ordinary), rate, most)
    np.testing.assert_array_equal(found.targets[found.weights == 1], tokens[chosen])
    untouched = np.setdiff1d(np.arange(LENGTH), chosen)
    np.testing.assert_array_equal(found.inputs[untouched], tokens[untouched])
    drawn = np.setdiff1d(found.inputs[chosen], [TOKENIZER.mask_id])
    assert not np.isin(drawn, SPECIAL).any()


def test_special_tokens_alone_are_not_masked():
    found = masked_sequence(0, np.resize(SPECIAL, LENGTH))
    assert found.weights.sum() == 0
    np.testing.assert_array_equal(found.inputs, np.resize(SPECIAL, LENGTH))


@pytest.fixture(scope="module")
def many():
    """20,000 masked copies of one sequence without special tokens, 4 predictions each."""
    tokens = np.resize(np.arange(5, 25), LENGTH).astype(np.int32)
    keys = jax.random.split(jax.random.key(7), 20_000)
    return jax.device_get(masking()(keys, np.tile(tokens, (len(keys), 1))))


def within(count: int, trials: int, probability: float) -> bool:
    """Five standard deviations of a binomial: one false alarm in two million."""
    deviation = math.sqrt(trials * probability * (1 - probability))
    return abs(count - trials * probability) < 5 * deviation


def test_eighty_ten_ten(many):
    is_chosen = many.weights == 1
    trials = is_chosen.sum()
    assert (is_chosen.sum(1) == 4).all()
    replaced = np.take_along_axis(many.inputs, many.positions, 1)[is_chosen]
    targets = many.targets[is_chosen]
    assert within((replaced == TOKENIZER.mask_id).sum(), trials, 0.8)
    # A random token is the target itself once in 45 times.
    assert within((replaced == targets).sum(), trials, 0.1 + 0.1 / 45)
    random = replaced[(replaced != TOKENIZER.mask_id) & (replaced != targets)]
    assert within(len(random), trials, 0.1 * 44 / 45)
    assert set(random) == set(range(5, 50))
    counts = np.bincount(random, minlength=50)[30:]  # these never are targets
    assert all(within(count, trials, 0.1 / 45) for count in counts)


def test_every_position_is_as_likely(many):
    counts = np.bincount(many.positions[many.weights == 1], minlength=LENGTH)
    assert all(within(count, 20_000, 4 / LENGTH) for count in counts)


@pytest.mark.parametrize(
    ("length", "most", "share"), [(135, 20, ""), (512, 77, ""), (512, 20, "3.9% of 510 tokens")]
)
def test_a_cap_that_masks_less_than_the_rate_is_told(tmp_path, length, most, share):
    config = tiny.text_config(tmp_path, length=length)
    config.masking.max_predictions = most
    notes = MaskedLanguageModeling(config).notes()
    assert len(notes) == bool(share)
    for note in notes:
        assert share in note
        assert "--config.masking.max_predictions=76" in note


def test_shares_of_more_than_all_are_refused(tmp_path):
    config = tiny.text_config(tmp_path)
    config.masking.update(mask_share=0.8, random_share=0.3)
    told = raised(ConfigError, gmlp_config.validate, config)
    assert "config.masking.mask_share is 0.8" in told


@pytest.fixture(scope="module")
def params(masked):
    """Fresh ones, made large enough for the model to tell sequences apart."""
    task, _ = masked
    return jax.tree.map(lambda x: 3 * x, jax.jit(task.init)(jax.random.key(0)))


def heldout_batch(data) -> dict[str, np.ndarray]:
    """All held-out sequences."""
    windows = data.windows(HELDOUT)
    examples = [windows[index] for index in range(len(windows))]
    return {name: np.stack([example[name] for example in examples]) for name in examples[0]}


def test_evaluation_against_numpy(masked, params):
    """Perplexity is exp of the mean over all masked tokens; the last batch is padded, its padding
    counts nothing."""
    task, data = masked
    metrics, outputs = Evaluator(task, data, Partition.make())(params)
    batch = heldout_batch(data)
    examples = len(batch["index"])
    assert examples % 8
    masks = task.fixed_mask(batch, task.config.eval.seed)
    logits = np.array(jax.jit(task.apply)(params, masks.inputs, masks.positions), np.float64)
    targets = np.array(masks.targets)
    is_real = np.array(masks.weights) == 1
    normalised = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(normalised, targets[..., None], -1)[is_real]
    hits = (logits.argmax(-1) == targets)[is_real]
    assert (metrics["predictions"], metrics["examples"]) == (len(losses), examples)
    assert metrics["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(losses.mean()), rel=1e-4)
    assert metrics["accuracy"] == pytest.approx(hits.mean(), abs=1e-6)
    assert {*task.eval_metrics, "predictions", "examples"} == set(metrics)
    assert outputs == {}


def shares_of_tokens(task, data) -> np.ndarray:
    """The share of each token in the text to train on, with one added to its count."""
    stream = data.windows(TRAIN).prepared
    counts = collections.Counter(stream.read(0, stream.tokens).tolist())
    shares = np.zeros(task.config.model.vocab_size)
    for token in range(len(shares)):
        if token not in task.tokenizer.special_ids:
            shares[token] = counts[token] + 1
    return shares / shares.sum()


def shares_if_shown(task, shares: np.ndarray) -> np.ndarray:
    """The share of each target if a token is shown in its place: [target, shown].

    A tenth of the targets is shown as it is, and a tenth as any ordinary token.
    """
    vocabulary = len(shares)
    ordinary = task.tokenizer.vocab_size - len(task.tokenizer.special_ids)
    joint = shares[:, None] * (0.1 * np.eye(vocabulary) + 0.1 / ordinary)
    return joint / joint.sum(0)


def test_the_baselines_equal_a_count_by_hand(masked, params):
    """Token frequencies of the training text, on the tokens that evaluation masks; and, by a table
    of all pairs, what is known of a token if only the shown one is."""
    task, data = masked
    evaluator = Evaluator(task, data, Partition.make())
    metrics, _ = evaluator(params)
    shares = shares_of_tokens(task, data)
    given_shown = shares_if_shown(task, shares)
    masks = task.fixed_mask(heldout_batch(data), task.config.eval.seed)
    shown = np.take_along_axis(masks.inputs, masks.positions, 1)
    nats = []
    floor = []
    for row, column in np.argwhere(np.asarray(masks.weights) == 1):
        target = masks.targets[row, column]
        token = shown[row, column]
        is_hidden = token == task.tokenizer.mask_id
        nats.append(-math.log(shares[target]))
        floor.append(nats[-1] if is_hidden else -math.log(given_shown[target, token]))
    assert metrics["predictions"] == len(nats)
    names = ("token frequencies alone", "the shown token alone, without context")
    for baseline, name, losses in zip(evaluator.baselines(), names, (nats, floor), strict=True):
        assert baseline.name == name
        expected = math.exp(np.mean(losses))
        assert baseline.metrics == {"perplexity": pytest.approx(expected, rel=1e-5)}


def test_a_hopeless_model_has_an_infinite_perplexity(masked):
    task, data = masked
    sums = {"loss": (8000.0, 10.0), "accuracy": (0.0, 10.0), "examples": (3.0, 3.0)}
    assert task.summarize(sums, {}, data) == {
        "perplexity": math.inf,
        "accuracy": 0.0,
        "loss": 800.0,
        "predictions": 10,
        "examples": 3,
    }
    nothing = {"loss": (0.0, 0.0), "accuracy": (0.0, 0.0), "examples": (3.0, 3.0)}
    assert "config.data.heldout" in failure(task.summarize, nothing, {}, data)


def evaluated(config) -> dict[int, tuple]:
    """What evaluation has the model read and predict, by the sequence."""
    task, data = tiny.open_task(config, "")
    seen = {}
    fixed = jax.jit(functools.partial(task.fixed_mask, seed=config.eval.seed))
    with data.evaluation_batches(0, 1) as batches:
        for batch in batches:
            masks = jax.device_get(fixed({name: batch[name] for name in ("tokens", "index")}))
            for row in np.flatnonzero(batch["weight"]):
                parts = (masks.inputs, masks.positions, masks.targets, masks.weights)
                seen[int(batch["index"][row])] = tuple(part[row].tolist() for part in parts)
    return seen


def test_all_models_are_held_to_the_same_masks(tmp_path):
    """Whatever the model, its seed, its batches, its schedule and how it was masked in training."""
    config = tiny.text_config(tmp_path)
    expected = evaluated(config)
    assert len(expected) > 5
    assert all(sum(weights) >= 1 for *_, weights in expected.values())
    options = {"block": "transformer", "positions": "absolute", "heads": 2, "dropout": 0.1}
    other = tiny.text_config(tmp_path, **options)
    other.seed = 1
    other.batch_size = 9
    other.masking.static = True
    other.optimizer.learning_rate = 0.1
    assert evaluated(other) == expected
    count = len(expected)
    for examples, indices in ((3, {0, count // 3, 2 * count // 3}), (1000, expected.keys())):
        config.eval.examples = examples
        assert evaluated(config) == {index: expected[index] for index in indices}
    config.eval.seed = 1
    assert evaluated(config) != expected


class Reading(MaskedLanguageModeling):
    """A task whose loss tells what the model reads and predicts, and with which weights."""

    def masked_loss(self, params, masked, weights, key):
        nothing = (jnp.float32(0), jnp.float32(0))
        return {"loss": nothing, "read": (*masked[:3], weights)}

    def evaluation_sums(self, scores, batch, targets, weights):
        return scores


def test_evaluation_reads_the_fixed_masks_and_counts_by_weight(masked):
    task, data = masked
    batch = heldout_batch(data)
    weights = np.float32([0, 1] * len(batch["index"]))[: len(batch["index"])]
    sums, _ = Reading(task.config, task.files).evaluate({}, {**batch, "weight": weights})
    masks = task.fixed_mask(batch, task.config.eval.seed)
    expected = (*masks[:3], masks.weights * weights[:, None])
    for found, part in zip(sums["read"], expected, strict=True):
        np.testing.assert_array_equal(found, part)


def masks_by_index(config) -> dict[int, list[list[int]]]:
    """For each sequence, what the model was to read each time that it was seen in three epochs of
    training."""
    files, data = tiny.open_task(config, "")
    task = Reading(config, files.files)
    read = jax.jit(lambda batch: task.loss(None, batch)[1]["read"][0])
    found: dict[int, list[list[int]]] = {}
    with data.train_batches(0, 0, 1) as batches:
        for step in range(3 * len(data.windows(TRAIN)) // config.batch_size):
            batch = next(batches)
            keys = jax.random.split(jax.random.key(step), len(batch["index"]))
            rows = np.asarray(read({**batch, "key": keys})).tolist()
            for index, inputs in zip(batch["index"].tolist(), rows, strict=True):
                found.setdefault(index, []).append(inputs)
    return found


def first_masks(masks: dict[int, list]) -> dict[int, list]:
    """What was read of each sequence at first."""
    return {index: times[0] for index, times in masks.items()}


def equal_share(first: dict, second: dict) -> float:
    """The share of the keys of both whose values are equal."""
    common = first.keys() & second.keys()
    return sum(first[key] == second[key] for key in common) / len(common)


def test_static_masks_stay_from_epoch_to_epoch(tmp_path):
    config = tiny.text_config(tmp_path)
    anew = masks_by_index(config)
    config.masking.static = True
    static = masks_by_index(config)
    assert anew.keys() == static.keys()
    assert max(len(times) for times in static.values()) >= 3
    assert all(inputs == times[0] for times in static.values() for inputs in times)
    again = {index: times[1] for index, times in anew.items() if len(times) > 1}
    assert equal_share(first_masks(anew), again) < 0.2
    config.batch_size = 5
    assert equal_share(first_masks(masks_by_index(config)), first_masks(static)) == 1
    config.batch_size = 8
    config.seed = 1
    assert equal_share(first_masks(masks_by_index(config)), first_masks(static)) < 0.2


def test_the_likeliest_tokens_fill_each_mask(masked, params):
    task, _ = masked
    tokenizer = task.tokenizer
    line = "the [MASK] of [MASK]"
    [(first, second)] = task.predictor.predict(params, [line], Settings(top=3))
    ids = [tokenizer.cls_id, *tokenizer.encode_masked(line), tokenizer.sep_id]
    assert ids.count(tokenizer.mask_id) == 2
    padded = np.array([ids + [tokenizer.pad_id] * (16 - len(ids))])
    positions = np.flatnonzero(padded[0] == tokenizer.mask_id)
    logits = np.asarray(task.logits(params, padded, positions[None]))[0]
    for candidates, row in zip((first, second), logits, strict=True):
        best = np.argsort(-row[: tokenizer.vocab_size])[:3]
        assert [name for name, _ in candidates] == [tokenizer.piece(int(i)) for i in best]
    np.testing.assert_allclose(
        task.forward(params, padded)[0, positions], logits, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(task.predictor.encode([line])[0, : len(ids)], ids)
    assert task.predictor.label(2) == "[MASK] 2"


def test_a_line_needs_a_mask_that_is_read(masked, params):
    predictor = masked[0].predictor
    assert "[MASK]" in raised(RunError, predictor.predict, params, ["no mask"])
    long = "the of " * 20
    assert "--truncate" in raised(RunError, predictor.predict, params, [f"[MASK] {long}"])
    settings = Settings(top=1, truncate=True)
    [answer] = predictor.answers(params, [f"[MASK] {long}"], settings)
    assert "first 16" in answer.note
    assert len(answer.predictions) == 1
    told = raised(RunError, predictor.predict, params, [f"{long} [MASK]"], settings)
    assert "first 16 tokens" in told


def test_a_causal_model_fills_no_mask(tmp_path):
    config = tiny.text_config(tmp_path)
    config.model.causal = True
    told = raised(ConfigError, gmlp_config.validate, config)
    assert "config.model.causal is True" in told
