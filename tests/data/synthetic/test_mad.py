"""MAD's tasks: a slow reader of the tokens finds each answer."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gmlp_flax.data.synthetic import mad
from gmlp_flax.data.synthetic.recipe import IGNORED, Recipe
from gmlp_flax.errors import ConfigError

COUNT = 200


def generate(task, recipe: Recipe, training: bool = False):
    rng = np.random.default_rng(0)
    return task(recipe, rng, COUNT, training)


def unmasked(tokens: np.ndarray, targets: np.ndarray, mask: int) -> np.ndarray:
    """The tokens, with the answers in place of masks."""
    return np.where(tokens == mask, targets, tokens)


@pytest.mark.parametrize(("task", "noise"), [(mad.recall, 0), (mad.noisy_recall, 16)])
def test_recall_asks_for_values_of_earlier_keys(task, noise):
    recipe = Recipe(length=64, vocab_size=16 + noise, noise=0.3)
    tokens, targets = generate(task, recipe)
    assert tokens.shape == (COUNT, 64)
    noisy_pairs = 0
    for row, answers in zip(tokens, targets, strict=True):
        value_of = {}
        for position in range(0, 64, 2):
            key = row[position]
            value = row[position + 1]
            answer = answers[position]
            if key >= 16:
                noisy_pairs += 1
                assert value >= 16
                assert answer == IGNORED
                continue
            assert key < 8 <= value < 16
            if key in value_of:
                assert value == value_of[key]
                assert answer == value
            else:
                assert answer == IGNORED
            value_of[key] = value
            assert answers[position + 1] == IGNORED
        assert answers[62] != IGNORED
    # one pair of the 31 before the last is never noise
    expected = COUNT * 30 * 0.3 if noise else 0
    assert noisy_pairs == pytest.approx(expected, rel=0.1)


RECALL_TASKS = [
    (mad.recall, 16),
    (mad.noisy_recall, 32),
    (mad.fuzzy_recall, 16),
]


@pytest.mark.parametrize(("task", "vocab_size"), RECALL_TASKS)
def test_causal_models_are_trained_on_every_next_token(task, vocab_size):
    recipe = Recipe(length=64, vocab_size=vocab_size)
    tokens, targets = generate(task, recipe, training=True)
    next_tokens = tokens[:, 1:]
    before_last = targets[:, :-1]
    assert_array_equal(before_last, next_tokens)
    last = targets[:, -1]
    assert (last == IGNORED).all()


@pytest.mark.parametrize(("task", "vocab_size"), RECALL_TASKS)
def test_bidirectional_models_see_masks_in_place_of_the_same_answers(task, vocab_size):
    causal = Recipe(length=64, vocab_size=vocab_size)
    bidirectional = dataclasses.replace(causal, both_ways=True)
    tokens, targets = generate(task, causal)
    masked, answers = generate(task, bidirectional)
    later_answers = answers[:, 1:]
    earlier_targets = targets[:, :-1]
    assert_array_equal(later_answers, earlier_targets)
    is_asked = answers != IGNORED
    assert (masked[is_asked] == vocab_size).all()
    restored = unmasked(masked, answers, vocab_size)
    assert_array_equal(restored, tokens)


class Pair(NamedTuple):
    """A key and its value in a text, and the position where the value begins."""

    key: tuple[int, ...]
    value: tuple[int, ...]
    value_start: int


def pairs_of(row: np.ndarray) -> list[Pair]:
    """The pairs of keys (tokens below 7) and values (7 to 14) of a text, in order."""
    text = row.tolist()
    position = 0
    while text[position] == 15:
        position += 1
    pairs = []
    while position < len(text):
        start = position
        while text[position] < 7:
            position += 1
        key = tuple(text[start:position])
        value_start = position
        while position < len(text) and 7 <= text[position] < 15:
            position += 1
        value = tuple(text[value_start:position])
        pairs.append(Pair(key, value, value_start))
    return pairs


def test_fuzzy_recall_asks_for_values_of_known_keys():
    recipe = Recipe(length=96, vocab_size=16)
    tokens, targets = generate(mad.fuzzy_recall, recipe)
    sizes = set()
    for row, answers in zip(tokens, targets, strict=True):
        value_of = {}
        for pair in pairs_of(row):
            assert len(pair.key) == 3
            assert len(set(pair.key)) == 3
            sizes.add(len(pair.value))
            first = pair.value_start - 1  # a causal model predicts the next token
            stop = first + len(pair.value)
            asked = answers[first:stop]
            if pair.key in value_of:
                assert pair.value == value_of[pair.key]
                assert tuple(asked) == pair.value
            else:
                assert (asked == IGNORED).all()
            value_of[pair.key] = pair.value
        assert answers[-2] != IGNORED, "the last value is always asked for"
    assert sizes == {1, 2, 3}


def test_training_keys_of_fuzzy_recall_have_one_to_three_tokens():
    recipe = Recipe(length=96, vocab_size=16, both_ways=True)
    tokens, targets = generate(mad.fuzzy_recall, recipe, training=True)
    sizes = set()
    for row, answers in zip(tokens, targets, strict=True):
        for pair in pairs_of(unmasked(row, answers, 16)):
            sizes.add(len(pair.key))
    assert sizes == {1, 2, 3}


def test_selective_copying_asks_for_the_tokens_in_order():
    recipe = Recipe(length=64, vocab_size=16, copied=8)
    tokens, targets = generate(mad.selective_copying, recipe)
    layouts = set()
    for row, answers in zip(tokens, targets, strict=True):
        shown = row[:55]
        is_content = shown != 14
        layouts.add(tuple(is_content))
        assert row[55] == 15
        assert (row[56:] == 14).all()
        assert_array_equal(answers[56:], shown[is_content])
        assert (answers[:56] == IGNORED).all()
        assert is_content[54]
    assert len(layouts) == COUNT


def test_compression_asks_for_all_tokens():
    recipe = Recipe(length=32, vocab_size=16)
    tokens, targets = generate(mad.compression, recipe)
    assert_array_equal(tokens, targets)
    last = tokens[:, -1]
    assert (last == 15).all()
    before_last = tokens[:, :-1]
    symbols = np.unique(before_last)
    assert symbols.tolist() == list(range(15))


def test_memorization_asks_for_the_values_of_one_map():
    recipe = Recipe(length=32, vocab_size=256)
    value_of = mad.memory(256)
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        tokens, targets = mad.memorization(recipe, rng, COUNT, False)
        keys = tokens[:, 0::2]
        blanks = tokens[:, 1::2]
        distinct = set(np.unique(keys))
        assert distinct == set(range(127))
        assert (blanks == 255).all()
        value_targets = targets[:, 1::2]
        assert_array_equal(value_targets, value_of[keys])
        key_targets = targets[:, 0::2]
        assert (key_targets == IGNORED).all()
    values = set(value_of)
    assert len(values) == 127
    assert values < set(range(127, 255))


@pytest.mark.parametrize(
    ("check", "length", "vocab_size"),
    [
        (mad.check_recall, 63, 16),
        (mad.check_recall, 64, 3),
        (mad.check_noisy_recall, 64, 19),
        (mad.check_fuzzy_recall, 17, 16),
        (mad.check_fuzzy_recall, 64, 6),
        (mad.check_selective_copying, 33, 16),
        (mad.check_selective_copying, 64, 3),
        (mad.check_compression, 1, 16),
        (mad.check_memorization, 31, 16),
    ],
)
def test_impossible_sizes_are_refused(check, length, vocab_size):
    recipe = Recipe(length=length, vocab_size=vocab_size)
    with pytest.raises(ConfigError, match=str(length)):
        check(recipe)


@pytest.mark.parametrize(
    ("task", "check", "length", "vocab_size"),
    [
        (mad.recall, mad.check_recall, 4, 4),
        (mad.noisy_recall, mad.check_noisy_recall, 4, 20),
        (mad.fuzzy_recall, mad.check_fuzzy_recall, 18, 7),
        (mad.selective_copying, mad.check_selective_copying, 34, 4),
        (mad.compression, mad.check_compression, 2, 3),
        (mad.memorization, mad.check_memorization, 2, 5),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_smallest_sizes_are_accepted(task, check, length, vocab_size, training):
    recipe = Recipe(length=length, vocab_size=vocab_size)
    check(recipe)
    tokens, targets = generate(task, recipe, training)
    assert tokens.shape == (COUNT, length)
    assert targets.shape == (COUNT, length)
    has_answer = (targets != IGNORED).any(axis=1)
    assert has_answer.all()
