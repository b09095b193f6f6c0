"""Options, and the fields of specs that declare them."""

import dataclasses
import math

import pytest

from gmlp_flax.models.blocks import BLOCKS
from gmlp_flax.models.options import ABOVE_0, AT_LEAST_1, INNER_SHARE, Option, option, options_of


@pytest.mark.parametrize(("values", "good", "bad", "problem"), [
    (AT_LEAST_1, (1, 2.5), (0, math.nan, "1", None), "expected at least 1"),
    (ABOVE_0, (1e-300,), (0.0, -1), "expected above 0"),
    (INNER_SHARE, (0.5,), (0, 1), "expected a share above 0 and below 1"),
    (("a", "b"), ("a",), ("c", 1), "expected one of a, b"),
    (None, (math.nan, "x", ()), (), ""),
])
def test_values_that_make_sense(values, good, bad, problem):
    declared = Option(1, "a meaning", values)
    assert [declared.problem(value) for value in good] == [""] * len(good)
    assert [declared.problem(value) for value in bad] == [problem] * len(bad)


def test_few_values_are_part_of_the_meaning():
    assert Option("a", "the kind", ("a", "b")).meaning == "the kind (a, b)"
    assert Option(1, "the number", AT_LEAST_1).meaning == "the number"


def test_a_subclass_adds_options_and_may_replace_one():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Base:
        plain: int
        one: int = option(1, "the first")

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class More(Base):
        one: int = option(2, "the first, here 2", architecture=True)
        two: int = option(3, "the second")

    assert list(options_of(Base)) == ["one"] and list(options_of(More)) == ["one", "two"]
    assert options_of(More)["one"] == Option(2, "the first, here 2", architecture=True)
    assert (More(plain=0).one, More(plain=0).two) == (2, 3)


@pytest.mark.parametrize("block", BLOCKS)
def test_every_default_of_a_block_makes_sense(block):
    for name, declared in options_of(BLOCKS[block].Spec).items():
        assert not declared.problem(declared.default), name
    BLOCKS[block].spec(length=4)
