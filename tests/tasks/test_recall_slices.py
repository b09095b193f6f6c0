"""AR hits against a loop over all pairs, and the share of the gap between two models as in
Zoology."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gmlp_flax.errors import RunError
from gmlp_flax.tasks import recall_slices
from gmlp_flax.tasks.recall_slices import HIDDEN, MaskedTokens, SliceLosses
from tests.failures import raised

LENGTH = 24


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def random_tokens(rng, rows=6):
    """Sequences of a few different tokens, so that bigrams repeat; some tokens are hidden."""
    tokens = rng.integers(5, 10, (rows, LENGTH)).astype(np.int32)
    is_hidden = rng.random(tokens.shape) < 0.1
    tokens[is_hidden] = HIDDEN
    return tokens


def earlier_hits(tokens, documents):
    """By a loop over all positions of one sequence."""
    hits = [False]
    for t in range(1, len(tokens)):
        bigram = (tokens[t - 1], tokens[t])
        earlier = []
        for s in range(1, t):
            if documents[s] == documents[t]:
                bigram_before = (tokens[s - 1], tokens[s])
                earlier.append(bigram_before)
        is_hit = HIDDEN not in bigram and bigram in earlier
        hits.append(is_hit)
    return hits


@pytest.mark.parametrize("count", [1, 3])
def test_token_repeats_an_earlier_bigram(rng, count):
    """In sequences of one document and of up to three."""
    tokens = random_tokens(rng)
    numbers = rng.integers(0, count, tokens.shape)
    documents = np.sort(numbers, axis=1)
    repeats = jax.vmap(recall_slices.repeat_earlier_bigrams)
    found = repeats(tokens, documents)
    expected = []
    for row, row_documents in zip(tokens, documents, strict=True):
        expected.append(earlier_hits(row, row_documents))
    assert_array_equal(found, expected)
    half = tokens.size / 2
    assert 10 < np.sum(expected) < half


def test_example_of_the_definition():
    """Hakuna Matata means no worries. Hakuna Matata it means no -> worries."""
    hakuna, matata, means, no, worries, it = range(10, 16)
    first = [hakuna, matata, means, no, worries]
    second = [hakuna, matata, it, means, no, worries]
    tokens = jnp.asarray(first + second)
    one_document = jnp.zeros_like(tokens)
    found = recall_slices.repeat_earlier_bigrams(tokens, one_document)
    positions = np.flatnonzero(found)
    assert positions.tolist() == [6, 9, 10]


def visible_hit(sequence, position, target):
    """Whether one prediction completes a visible bigram, by a loop. `sequence` is (visible,
    documents, is_frequent) of one example."""
    visible, documents, is_frequent = sequence
    bigrams = []
    for s in range(1, LENGTH):
        if documents[s] == documents[position]:
            bigram = (visible[s - 1], visible[s])
            bigrams.append(bigram)
    with_left = False
    if position > 0:
        left = visible[position - 1]
        is_known = left != HIDDEN and (left, target) in bigrams
        with_left = is_known and not is_frequent[position]
    with_right = False
    if position + 1 < LENGTH:
        right = visible[position + 1]
        is_known = right != HIDDEN and (target, right) in bigrams
        right_position = position + 1
        with_right = is_known and not is_frequent[right_position]
    return with_left or with_right


def masked_tokens(rng, documents, rows=12):
    """Random sequences with five tokens each to predict, including the first and the last."""
    tokens = random_tokens(rng, rows)
    is_hidden = tokens == HIDDEN
    tokens = np.where(is_hidden, 5, tokens)
    predicted = np.int32([0, 3, 4, 11, LENGTH - 1])
    positions = np.tile(predicted, (rows, 1))
    targets = np.take_along_axis(tokens, positions, axis=1)
    visible = tokens.copy()
    np.put_along_axis(visible, positions, HIDDEN, axis=1)
    is_frequent = rng.random(tokens.shape) < 0.3
    return MaskedTokens(
        jnp.asarray(visible),
        jnp.asarray(positions),
        jnp.asarray(targets),
        jnp.asarray(documents),
        jnp.asarray(is_frequent),
    )


@pytest.mark.parametrize("count", [1, 3])
def test_masked_token_completes_a_visible_bigram(rng, count):
    numbers = rng.integers(0, count, (12, LENGTH))
    documents = np.sort(numbers, axis=1)
    masked = masked_tokens(rng, documents)
    repeat_visible_bigrams = jax.vmap(recall_slices.repeat_visible_bigrams)
    found = np.asarray(repeat_visible_bigrams(masked))
    expected = np.zeros_like(found)
    arrays = []
    for array in masked:
        arrays.append(np.asarray(array).tolist())
    rows = zip(*arrays, strict=True)
    for row, fields in enumerate(rows):
        visible, positions, targets, documents_of_row, is_frequent = fields
        sequence = (visible, documents_of_row, is_frequent)
        predictions = zip(positions, targets, strict=True)
        for index, (position, target) in enumerate(predictions):
            expected[row, index] = visible_hit(sequence, position, target)
    assert_array_equal(found, expected)
    hits = expected.sum()
    assert 3 < hits < expected.size - 3


# Metrics, and the gap between two models.


def test_other_slice_is_the_rest():
    sums = {
        "loss": (20.0, 10.0),
        "accuracy": (6.0, 10.0),
        "recall_loss": (2.0, 4.0),
        "recall_accuracy": (3.0, 4.0),
    }
    metrics = recall_slices.metrics_of(sums)
    assert metrics == {
        "recall_perplexity": pytest.approx(math.exp(0.5)),
        "recall_accuracy": 0.75,
        "recall_predictions": 4,
        "other_perplexity": pytest.approx(math.exp(3)),
        "other_accuracy": 0.5,
        "other_predictions": 6,
    }
    sums["recall_loss"] = sums["recall_accuracy"] = (0.0, 0.0)
    assert "recall_perplexity" not in recall_slices.metrics_of(sums)
    assert recall_slices.metrics_of({"loss": (1.0, 1.0)}) == {}


def losses(perplexity, recall_perplexity, predictions=1000, recall_predictions=64):
    """The losses of a model with these perplexities."""
    loss = math.log(perplexity)
    recall_loss = math.log(recall_perplexity)
    return SliceLosses(predictions, loss, recall_predictions, recall_loss)


def test_share_of_the_gap():
    """Table 1 of Zoology, H3 of 168M and attention of 125M parameters, with 6.4 % AR hits."""
    attention = losses(11.01, 2.16)
    h3 = losses(12.06, 6.75)
    recall_gap = 64 * math.log(6.75 / 2.16)
    whole_gap = 1000 * math.log(12.06 / 11.01)
    by_hand = recall_gap / whole_gap
    found = recall_slices.share_of_gap(h3, attention)
    assert found == pytest.approx(by_hand)
    assert by_hand == pytest.approx(0.80, abs=0.01)
    assert recall_slices.share_of_gap(attention, h3) is None
    assert recall_slices.share_of_gap(h3, h3) is None


def test_models_scored_on_other_tokens_have_no_gap():
    first = losses(9, 2)
    second = losses(8, 2, recall_predictions=65)
    message = raised(RunError, recall_slices.share_of_gap, first, second)
    assert "64 and 65 of them" in message


def test_losses_of_an_evaluation():
    metrics = {
        "predictions": 10,
        "loss": 2.0,
        "recall_predictions": 3,
        "recall_perplexity": 4.0,
    }
    slice_losses = SliceLosses.of_metrics(metrics)
    assert slice_losses == (10, 2.0, 3, pytest.approx(math.log(4)))
    del metrics["recall_perplexity"]
    assert "eval.frequent_bigrams" in raised(RunError, SliceLosses.of_metrics, metrics)


def test_running_mean_is_scored_if_it_exists():
    metrics = {"loss": 2.0, "predictions": 10}
    assert recall_slices.of_running_mean(metrics) == metrics
    both = {**metrics, "ema_loss": 1.0, "ema_predictions": 10}
    assert recall_slices.of_running_mean(both) == {"loss": 1.0, "predictions": 10}
