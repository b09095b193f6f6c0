"""MAD's tasks: each answer is found again by a reader of the text."""

import numpy as np
import pytest

from gmlp_flax.data.synthetic import mad
from gmlp_flax.data.synthetic.recipe import IGNORED, Recipe
from gmlp_flax.errors import ConfigError

COUNT = 200


def generate(task, recipe: Recipe, training: bool = False):
    return task(recipe, np.random.default_rng(0), COUNT, training)


def shown(tokens: np.ndarray, targets: np.ndarray, mask: int) -> np.ndarray:
    """The text without masks."""
    return np.where(tokens == mask, targets, tokens)


@pytest.mark.parametrize(("task", "noise"), [(mad.recall, 0), (mad.noisy_recall, 16)])
def test_recall_asks_for_values_that_were_shown(task, noise):
    recipe = Recipe(length=64, vocab_size=16 + noise, noise=0.3)
    tokens, targets = generate(task, recipe)
    assert tokens.shape == (COUNT, 64)
    noisy_pairs = 0
    for row, answers in zip(tokens, targets, strict=True):
        value_of = {}
        for position in range(0, 64, 2):
            key, value = row[position : position + 2]
            if key >= 16:
                noisy_pairs += 1
                assert value >= 16
                assert answers[position] == IGNORED
                continue
            assert key < 8 <= value < 16
            if key in value_of:
                assert value == value_of[key] == answers[position]
            else:
                assert answers[position] == IGNORED
            value_of[key] = value
            assert answers[position + 1] == IGNORED
        assert answers[62] != IGNORED
    # one pair of the 31 before the last is never noise
    expected = COUNT * 30 * 0.3 if noise else 0
    assert noisy_pairs == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("task", "vocab_size"), [(mad.recall, 16), (mad.noisy_recall, 32), (mad.fuzzy_recall, 16)]
)
def test_a_causal_model_is_trained_on_every_next_token(task, vocab_size):
    recipe = Recipe(length=64, vocab_size=vocab_size)
    tokens, targets = generate(task, recipe, training=True)
    np.testing.assert_array_equal(targets[:, :-1], tokens[:, 1:])
    assert (targets[:, -1] == IGNORED).all()


@pytest.mark.parametrize(
    ("task", "vocab_size"), [(mad.recall, 16), (mad.noisy_recall, 32), (mad.fuzzy_recall, 16)]
)
def test_a_model_that_sees_later_tokens_reads_masks_in_place_of_the_same_answers(task, vocab_size):
    causal = Recipe(length=64, vocab_size=vocab_size)
    both = Recipe(length=64, vocab_size=vocab_size, both_ways=True)
    tokens, targets = generate(task, causal)
    masked, answers = generate(task, both)
    np.testing.assert_array_equal(answers[:, 1:], targets[:, :-1])
    is_asked = answers != IGNORED
    assert (masked[is_asked] == vocab_size).all()
    np.testing.assert_array_equal(shown(masked, answers, vocab_size), tokens)


def motifs(row: np.ndarray) -> list[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """The keys (below 7) and the values (7 to 14) of a text in turn, and where each value begins."""
    text = row.tolist()
    position = 0
    while text[position] == 15:
        position += 1
    found = []
    while position < len(text):
        start = position
        while text[position] < 7:
            position += 1
        middle = position
        while position < len(text) and 7 <= text[position] < 15:
            position += 1
        found.append((tuple(text[start:middle]), tuple(text[middle:position]), middle))
    return found


def test_fuzzy_recall_asks_for_values_of_known_keys():
    recipe = Recipe(length=96, vocab_size=16)
    tokens, targets = generate(mad.fuzzy_recall, recipe)
    sizes = set()
    for row, answers in zip(tokens, targets, strict=True):
        value_of = {}
        for key, value, start in motifs(row):
            assert len(key) == 3
            assert len(set(key)) == 3
            sizes.add(len(value))
            asked = answers[start - 1 : start - 1 + len(value)]
            if key in value_of:
                assert value == value_of[key]
                assert tuple(asked) == value
            else:
                assert (asked == IGNORED).all()
            value_of[key] = value
        assert answers[-2] != IGNORED, "the last value is always asked for"
    assert sizes == {1, 2, 3}


def test_keys_of_fuzzy_recall_have_one_to_three_tokens_in_training():
    recipe = Recipe(length=96, vocab_size=16, both_ways=True)
    tokens, targets = generate(mad.fuzzy_recall, recipe, training=True)
    sizes = set()
    for row, answers in zip(tokens, targets, strict=True):
        sizes |= {len(key) for key, _, _ in motifs(shown(row, answers, 16))}
    assert sizes == {1, 2, 3}


def test_selective_copying_asks_for_the_tokens_in_their_order():
    recipe = Recipe(length=64, vocab_size=16, copied=8)
    tokens, targets = generate(mad.selective_copying, recipe)
    for row, answers in zip(tokens, targets, strict=True):
        content = row[:55][row[:55] != 14]
        assert row[55] == 15
        assert (row[56:] == 14).all()
        np.testing.assert_array_equal(answers[56:], content)
        assert (answers[:56] == IGNORED).all()
        assert row[54] != 14
    got = len({tuple(row[:55] != 14) for row in tokens})
    assert got == COUNT


def test_compression_asks_for_everything():
    tokens, targets = generate(mad.compression, Recipe(length=32, vocab_size=16))
    np.testing.assert_array_equal(tokens, targets)
    assert (tokens[:, -1] == 15).all()
    got = set(np.unique(tokens[:, :-1]))
    assert got == set(range(15))


def test_memorization_asks_for_the_values_of_one_map():
    recipe = Recipe(length=32, vocab_size=256)
    tokens, targets = generate(mad.memorization, recipe)
    held_out = mad.memorization(recipe, np.random.default_rng(1), COUNT, False)
    value_of = mad.memory(256)
    for part, answers in ((tokens, targets), held_out):
        assert (part[:, 1::2] == 255).all()
        np.testing.assert_array_equal(answers[:, 1::2], value_of[part[:, 0::2]])
        assert (answers[:, 0::2] == IGNORED).all()
    assert len(set(value_of)) == 127
    assert set(value_of) < set(range(127, 255))
    got = set(np.unique(tokens[:, 0::2]))
    assert got == set(range(127))


@pytest.mark.parametrize(
    ("check", "sizes"),
    [
        (mad.check_recall, {"length": 63, "vocab_size": 16}),
        (mad.check_recall, {"length": 64, "vocab_size": 3}),
        (mad.check_noisy_recall, {"length": 64, "vocab_size": 19}),
        (mad.check_fuzzy_recall, {"length": 17, "vocab_size": 16}),
        (mad.check_fuzzy_recall, {"length": 64, "vocab_size": 6}),
        (mad.check_selective_copying, {"length": 33, "vocab_size": 16}),
        (mad.check_selective_copying, {"length": 64, "vocab_size": 3}),
        (mad.check_compression, {"length": 1, "vocab_size": 16}),
        (mad.check_memorization, {"length": 31, "vocab_size": 16}),
    ],
)
def test_sizes_that_do_not_fit_are_refused(check, sizes):
    with pytest.raises(ConfigError, match=str(sizes["length"])):
        check(Recipe(**sizes))


@pytest.mark.parametrize(
    ("task", "check", "sizes"),
    [
        (mad.recall, mad.check_recall, {"length": 4, "vocab_size": 4}),
        (mad.noisy_recall, mad.check_noisy_recall, {"length": 4, "vocab_size": 20}),
        (mad.fuzzy_recall, mad.check_fuzzy_recall, {"length": 18, "vocab_size": 7}),
        (mad.selective_copying, mad.check_selective_copying, {"length": 34, "vocab_size": 4}),
        (mad.compression, mad.check_compression, {"length": 2, "vocab_size": 3}),
        (mad.memorization, mad.check_memorization, {"length": 2, "vocab_size": 5}),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_the_smallest_sizes_are_taken(task, check, sizes, training):
    recipe = Recipe(**sizes)
    check(recipe)
    tokens, targets = generate(task, recipe, training)
    assert tokens.shape == targets.shape == (COUNT, sizes["length"])
    assert ((targets != IGNORED).sum(axis=1) >= 1).all()
