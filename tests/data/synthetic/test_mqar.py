"""Multi-query associative recall, compared with a slow version of the published definition."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from gmlp_flax.data.synthetic import mqar
from gmlp_flax.data.synthetic.recipe import IGNORED, Recipe
from gmlp_flax.errors import ConfigError

RECIPE = Recipe(length=64, vocab_size=256, pairs=4)


def examples(recipe: Recipe = RECIPE, count: int = 4000, seed: int = 0):
    rng = np.random.default_rng(seed)
    return mqar.generate(recipe, rng, count, True)


def values_by_key(row: np.ndarray) -> dict[int, int]:
    """The four pairs with which a text begins."""
    keys = row[0:8:2]
    values = row[1:8:2]
    return dict(zip(keys, values, strict=True))


def slow_slots(rng: np.random.Generator, size: int, shares: np.ndarray) -> list[int]:
    """Draws one slot after another, by the shares of the remaining slots."""
    remaining = list(range(len(shares)))
    chosen = []
    for _ in range(size):
        weights = shares[remaining]
        probabilities = weights / weights.sum()
        slot = int(rng.choice(remaining, p=probabilities))
        remaining.remove(slot)
        chosen.append(slot)
    return chosen


def test_each_query_asks_for_the_value_of_its_key():
    tokens, targets = examples(count=500)
    for row, answers in zip(tokens, targets, strict=True):
        value_of = values_by_key(row)
        assert len(value_of) == 4
        asked = np.flatnonzero(answers != IGNORED)
        assert len(asked) == 4
        assert asked.min() >= 8
        assert not (asked % 2).any()
        for position in asked:
            key = row[position]
            assert answers[position] == value_of[key]
        keys = sorted(row[asked])
        assert keys == sorted(value_of)
        after_context = np.arange(8, 64)
        rest = np.setdiff1d(after_context, asked)
        assert not row[rest].any()


@pytest.mark.parametrize(
    ("offset", "first", "last"),
    [pytest.param(0, 1, 127, id="keys"), pytest.param(1, 128, 255, id="values")],
)
def test_keys_and_values_are_drawn_evenly_from_their_half(offset, first, last):
    tokens, _ = examples()
    drawn = tokens[:, offset:8:2]
    symbols, counts = np.unique(drawn, return_counts=True)
    expected = list(range(first, last + 1))
    assert symbols.tolist() == expected
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_gaps_have_the_distribution_of_the_slow_reference(power):
    """Compares the slot of the first pair, and of the last, which has fewer slots to choose from."""
    recipe = Recipe(length=32, vocab_size=64, pairs=4, power=power)
    tokens, targets = examples(recipe, count=5_000)
    rng = np.random.default_rng(1)
    shares = mqar.gap_shares(12, power)
    rows = []
    for _ in range(5_000):
        rows.append(slow_slots(rng, 4, shares))
    slow = np.array(rows)
    for pair in (0, 3):
        key = tokens[:, 2 * pair]
        key_column = key[:, None]
        is_query = (tokens == key_column) & (targets != IGNORED)
        query_position = is_query.argmax(axis=1)
        slots = (query_position - 8) // 2
        counts = np.bincount(slots, minlength=12)
        slow_slots_of_pair = slow[:, pair]
        slow_counts = np.bincount(slow_slots_of_pair, minlength=12)
        table = np.stack([counts, slow_counts])
        test = stats.chi2_contingency(table)
        assert test.pvalue > 1e-3


def test_gap_shares_follow_the_published_power_law():
    gaps = np.arange(1, 13)
    published = 0.01 * gaps**-0.99
    expected = published / published.sum()
    shares = mqar.gap_shares(12, 0.01)
    assert_allclose(shares, expected, rtol=1e-12)
    equal_shares = mqar.gap_shares(12, 1.0)
    assert_allclose(equal_shares, 1 / 12)


def test_fill_makes_the_other_tokens_random():
    recipe = Recipe(length=64, vocab_size=256, pairs=4, fill=True)
    tokens, targets = examples(recipe, count=500)
    is_filled = targets == IGNORED
    is_filled[:, :8] = False
    filled = np.unique(tokens[is_filled])
    assert len(filled) == 256
    row = tokens[0]
    answers = targets[0]
    value_of = values_by_key(row)
    for position in np.flatnonzero(answers != IGNORED):
        key = row[position]
        assert answers[position] == value_of[key]


def test_the_same_seed_gives_the_same_examples():
    tokens = examples(seed=3).tokens
    same_tokens = examples(seed=3).tokens
    other_tokens = examples(seed=4).tokens
    assert_array_equal(tokens, same_tokens)
    assert (tokens != other_tokens).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 63}, "an even length"),
        ({"length": 14}, "four tokens for each pair"),
        ({"vocab_size": 9}, "need at least 10"),
    ],
)
def test_impossible_sizes_are_refused(changes, message):
    recipe = dataclasses.replace(RECIPE, **changes)
    with pytest.raises(ConfigError, match=message):
        mqar.check(recipe)


def test_smallest_sizes_are_accepted():
    recipe = Recipe(length=16, vocab_size=10, pairs=4)
    mqar.check(recipe)
    tokens, targets = examples(recipe, count=100)
    assert tokens.shape == (100, 16)
    answers_in_row = (targets != IGNORED).sum(axis=1)
    assert (answers_in_row == 4).all()


@pytest.mark.parametrize(("size", "ids"), [(16, 16), (30, 32), (200, 1000)])
def test_distinct_ids_are_drawn_even_if_nearly_every_draw_has_repeats(size, ids):
    """The probability that a draw has no repeats is at most 1e-6."""
    rng = np.random.default_rng(0)
    stop = 1 + ids
    drawn = mqar.draw_distinct(rng, 300, size, 1, stop)
    assert drawn.shape == (300, size)
    assert not mqar.has_repeats(drawn).any()
    assert drawn.min() == 1
    assert drawn.max() == ids
    first_column = drawn[:, 0]
    counts = np.bincount(first_column % 4, minlength=4)
    assert stats.chisquare(counts).pvalue > 1e-3
