"""Multi-query associative recall, beside a slow reading of the published definition."""

import numpy as np
import pytest
from scipy import stats

from gmlp_flax.data.synthetic import mqar
from gmlp_flax.data.synthetic.recipe import IGNORED, Recipe
from gmlp_flax.errors import ConfigError

RECIPE = Recipe(length=64, vocab_size=256, pairs=4)


def examples(recipe: Recipe = RECIPE, count: int = 4000, seed: int = 0):
    return mqar.generate(recipe, np.random.default_rng(seed), count, True)


def slow_slots(rng: np.random.Generator, size: int, shares: np.ndarray) -> list[int]:
    """One slot after the other, by the shares of those that are left."""
    left = list(range(len(shares)))
    chosen = []
    for _ in range(size):
        weights = shares[left] / shares[left].sum()
        slot = left[int(rng.choice(len(left), p=weights))]
        left.remove(slot)
        chosen.append(slot)
    return chosen


def test_each_query_asks_for_the_value_of_its_key():
    tokens, targets = examples(count=500)
    for row, answers in zip(tokens, targets, strict=True):
        value_of = dict(zip(row[0:8:2], row[1:8:2], strict=True))
        assert len(value_of) == 4
        asked = np.flatnonzero(answers != IGNORED)
        assert len(asked) == 4
        assert asked.min() >= 8
        assert not (asked % 2).any()
        for position in asked:
            assert answers[position] == value_of[row[position]]
        assert sorted(row[asked]) == sorted(value_of)
        rest = np.setdiff1d(np.arange(8, 64), asked)
        assert not row[rest].any()


def test_keys_are_of_the_lower_half_and_values_of_the_upper():
    tokens, _ = examples()
    keys = tokens[:, 0:8:2]
    values = tokens[:, 1:8:2]
    assert set(np.unique(keys)) == set(range(1, 128))
    assert set(np.unique(values)) == set(range(128, 256))
    for array, symbols in ((keys, 127), (values, 128)):
        counts = np.bincount(array.ravel())
        assert stats.chisquare(counts[counts > 0]).pvalue > 1e-3
        assert (counts > 0).sum() == symbols


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_gaps_are_distributed_as_the_slow_reference_draws_them(power):
    """By the slot of the first pair, and of the last, whose choice is narrower."""
    recipe = Recipe(length=32, vocab_size=64, pairs=4, power=power)
    tokens, targets = examples(recipe, count=5_000)
    rng = np.random.default_rng(1)
    shares = mqar.gap_shares(12, power)
    slow = np.array([slow_slots(rng, 4, shares) for _ in range(5_000)])
    for pair in (0, 3):
        key = tokens[:, 2 * pair]
        is_query = (tokens == key[:, None]) & (targets != IGNORED)
        slots = (is_query.argmax(axis=1) - 8) // 2
        table = [np.bincount(slots, minlength=12), np.bincount(slow[:, pair], minlength=12)]
        assert stats.chi2_contingency(np.array(table)).pvalue > 1e-3


def test_shares_fall_with_the_gap_as_published():
    shares = mqar.gap_shares(12, 0.01)
    published = 0.01 * np.arange(1, 13) ** -0.99
    np.testing.assert_allclose(shares, published / published.sum(), rtol=1e-12)
    np.testing.assert_allclose(mqar.gap_shares(12, 1.0), 1 / 12)


def test_other_tokens_are_random_if_they_are_to_be_filled():
    recipe = Recipe(length=64, vocab_size=256, pairs=4, fill=True)
    tokens, targets = examples(recipe, count=500)
    rest = tokens[:, 8:][targets[:, 8:] == IGNORED]
    assert len(np.unique(rest)) == 256
    value_of = dict(zip(tokens[0, 0:8:2], tokens[0, 1:8:2], strict=True))
    for position in np.flatnonzero(targets[0] != IGNORED):
        assert targets[0, position] == value_of[tokens[0, position]]


def test_the_same_seed_gives_the_same_examples():
    np.testing.assert_array_equal(examples(seed=3).tokens, examples(seed=3).tokens)
    assert (examples(seed=3).tokens != examples(seed=4).tokens).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 63}, "an even length"),
        ({"length": 14}, "four tokens for each pair"),
        ({"vocab_size": 9}, "need at least 10"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        mqar.check(Recipe(**{"length": 64, "vocab_size": 256, "pairs": 4} | changes))


def test_the_smallest_sizes_are_taken():
    recipe = Recipe(length=16, vocab_size=10, pairs=4)
    mqar.check(recipe)
    tokens, targets = examples(recipe, count=100)
    assert tokens.shape == (100, 16)
    assert ((targets != IGNORED).sum(axis=1) == 4).all()


@pytest.mark.parametrize(("size", "ids"), [(16, 16), (30, 32), (200, 1000)])
def test_so_many_ids_that_most_draws_repeat_one_are_still_drawn(size, ids):
    """A chance of 1e-6 and less that none repeats."""
    rng = np.random.default_rng(0)
    drawn = mqar.draw_distinct(rng, 300, size, 1, 1 + ids)
    assert drawn.shape == (300, size)
    assert not mqar.has_repeats(drawn).any()
    assert drawn.min() == 1
    assert drawn.max() == ids
    firsts = np.bincount(drawn[:, 0] % 4, minlength=4)
    assert stats.chisquare(firsts).pvalue > 1e-3
