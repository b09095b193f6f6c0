"""Texts some of whose tokens are answers."""

import numpy as np
import pytest

from gmlp_flax.data.synthetic.recipe import IGNORED, Recipe, Text, halves, stacked

X = IGNORED


@pytest.fixture
def text():
    """2, then the answer 7 8, then 3, behind padding."""
    written = Text()
    written.write([2])
    written.write([7, 8], asked=True)
    written.write([3])
    written.pad_left(6, pad=9)
    return written


def check(example, tokens, targets):
    assert example[0].tolist() == tokens
    assert example[1].tolist() == targets


def test_a_causal_model_is_scored_on_the_answers(text):
    recipe = Recipe(length=6, vocab_size=10)
    check(text.example(recipe, training=False), [9, 9, 2, 7, 8, 3], [X, X, 7, 8, X, X])


def test_a_causal_model_is_trained_on_every_next_token(text):
    recipe = Recipe(length=6, vocab_size=10)
    check(text.example(recipe, training=True), [9, 9, 2, 7, 8, 3], [9, 2, 7, 8, 3, X])


@pytest.mark.parametrize("training", [True, False])
def test_answers_are_masked_from_a_model_that_sees_later_tokens(text, training):
    recipe = Recipe(length=6, vocab_size=10, both_ways=True)
    check(text.example(recipe, training), [9, 9, 2, 10, 10, 3], [X, X, X, 7, 8, X])


def test_examples_are_stacked(text):
    recipe = Recipe(length=6, vocab_size=10)
    example = text.example(recipe, training=False)
    tokens, targets = stacked([example, example])
    assert tokens.shape == targets.shape == (2, 6)
    assert tokens.dtype == targets.dtype == np.int32


def test_the_upper_half_of_an_odd_vocabulary_is_the_larger():
    symbols = halves(5)
    assert symbols.keys.tolist() == [0, 1]
    assert symbols.values.tolist() == [2, 3, 4]
