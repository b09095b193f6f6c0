"""Options: what can be set, its default, its meaning, and the values that make sense.

A block declares its options as fields of its spec, a task as a table; `schema.py` makes config keys
of them.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class Range(NamedTuple):
    """Numbers from `least` to `most`; `words` say so to a user."""

    words: str
    least: float = -math.inf
    most: float = math.inf


_ABOVE_0 = math.nextafter(0, 1)
_BELOW_1 = math.nextafter(1, 0)
_MOST = 2**31 - 1  # a larger seed or index does not fit the arrays of a program
_NO_PATH = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")  # what no path of a file has
AT_LEAST_0 = Range("at least 0", 0)
AT_LEAST_1 = Range("at least 1", 1)
SIZE = Range("from 1 to 1,048,576", 1, 2**20)  # of an axis of an array
SIZE_OR_0 = Range("from 0 to 1,048,576", 0, 2**20)
VOCABULARY = Range("from 1 to 16,777,216", 1, 2**24)
ABOVE_0 = Range("above 0", _ABOVE_0)
ANY_NUMBER = Range("a number")
SHARE = Range("a share from 0 to 1", 0, 1)
SHARE_BELOW_1 = Range("a share from 0 to below 1", 0, _BELOW_1)
SHARE_ABOVE_0 = Range("a share above 0 and at most 1", _ABOVE_0, 1)
INNER_SHARE = Range("a share above 0 and below 1", _ABOVE_0, _BELOW_1)
DECAY = Range("a decay from 0 to below 1", 0, _BELOW_1)
RATE = Range("a rate from 0 to below 1", 0, _BELOW_1)
PROBABILITY = Range("a probability above 0 and at most 1", _ABOVE_0, 1)


# The types that an option takes, by the type of its default, and what messages call it.
_TAKEN: dict[type, tuple[type, ...]] = {float: (float, int)}
_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    tuple: "a tuple",
}


# Which runs of one table must agree in an option.
ALL_RUNS = "all runs"
RUNS_OF_A_ROW = "runs of a row"  # it is tuned for each row
FINETUNED_RUNS = "finetuned runs"  # though their models differ
NO_RUNS = "no runs"  # it says how a run is run, or which of several it is


@dataclasses.dataclass(frozen=True)
class Option:
    """One option, and what is known about it: the one place for facts about a key.

    Attributes:
        default: its value if nothing sets it; its type is the option's type.
        comment: what it means, in one line.
        values: the values that make sense: a range of numbers, or all of them one by one; None for
            any. Of a tuple, the range is that of its entries.
        architecture: whether it is part of what a model is: finetuning takes it over from the
            pretrained model, and runs that differ in it are different models. Other options say how
            a model is initialized or run.
        may_change: whether it may change in the middle of a run: it says how long the run is, how
            it is optimized, watched and saved, or how the same numbers are computed.
        inherited: whether a run takes it from the run that starts it, unless it sets it itself.
        selects_data: whether it says which data are read.
        may_move: whether it is a path of data, which may change in the middle of a run if the
            fingerprint of the data stays.
        reads: whether its value may be a path from which the run reads: a text, or a tuple of
            PATH=SHARE.
        compared: which runs of one table must agree in it: ALL_RUNS, RUNS_OF_A_ROW, FINETUNED_RUNS
            or NO_RUNS. Of a key of the model, whose rows differ in their models, only
            FINETUNED_RUNS counts.
        scaled: whether a smaller scale of an experiment shrinks it.
        softens_targets: whether the training loss has softened targets if it is not 0, so that it
            does not compare with the held-out loss.
        short: a short name, which `gmlp sweep --sweep.NAME` takes.
        aliases: its names in other libraries: a user who gives one is shown this key.
        former_name: its name before the last release: the config.json of a run may have it; a user
            who gives it is shown this key.
    """

    default: Any
    comment: str
    values: Range | tuple | None = None
    _: dataclasses.KW_ONLY
    architecture: bool = False
    may_change: bool = False
    inherited: bool = False
    selects_data: bool = False
    may_move: bool = False
    reads: bool = False
    compared: str = ALL_RUNS
    scaled: bool = False
    softens_targets: bool = False
    short: str = ""
    aliases: tuple[str, ...] = ()
    former_name: str = ""

    def problem(self, value: Any) -> str:
        """What was expected, if a value makes no sense; else an empty string."""
        if isinstance(self.default, tuple) and isinstance(value, tuple):
            return self._problem_of_entries(value)
        kind = type(self.default)
        accepted = _TAKEN.get(kind, (kind,))
        if self.default is not None and type(value) not in accepted:
            name = _NAMES.get(kind, kind.__name__)
            return f"expected {name}"
        return self._problem_of_choice(value) or _problem_of_kind(value, kind)

    def _problem_of_choice(self, value: Any) -> str:
        """The same for a value of the right type, which may not be one of `values`."""
        if self.values is None:
            return ""
        if isinstance(self.values, Range):
            is_inside = self.values.least <= value <= self.values.most  # NaN is not
            return "" if is_inside else f"expected {self.values.words}"
        if value in self.values:
            return ""
        known = ", ".join(str(choice or repr(choice)) for choice in self.values)
        return f"expected one of {known}"

    def _problem_of_entries(self, values: tuple) -> str:
        """The same for a tuple: an empty default stands for any number of strings, one of one entry
        for one or more."""
        if len(self.default) == 1 and not values:
            return f"expected one value or more, as in {self.default}"
        if len(self.default) > 1 and len(values) != len(self.default):
            return f"expected {len(self.default)} values, as in {self.default}"
        entry = Option(self.default[0] if self.default else "", "", self.values)
        for value in values:
            problem = entry.problem(value)
            if problem:
                return f"in it is {value!r}: {problem}"
        return ""

    @property
    def meaning(self) -> str:
        """The comment, with the values if they are few."""
        if type(self.values) is tuple:
            return f"{self.comment} ({', '.join(map(str, self.values))})"
        return self.comment


def _problem_of_kind(value: Any, kind: type) -> str:
    """The same for a value that no run can use, whatever the option."""
    if kind is int and abs(value) > _MOST:
        return f"expected at most {_MOST:,}"
    if kind is float:
        largest = math.nextafter(math.inf, 0)
        is_finite = abs(value) <= largest  # neither NaN nor a larger int is
        return "" if is_finite else "expected a finite number"
    if kind is str and _NO_PATH.search(value):
        return "expected text without a zero byte or a lone surrogate"
    return ""


def option(default: Any, *args: Any, **kwargs: Any) -> Any:
    """A field of a spec that is an option; the arguments are those of `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(default, *args, **kwargs)})


def options_of(spec: type) -> Mapping[str, Option]:
    """The options that a spec declares, by name, inherited ones first."""
    options = {}
    for field in dataclasses.fields(spec):
        if "option" in field.metadata:
            options[field.name] = field.metadata["option"]
    return options
