"""Data sets of synthetic tasks."""

import pickle

import pytest
from numpy.testing import assert_array_equal

from gmlp_flax.data.synthetic import kinds
from gmlp_flax.data.synthetic.kinds import KINDS
from gmlp_flax.data.synthetic.recipe import IGNORED, Recipe

RECIPE = Recipe(length=64, vocab_size=48, pairs=4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("both_ways", [False, True])
def test_examples_depend_on_seed_role_and_position_only(kind, both_ways):
    recipe = Recipe(length=64, vocab_size=48, pairs=4, both_ways=both_ways)
    dataset = kinds.dataset(kind, recipe, "heldout", 0, 300)
    longer = kinds.dataset(kind, recipe, "heldout", 0, 400)
    other_seed = kinds.dataset(kind, recipe, "heldout", 1, 300)
    training = kinds.dataset(kind, recipe, "train", 0, 300)
    for index in (0, 255, 256, 299):
        example = dataset.examples[index]
        same_example = longer.examples[index]
        assert_array_equal(example["tokens"], same_example["tokens"])
        assert_array_equal(example["targets"], same_example["targets"])
        for different in (other_seed, training):
            other_tokens = different.examples[index]["tokens"]
            assert (example["tokens"] != other_tokens).any()
    assert dataset.fingerprint != other_seed.fingerprint
    assert dataset.fingerprint != training.fingerprint


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("both_ways", [False, True])
def test_examples_have_at_most_the_declared_number_of_answers(kind, both_ways):
    recipe = Recipe(length=64, vocab_size=48, pairs=4, both_ways=both_ways)
    dataset = kinds.dataset(kind, recipe, "heldout", 0, 300)
    most = KINDS[kind].most_asked(recipe)
    answers = set()
    for index in range(300):
        example = dataset.examples[index]
        tokens = example["tokens"]
        targets = example["targets"]
        asked = targets[targets != IGNORED]
        assert 1 <= len(asked) <= most
        answers.update(asked.tolist())
        assert tokens.min() >= 0
        assert tokens.max() <= recipe.mask_id
    assert max(answers) < recipe.vocab_size
    if kind not in ("mqar", "compression"):
        assert len(answers) == KINDS[kind].answers(recipe)


def test_a_pickled_data_set_draws_the_same_examples():
    dataset = kinds.dataset("mqar", RECIPE, "train", 0, 10)
    first = dataset.examples[3]["tokens"]
    copy = pickle.loads(pickle.dumps(dataset.examples))
    assert_array_equal(copy[3]["tokens"], first)


def test_description_of_an_example_has_its_answers():
    recipe = Recipe(length=8, vocab_size=10, pairs=1)
    dataset = kinds.dataset("mqar", recipe, "train", 0, 10)
    example = dataset.examples[0]
    key, value = example["tokens"][:2]
    line = dataset.examples.describe(0)
    assert line.startswith(f"{key} {value} ")
    assert f"{key}>{value}" in line
    assert "multi-query associative recall, generated from seed 0" in dataset.form
