"""The trial of a user's block, before any run starts."""

import pytest

from gmlp_flax.config import validation
from gmlp_flax.errors import ConfigError
from gmlp_flax.models.blocks import find, trial
from tests.failures import raised

SIZES = {"length": 8, "layers": 1, "d_model": 16}


def spec_of(name, **options):
    return find(f"tests.custom_blocks:{name}").spec(**SIZES, **options)


@pytest.mark.parametrize("name", ["Averaging", "Shifting"])
def test_working_blocks_have_no_problem(name):
    for options in ({}, {"dropout": 0.1, "survival": 0.9}, {"dtype": "bfloat16"}):
        spec = spec_of(name, **options)
        assert not trial.problem_of_calls(spec)
        assert not trial.problem_of_values(spec)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Shortening", ("returns (1, 7, 16)", "(1, 8, 16)", "the same shape")),
        ("Rounding", ("returns int32", "float32")),
        ("Raising", ("raises KeyError: 'raised by a block'", "custom_blocks.py, line ")),
        ("WithoutMask", ("defines __call__", "expected __call__(self, x, rng, padding_mask)")),
        ("WithoutRngs", ("defines __init__", "expected __init__(self, spec, rngs)")),
    ],
)
def test_mistakes_are_named_without_computing(name, words):
    message = raised(ConfigError, validation.require_callable, name, spec_of(name))
    assert message.startswith(name)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("name", "words"),
    [("Logarithm", "returns NaN"), ("RootOfZero", "has NaN or infinite gradients")],
)
def test_numbers_that_are_not_finite_are_refused(name, words):
    message = raised(ConfigError, validation.require_finite, name, spec_of(name))
    assert words in message


def test_padding_is_tried_where_there_is_some():
    spec = spec_of("Unpadded")
    assert not trial.problem_of_calls(spec)
    problem = trial.problem_of_calls(spec, padded=True)
    assert "with a padding_mask raises NotImplementedError: no padding" in problem


def test_causal_blocks_take_a_cache():
    spec = spec_of("CausalWithoutCache", causal=True)
    assert "expected __call__(self, x, rng, padding_mask, cache)" in trial.problem_of_calls(spec)
