"""Masked language modeling: which tokens are masked and by what, metrics against NumPy, baselines
against counts by hand, and the tokens that fill a mask."""

import collections
import functools
import itertools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.tasks.inference.prediction import Settings
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling, Masking, mask_tokens
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition
from tests.failures import failure, raised
from tests.tasks import by_hand
from tests.training import tiny

SPECIAL = (0, 1, 2, 3, 4)
TOKENIZER = SimpleNamespace(special_ids=SPECIAL, mask_id=4, vocab_size=50)
LENGTH = 24


@functools.cache
def masking(rate=0.15, max_predictions=20, mask_share=0.8, random_share=0.1):
    """`mask_tokens`, compiled for keys [n] and tokens [n, 24]."""
    options = Masking(rate, max_predictions, mask_share, random_share)
    mask = functools.partial(mask_tokens, tokenizer=TOKENIZER, masking=options)
    return jax.jit(jax.vmap(mask))


def masked_sequence(seed: int, tokens: np.ndarray, **options):
    """The masks of one sequence."""
    key = jax.random.key(seed)
    batch = np.array([tokens], np.int32)
    mask = masking(**options)
    found = mask(key[None], batch)
    return jax.tree.map(lambda leaf: np.array(leaf[0]), found)


def expected_count(ordinary: int, rate: float, most: int) -> int:
    """The number of predicted tokens."""
    if not ordinary:
        return 0
    # NumPy and JAX both round halves to even.
    product = np.float32(rate) * np.float32(ordinary)
    rounded = round(float(product))
    return min(most, max(1, rounded), ordinary)


sequences = st.lists(st.integers(0, 49), min_size=LENGTH, max_size=LENGTH)


@pytest.mark.slow
@pytest.mark.smoke
@given(
    tokens=sequences,
    seed=st.integers(0, 2**31 - 1),
    options=st.sampled_from([(0.15, 20), (0.15, 2), (0.9, 20), (0.01, 3)]),
)
def test_only_selected_tokens_change(tokens, seed, options):
    rate, most = options
    tokens = np.array(tokens)
    found = masked_sequence(seed, tokens, rate=rate, max_predictions=most)
    is_special = np.isin(tokens, SPECIAL)
    ordinary = np.flatnonzero(~is_special)
    count = expected_count(len(ordinary), rate, most)
    is_prediction = found.weights == 1
    chosen = found.positions[is_prediction]
    assert set(chosen) <= set(ordinary)
    assert len(set(chosen)) == len(chosen) == count
    assert found.weights.sum() == count
    assert_array_equal(found.targets[is_prediction], tokens[chosen])
    untouched = np.setdiff1d(np.arange(LENGTH), chosen)
    shown = found.inputs[untouched]
    assert_array_equal(shown, tokens[untouched])
    chosen_inputs = found.inputs[chosen]
    drawn = np.setdiff1d(chosen_inputs, [TOKENIZER.mask_id])
    assert not np.isin(drawn, SPECIAL).any()


def test_special_tokens_are_not_masked():
    tokens = np.resize(SPECIAL, LENGTH)
    found = masked_sequence(0, tokens)
    assert found.weights.sum() == 0
    assert_array_equal(found.inputs, tokens)


@pytest.fixture(scope="module")
def many():
    """20,000 masked copies of one sequence without special tokens, 4 predictions each."""
    ordinary = np.arange(5, 25)
    tokens = np.resize(ordinary, LENGTH).astype(np.int32)
    copies = np.tile(tokens, (20_000, 1))
    mask = masking()
    keys = by_hand.keys(20_000, seed=7)
    return jax.device_get(mask(keys, copies))


def within(count: int, trials: int, probability: float) -> bool:
    """Five standard deviations of a binomial: one false alarm in two million."""
    expected = trials * probability
    variance = expected * (1 - probability)
    deviation = math.sqrt(variance)
    return abs(count - expected) < 5 * deviation


def test_selected_tokens_are_replaced_80_10_10(many):
    is_chosen = many.weights == 1
    trials = is_chosen.sum()
    assert (is_chosen.sum(1) == 4).all()
    at_positions = np.take_along_axis(many.inputs, many.positions, 1)
    shown = at_positions[is_chosen]
    targets = many.targets[is_chosen]
    is_masked = shown == TOKENIZER.mask_id
    is_kept = shown == targets
    is_random = ~is_masked & ~is_kept
    random = shown[is_random]
    assert within(is_masked.sum(), trials, 0.8)
    # A random token is the target itself once in 45 times.
    assert within(is_kept.sum(), trials, 0.1 + 0.1 / 45)
    assert within(len(random), trials, 0.1 * 44 / 45)
    assert set(random) == set(range(5, 50))
    counts = np.bincount(random, minlength=50)
    never_targets = counts[30:]
    for count in never_targets:
        assert within(count, trials, 0.1 / 45)


def test_positions_are_masked_uniformly(many):
    chosen = many.positions[many.weights == 1]
    for count in np.bincount(chosen, minlength=LENGTH):
        assert within(count, 20_000, 4 / LENGTH)


@pytest.mark.parametrize(
    ("length", "most", "share"),
    [
        (135, 20, ""),
        (512, 77, ""),
        (512, 20, "3.9% of 510 tokens"),
    ],
)
def test_cap_below_the_mask_rate_gets_a_warning(tmp_path, length, most, share):
    config = tiny.text_config(tmp_path, length=length)
    config.masking.max_predictions = most
    notes = MaskedLanguageModeling(config).notes()
    assert len(notes) == bool(share)
    for note in notes:
        assert share in note
        assert "--config.masking.max_predictions=76" in note


def test_mask_shares_above_1_are_refused(tmp_path):
    config = tiny.text_config(tmp_path)
    config.masking.update(mask_share=0.8, random_share=0.3)
    message = raised(ConfigError, gmlp_config.validate, config)
    assert "config.masking.mask_share is 0.8" in message


@pytest.fixture(scope="module")
def params(masked):
    """Initial parameters, scaled so that the outputs for different sequences differ clearly."""
    task, _ = masked
    return by_hand.scaled_params(task, 3)


def heldout_batch(data) -> dict[str, np.ndarray]:
    """All held-out sequences."""
    windows = by_hand.all_examples(data.windows(HELDOUT))
    return by_hand.stacked(windows)


@pytest.mark.slow
def test_evaluation_against_numpy(masked, params):
    """Perplexity is exp of the mean over all masked tokens. The last batch is padded, and its padding
    counts nothing."""
    task, data = masked
    metrics, outputs = by_hand.evaluate(task, data, params)
    batch = heldout_batch(data)
    examples = len(batch["index"])
    assert examples % 8
    masks = task.fixed_mask(batch, task.config.eval.seed)
    logits = logits_of(task, params, masks)
    is_real = np.asarray(masks.weights) == 1
    targets = masks.targets
    losses = by_hand.cross_entropies(logits, targets)[is_real]
    hits = by_hand.are_hits(logits, masks.targets)[is_real]
    assert metrics["predictions"] == len(losses)
    assert metrics["examples"] == examples
    loss = losses.mean()
    expected_loss = pytest.approx(loss, rel=1e-5)
    assert metrics["loss"] == expected_loss
    perplexity = math.exp(loss)
    assert metrics["perplexity"] == pytest.approx(perplexity, rel=1e-4)
    assert metrics["accuracy"] == pytest.approx(hits.mean(), abs=1e-6)
    names = {*task.eval_metrics, "predictions", "examples"}
    assert names == set(metrics)
    assert outputs == {}


def logits_of(task, params, masks):
    """The logits at the predicted positions of masked sequences."""
    apply = jax.jit(task.apply)
    return apply(params, masks.inputs, masks.positions)


def visible_tokens(tokens, predicted, special) -> list[int | None]:
    """The tokens of a sequence that are neither predicted nor special; None for the others."""
    visible = []
    for position, token in enumerate(tokens):
        is_hidden = position in predicted or token in special
        visible.append(None if is_hidden else token)
    return visible


def completes_a_bigram(visible, position, target) -> bool:
    """Whether a predicted token and a visible neighbor also occur elsewhere."""
    pairs = set(itertools.pairwise(visible))
    left = visible[position - 1]
    right = visible[position + 1]
    with_left = left is not None and (left, target) in pairs
    with_right = right is not None and (target, right) in pairs
    return with_left or with_right


@pytest.mark.slow
def test_ar_hits_of_an_evaluation_against_a_loop(masked, params):
    task, data = masked
    config = gmlp_config.mutable_copy(task.config)
    config.eval.recall_slices = True
    config.eval.frequent_bigrams = 0
    sliced = MaskedLanguageModeling(config, task.files)
    sliced_data = type(data)(config, data.run_files)
    metrics, _ = by_hand.evaluate(sliced, sliced_data, params)
    batch = heldout_batch(data)
    masks = task.fixed_mask(batch, task.config.eval.seed)
    logits = logits_of(task, params, masks)
    losses = by_hand.cross_entropies(logits, masks.targets)
    all_positions = np.asarray(masks.positions)
    all_targets = np.asarray(masks.targets)
    all_are_real = np.asarray(masks.weights) == 1
    hit_losses = []
    rows = batch["tokens"].tolist()
    for row, tokens in enumerate(rows):
        is_real = all_are_real[row]
        positions = all_positions[row, is_real].tolist()
        targets = all_targets[row, is_real].tolist()
        visible = visible_tokens(tokens, positions, task.tokenizer.special_ids)
        row_losses = losses[row, is_real]
        for position, target, loss in zip(positions, targets, row_losses, strict=True):
            if completes_a_bigram(visible, position, target):
                hit_losses.append(loss)
    hits = len(hit_losses)
    assert hits > 2
    assert metrics["recall_predictions"] == hits
    others = metrics["predictions"] - hits
    assert metrics["other_predictions"] == others
    recall_loss = math.log(metrics["recall_perplexity"])
    mean_loss = np.mean(hit_losses)
    assert recall_loss == pytest.approx(mean_loss, rel=1e-4)


def shares_of_tokens(task, data) -> np.ndarray:
    """The share of each token in the training text, with one added to each count."""
    stream = data.windows(TRAIN).prepared
    vocab_size = task.config.model.vocab_size
    tokens = stream.read(0, stream.tokens)
    shares = np.bincount(tokens, minlength=vocab_size) + 1.0
    shares[list(task.tokenizer.special_ids)] = 0
    return shares / shares.sum()


def shares_if_shown(task, shares: np.ndarray) -> np.ndarray:
    """The probability of each target, given the token shown in its place: [target, shown].

    A tenth of the targets are shown unchanged, and a tenth as any ordinary token.
    """
    vocabulary = len(shares)
    special_count = len(task.tokenizer.special_ids)
    ordinary = task.tokenizer.vocab_size - special_count
    unchanged = 0.1 * np.eye(vocabulary)
    random = 0.1 / ordinary
    if_target = unchanged + random
    joint = shares[:, None] * if_target
    return joint / joint.sum(0)


def test_baselines_equal_a_count_by_hand(masked, params):
    """The frequencies of tokens in the training text, on the tokens that evaluation masks; and the
    probability of a token given only the shown one, from a table of all pairs."""
    task, data = masked
    evaluator = Evaluator(task, data, Partition.make())
    metrics, _ = evaluator(params)
    shares = shares_of_tokens(task, data)
    shares_given_shown = shares_if_shown(task, shares)
    batch = heldout_batch(data)
    masks = task.fixed_mask(batch, task.config.eval.seed)
    shown_tokens = np.take_along_axis(masks.inputs, masks.positions, 1)
    is_real = np.asarray(masks.weights) == 1
    targets = np.asarray(masks.targets)[is_real]
    shares_of_targets = shares[targets]
    given_shown = []
    shown_if_real = shown_tokens[is_real]
    for target, shown in zip(targets, shown_if_real, strict=True):
        if shown == task.tokenizer.mask_id:
            given_shown.append(shares[target])
        else:
            given_shown.append(shares_given_shown[target, shown])
    assert metrics["predictions"] == len(targets)
    frequencies, shown_token = evaluator.baselines()
    assert frequencies.name == "token frequencies alone"
    perplexity = perplexity_of(shares_of_targets)
    assert frequencies.metrics == {"perplexity": pytest.approx(perplexity, rel=1e-5)}
    assert shown_token.name == "the shown token alone, without context"
    perplexity = perplexity_of(given_shown)
    expected = pytest.approx(perplexity, rel=1e-5)
    assert shown_token.metrics == {"perplexity": expected}


def perplexity_of(shares) -> float:
    """Of targets that had these probabilities."""
    loss = -np.log(shares).mean()
    return math.exp(loss)


def test_overflowing_perplexity_is_infinite(masked):
    task, data = masked
    sums = {"loss": (8000.0, 10.0), "accuracy": (0.0, 10.0), "examples": (3.0, 3.0)}
    metrics = task.summarize(sums, {}, data)
    assert metrics == {
        "perplexity": math.inf,
        "accuracy": 0.0,
        "loss": 800.0,
        "predictions": 10,
        "examples": 3,
    }
    nothing = {"loss": (0.0, 0.0), "accuracy": (0.0, 0.0), "examples": (3.0, 3.0)}
    assert "config.data.heldout" in failure(task.summarize, nothing, {}, data)


def evaluated(config) -> dict[int, tuple]:
    """What the model reads and predicts in evaluation, by the index of the sequence."""
    task, data = tiny.open_task(config, "")
    seed = config.eval.seed
    fixed_mask = functools.partial(task.fixed_mask, seed=seed)
    fixed_mask = jax.jit(fixed_mask)
    read = {}
    with data.evaluation_batches(0, 1) as batches:
        for batch in batches:
            masks = fixed_mask({"tokens": batch["tokens"], "index": batch["index"]})
            fields = [np.asarray(field).tolist() for field in masks]
            sequences = zip(*fields, strict=True)
            indices = batch["index"].tolist()
            rows = zip(indices, batch["weight"], sequences, strict=True)
            for index, weight, sequence in rows:
                if weight:
                    read[index] = sequence
    return read


def test_evaluation_masks_are_the_same_for_all_models(tmp_path):
    """For any model, seed, batch size, schedule, and masks in training."""
    expected = evaluated(tiny.text_config(tmp_path))
    assert len(expected) > 5
    for *_, weights in expected.values():
        assert sum(weights) >= 1
    other = tiny.text_config(
        tmp_path,
        block="transformer",
        positions="absolute",
        heads=2,
        dropout=0.1,
    )
    other.seed = 1
    other.batch_size = 9
    other.masking.static = True
    other.optimizer.learning_rate = 0.1
    assert evaluated(other) == expected


class Reading(MaskedLanguageModeling):
    """A task whose loss returns what the model reads and predicts, and the weights."""

    def masked_loss(self, params, masked, weights, key, repeats=None):
        nothing = (jnp.float32(0), jnp.float32(0))
        return {"loss": nothing, "read": (*masked[:3], weights)}

    def evaluation_sums(self, scores, batch, targets, weights):
        return scores


def test_evaluation_masks_do_not_depend_on_the_number_of_examples(tmp_path):
    config = tiny.text_config(tmp_path)
    everything = evaluated(config)
    count = len(everything)
    config.eval.examples = 3
    third = count // 3
    two_thirds = 2 * count // 3
    expected = {}
    for index in (0, third, two_thirds):
        expected[index] = everything[index]
    assert evaluated(config) == expected
    config.eval.examples = 1000
    assert evaluated(config) == everything


def test_evaluation_seed_changes_the_masks(tmp_path):
    config = tiny.text_config(tmp_path)
    config.eval.examples = 1000
    before = evaluated(config)
    config.eval.seed = 1
    assert evaluated(config) != before


def test_evaluation_uses_the_fixed_masks_and_the_weights(masked):
    task, data = masked
    batch = heldout_batch(data)
    count = len(batch["index"])
    numbers = np.arange(count, dtype=np.float32)
    batch["weight"] = numbers % 2
    task_reading = Reading(task.config, task.files)
    sums, _ = task_reading.evaluate({}, batch)
    masks = task.fixed_mask(batch, task.config.eval.seed)
    batch_weights = batch["weight"][:, None]
    expected_weights = masks.weights * batch_weights
    inputs, positions, targets, weights = sums["read"]
    assert_array_equal(inputs, masks.inputs)
    assert_array_equal(positions, masks.positions)
    assert_array_equal(targets, masks.targets)
    assert_array_equal(weights, expected_weights)


def masks_by_index(config) -> dict[int, list[list[int]]]:
    """For each sequence, what the model reads each time it occurs in three epochs of training."""
    opened, data = tiny.open_task(config, "")
    task = Reading(config, opened.files)

    @jax.jit
    def read(batch):
        _, sums = task.loss(None, batch)
        inputs, *_ = sums["read"]
        return inputs

    masks = collections.defaultdict(list)
    windows = data.windows(TRAIN)
    examples = 3 * len(windows)
    steps = examples // config.batch_size
    with data.train_batches(0, 0, 1) as batches:
        for step in range(steps):
            batch = next(batches)
            indices = batch["index"].tolist()
            keys = by_hand.keys(len(indices), seed=step)
            rows = read({**batch, "key": keys}).tolist()
            for index, inputs in zip(indices, rows, strict=True):
                masks[index].append(inputs)
    return masks


def first_masks(masks: dict[int, list]) -> dict[int, list]:
    """What the model reads the first time that each sequence occurs."""
    firsts = {}
    for index, times in masks.items():
        firsts[index] = times[0]
    return firsts


def equal_share(first: dict, second: dict) -> float:
    """The fraction of the common keys whose values are equal."""
    common = first.keys() & second.keys()
    equal = 0
    for key in common:
        if first[key] == second[key]:
            equal += 1
    return equal / len(common)


def test_static_masks_repeat_each_epoch(tmp_path):
    config = tiny.text_config(tmp_path)
    dynamic = masks_by_index(config)
    config.masking.static = True
    static = masks_by_index(config)
    assert dynamic.keys() == static.keys()
    counts = [len(times) for times in static.values()]
    assert max(counts) >= 3
    for first, *later in static.values():
        for inputs in later:
            assert inputs == first
    second_masks = {}
    for index, times in dynamic.items():
        if len(times) > 1:
            second_masks[index] = times[1]
    assert equal_share(first_masks(dynamic), second_masks) < 0.2


def test_static_masks_depend_on_the_seed_and_not_on_the_batches(tmp_path):
    config = tiny.text_config(tmp_path)
    config.masking.static = True
    static = first_masks(masks_by_index(config))
    config.batch_size = 5
    in_other_batches = first_masks(masks_by_index(config))
    assert equal_share(in_other_batches, static) == 1
    config.batch_size = 8
    config.seed = 1
    with_other_seed = first_masks(masks_by_index(config))
    assert equal_share(with_other_seed, static) < 0.2


TWO_MASKS = "the [MASK] of [MASK]"


def ids_of_two_masks(tokenizer) -> list[int]:
    """The tokens of TWO_MASKS, without padding."""
    return [tokenizer.cls_id, *tokenizer.encode_masked(TWO_MASKS), tokenizer.sep_id]


def test_each_mask_is_filled_with_the_most_likely_tokens(masked, params):
    task, _ = masked
    tokenizer = task.tokenizer
    settings = Settings(top=3)
    [predictions] = task.predictor.predict(params, [TWO_MASKS], settings)
    ids = ids_of_two_masks(tokenizer)
    assert ids.count(tokenizer.mask_id) == 2
    padding_length = 16 - len(ids)
    padding = [tokenizer.pad_id] * padding_length
    padded = np.array(ids + padding)
    positions = np.flatnonzero(padded == tokenizer.mask_id)
    batch = padded[None]
    batch_positions = positions[None]
    [logits] = np.asarray(task.logits(params, batch, batch_positions))
    for candidates, row in zip(predictions, logits, strict=True):
        piece_logits = row[: tokenizer.vocab_size]
        best = by_hand.largest(piece_logits, 3)
        best_ids = best.tolist()
        expected = [tokenizer.piece(token) for token in best_ids]
        assert by_hand.names_of(candidates) == expected
    [all_logits] = task.forward(params, batch)
    assert_allclose(all_logits[positions], logits, rtol=1e-5, atol=1e-6)


def test_line_with_masks_is_encoded(masked):
    task, _ = masked
    ids = ids_of_two_masks(task.tokenizer)
    [encoded] = task.predictor.encode([TWO_MASKS])
    assert_array_equal(encoded[: len(ids)], ids)
    assert task.predictor.label(2) == "[MASK] 2"


LONG_TEXT = "the of " * 20


def test_line_needs_a_mask(masked, params):
    task, _ = masked
    predictor = task.predictor
    assert "[MASK]" in raised(RunError, predictor.predict, params, ["no mask"])


def test_long_line_is_refused_or_truncated(masked, params):
    task, _ = masked
    predictor = task.predictor
    lines = [f"[MASK] {LONG_TEXT}"]
    assert "--truncate" in raised(RunError, predictor.predict, params, lines)
    settings = Settings(top=1, truncate=True)
    [answer] = predictor.answers(params, lines, settings)
    assert "first 16" in answer.note
    assert len(answer.predictions) == 1


def test_truncated_mask_is_refused(masked, params):
    task, _ = masked
    predictor = task.predictor
    settings = Settings(top=1, truncate=True)
    line = f"{LONG_TEXT} [MASK]"
    message = raised(RunError, predictor.predict, params, [line], settings)
    assert "first 16 tokens" in message


def test_causal_model_is_refused(tmp_path):
    config = tiny.text_config(tmp_path)
    config.model.causal = True
    message = raised(ConfigError, gmlp_config.validate, config)
    assert "config.model.causal is True" in message
