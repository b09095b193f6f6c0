"""Data sets of synthetic tasks."""

import pickle

import numpy as np
import pytest

from gmlp_flax.data.synthetic import kinds
from gmlp_flax.data.synthetic.kinds import KINDS
from gmlp_flax.data.synthetic.recipe import IGNORED, Recipe

RECIPE = Recipe(length=64, vocab_size=48, pairs=4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("both_ways", [False, True])
def test_examples_are_a_function_of_seed_role_and_position(kind, both_ways):
    recipe = Recipe(length=64, vocab_size=48, pairs=4, both_ways=both_ways)
    dataset = kinds.dataset(kind, recipe, "heldout", 0, 300)
    again = kinds.dataset(kind, recipe, "heldout", 0, 400)
    other = kinds.dataset(kind, recipe, "heldout", 1, 300)
    training = kinds.dataset(kind, recipe, "train", 0, 300)
    for index in (0, 255, 256, 299):
        example = dataset.examples[index]
        np.testing.assert_array_equal(example["tokens"], again.examples[index]["tokens"])
        np.testing.assert_array_equal(example["targets"], again.examples[index]["targets"])
        assert (example["tokens"] != other.examples[index]["tokens"]).any()
        assert (example["tokens"] != training.examples[index]["tokens"]).any()
    assert dataset.fingerprint != other.fingerprint
    assert dataset.fingerprint != training.fingerprint


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("both_ways", [False, True])
def test_no_example_asks_for_more_than_is_said(kind, both_ways):
    recipe = Recipe(length=64, vocab_size=48, pairs=4, both_ways=both_ways)
    dataset = kinds.dataset(kind, recipe, "heldout", 0, 300)
    most = KINDS[kind].most_asked(recipe)
    answers = set()
    for index in range(300):
        example = dataset.examples[index]
        targets = example["targets"]
        asked = targets[targets != IGNORED]
        assert 1 <= len(asked) <= most
        answers.update(asked.tolist())
        assert example["tokens"].min() >= 0
        assert example["tokens"].max() <= recipe.mask_id
    assert max(answers) < recipe.vocab_size
    if kind not in ("mqar", "compression"):
        assert len(answers) == KINDS[kind].answers(recipe)


def test_a_worker_process_draws_the_same():
    dataset = kinds.dataset("mqar", RECIPE, "train", 0, 10)
    first = dataset.examples[3]["tokens"]
    copy = pickle.loads(pickle.dumps(dataset.examples))
    np.testing.assert_array_equal(copy[3]["tokens"], first)


def test_an_example_is_shown_with_its_answers():
    recipe = Recipe(length=8, vocab_size=10, pairs=1)
    dataset = kinds.dataset("mqar", recipe, "train", 0, 10)
    example = dataset.examples[0]
    key, value = example["tokens"][:2]
    line = dataset.examples.describe(0)
    assert line.startswith(f"{key} {value} ")
    assert f"{key}>{value}" in line
    assert "multi-query associative recall, generated from seed 0" in dataset.form
