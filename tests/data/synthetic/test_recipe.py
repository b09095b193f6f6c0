"""Texts in which some tokens are answers."""

import numpy as np
import pytest

from gmlp_flax.data.synthetic.recipe import IGNORED, Recipe, Text, halves, stacked

X = IGNORED


@pytest.fixture
def text():
    """Padding, then the tokens 2 7 8 3, of which 7 8 is the answer."""
    written = Text()
    written.write([2])
    written.write([7, 8], asked=True)
    written.write([3])
    written.pad_left(6, pad=9)
    return written


def assert_example(example, expected_tokens, expected_targets):
    tokens, targets = example
    assert tokens.tolist() == expected_tokens
    assert targets.tolist() == expected_targets


def test_causal_models_are_scored_on_the_answers(text):
    recipe = Recipe(length=6, vocab_size=10)
    example = text.example(recipe, training=False)
    assert_example(example, [9, 9, 2, 7, 8, 3], [X, X, 7, 8, X, X])


def test_causal_models_are_trained_on_every_next_token(text):
    recipe = Recipe(length=6, vocab_size=10)
    example = text.example(recipe, training=True)
    assert_example(example, [9, 9, 2, 7, 8, 3], [9, 2, 7, 8, 3, X])


@pytest.mark.parametrize("training", [True, False])
def test_answers_are_masked_for_bidirectional_models(text, training):
    recipe = Recipe(length=6, vocab_size=10, both_ways=True)
    example = text.example(recipe, training)
    assert_example(example, [9, 9, 2, 10, 10, 3], [X, X, X, 7, 8, X])


def test_examples_are_stacked(text):
    recipe = Recipe(length=6, vocab_size=10)
    example = text.example(recipe, training=False)
    tokens, targets = stacked([example, example])
    for array in (tokens, targets):
        assert array.shape == (2, 6)
        assert array.dtype == np.int32


def test_the_upper_half_of_an_odd_vocabulary_is_larger():
    symbols = halves(5)
    assert symbols.keys.tolist() == [0, 1]
    assert symbols.values.tolist() == [2, 3, 4]
