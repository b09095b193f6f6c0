"""Options: what can be set, its default, its meaning, and the values that make sense.

A block declares its options as fields of its spec, a task as a table; `schema.py` makes config keys of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class Range(NamedTuple):
    """Numbers from `least` to `most`; `words` say so to a user."""

    words: str
    least: float = -math.inf
    most: float = math.inf


_ABOVE_0, _BELOW_1 = math.nextafter(0, 1), math.nextafter(1, 0)
AT_LEAST_0 = Range("at least 0", 0)
AT_LEAST_1 = Range("at least 1", 1)
ABOVE_0 = Range("above 0", _ABOVE_0)
ANY_NUMBER = Range("a number")
SHARE = Range("a share from 0 to 1", 0, 1)
SHARE_BELOW_1 = Range("a share from 0 to below 1", 0, _BELOW_1)
SHARE_ABOVE_0 = Range("a share above 0 and at most 1", _ABOVE_0, 1)
INNER_SHARE = Range("a share above 0 and below 1", _ABOVE_0, _BELOW_1)
DECAY = Range("a decay from 0 to below 1", 0, _BELOW_1)
RATE = Range("a rate from 0 to below 1", 0, _BELOW_1)
PROBABILITY = Range("a probability above 0 and at most 1", _ABOVE_0, 1)


@dataclasses.dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        default: its value if nothing sets it; its type is the option's type.
        comment: what it means, in one line.
        values: the values that make sense: a range of numbers, or all of them one by one; None for any.
        architecture: whether it is part of what a model is: finetuning takes it over from the pretrained model, and
            runs that differ in it are different models. Other options say how a model is initialised or run.
    """

    default: Any
    comment: str
    values: Range | tuple | None = None
    architecture: bool = False

    def problem(self, value: Any) -> str:
        """What was expected, if a value makes no sense; else an empty string."""
        if isinstance(self.values, Range):
            good = isinstance(value, int | float) and self.values.least <= value <= self.values.most  # no NaN
            return "" if good else f"expected {self.values.words}"
        if self.values and value not in self.values:
            return f"expected one of {', '.join(map(str, self.values))}"
        return ""

    @property
    def meaning(self) -> str:
        """The comment, with the values if they are few."""
        return f"{self.comment} ({', '.join(map(str, self.values))})" if type(self.values) is tuple else self.comment


def option(default: Any, comment: str, values: Range | tuple | None = None, *, architecture: bool = False) -> Any:
    """A field of a spec that is an option; the arguments are those of `Option`."""
    declared = Option(default, comment, values, architecture)
    return dataclasses.field(default=default, metadata={"option": declared})


def options_of(spec: type) -> Mapping[str, Option]:
    """The options that a spec declares, by name, inherited ones first."""
    fields = dataclasses.fields(spec)
    return {field.name: field.metadata["option"] for field in fields if "option" in field.metadata}
