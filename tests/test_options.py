"""Options, and the fields of specs that declare them."""

import dataclasses
import math

import pytest

from gmlp_flax.models.blocks import BLOCKS
from gmlp_flax.options import ABOVE_0, AT_LEAST_1, INNER_SHARE, Option, option, options_of

WHOLE = "expected a whole number"
NUMBER = "expected a number"
FINITE = "expected a finite number"
NO_TEXT = "expected text without a zero byte or a lone surrogate"
TWO = "expected 2 values, as in (1, 1)"


@pytest.mark.parametrize(
    ("default", "values", "good", "bad"),
    [
        (
            1,
            AT_LEAST_1,
            (1, 2),
            {0: "expected at least 1", 2.5: WHOLE, "1": WHOLE, None: WHOLE, True: WHOLE},
        ),
        (1, None, (-(2**31) + 1,), {2**31: "expected at most 2,147,483,647"}),
        (1.0, ABOVE_0, (1e-300, 3), {0.0: "expected above 0", math.inf: FINITE, "1": NUMBER}),
        (1.0, None, (-1e300,), {math.nan: FINITE, 10**400: FINITE, False: NUMBER}),
        (0.5, INNER_SHARE, (0.5,), {1: "expected a share above 0 and below 1"}),
        ("a", ("a", "b"), ("a",), {"c": "expected one of a, b", 1: "expected text"}),
        ("", ("", "b"), ("b",), {"c": "expected one of '', b"}),
        ("", None, ("x", "\udcff", "(x", "(a, b)"), {"\0": NO_TEXT, "\ud800": NO_TEXT}),
        (False, None, (True,), {1: "expected True or False"}),
        ((), None, ((), ("a",)), {(1,): "in it is 1: expected text", "a": "expected a tuple"}),
        ((1, 1), AT_LEAST_1, ((3, 4),), {(0, 1): "in it is 0: expected at least 1", (1,): TWO}),
        (None, None, (1, "x"), {}),
    ],
)
def test_valid_and_invalid_values(default, values, good, bad):
    declared = Option(default, "a meaning", values)
    got = [declared.problem(value) for value in good]
    assert got == [""] * len(good)
    problems = {value: declared.problem(value) for value in bad}
    assert problems == bad


def test_short_lists_of_values_are_part_of_the_help():
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

    assert list(options_of(Base)) == ["one"]
    assert list(options_of(More)) == ["one", "two"]
    assert options_of(More)["one"] == Option(2, "the first, here 2", architecture=True)
    assert More(plain=0).one == 2
    assert More(plain=0).two == 3


@pytest.mark.parametrize("block", BLOCKS)
def test_every_default_of_a_block_is_valid(block):
    options = options_of(BLOCKS[block].Spec)
    for name, declared in options.items():
        assert not declared.problem(declared.default), name
    BLOCKS[block].spec(length=4)
