"""Keys whose text has a grammar of its own: learning-rate multipliers, rules of the mesh, the steps to profile."""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from gmlp_flax.errors import ConfigError
from gmlp_flax.models.sharding import DATA, FSDP, TENSOR

AXES = (DATA, FSDP, TENSOR)  # of a mesh, in the order of its devices
Axes = tuple[str | None, ...]
Rule = tuple[str, Axes]


class Multiplier(NamedTuple):
    """A factor on the learning rate of the parameters whose path matches `pattern`.

    `last` differs from `first` if the factor grows with depth: layer l of L has first^(1 - t) last^t, t = l / (L - 1).
    """

    pattern: str
    first: float
    last: float


def check_pattern(pattern: str, key: str) -> None:
    """Raises ConfigError if a pattern of `config.KEY` is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"config.{key}: {pattern!r} is no regular expression ({error})") from None


def lr_multipliers(lines: Iterable[str]) -> tuple[Multiplier, ...]:
    """Reads config.optimizer.lr_multipliers, each `PATTERN=FACTOR`, or `PATTERN=FIRST..LAST` for stacked layers.

    Raises ConfigError: a line has another form.
    """
    multipliers = []
    for line in lines:
        pattern, _, given = line.rpartition("=")
        first, dots, last = given.partition("..")
        check_pattern(pattern, "optimizer.lr_multipliers")
        try:
            factors = [float(first), float(last if dots else first)]
        except ValueError:
            factors = [math.nan]
        if not pattern or not all(0 < factor < math.inf for factor in factors):
            raise ConfigError(f"config.optimizer.lr_multipliers: {line!r} is not PATTERN=FACTOR or FIRST..LAST above 0")
        multipliers.append(Multiplier(pattern, *factors))
    return tuple(multipliers)


def mesh_rules(lines: Iterable[str]) -> tuple[Rule, ...]:
    """Reads config.mesh.rules, each `PATTERN=AXIS,AXIS,...` with `-` for an axis that stays whole.

    Raises ConfigError: a line has another form.
    """
    rules = []
    for line in lines:
        pattern, equals, names = line.rpartition("=")
        axes = tuple(None if name == "-" else name for name in names.split(",") if name)
        check_pattern(pattern, "mesh.rules")
        if not (pattern and equals) or not {*axes} <= {*AXES, None}:
            raise ConfigError(f"config.mesh.rules: {line!r} is not PATTERN=AXIS,..., each axis {', '.join(AXES)} or -")
        rules.append((pattern, axes))
    return tuple(rules)


def profile_steps(text: str, steps: int) -> range:
    """The steps that config.profile.steps asks a trace of, in a run of `steps`; FIRST:LAST, or empty for none.

    Raises ConfigError: it has another form, or there are no such steps.
    """
    if not text:
        return range(0)
    match = re.fullmatch(r"([0-9]{1,10}):([0-9]{1,10})", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]) <= steps:
        raise ConfigError(f"config.profile.steps is {text!r}: expected FIRST:LAST, from 1 to config.steps={steps}")
    return range(int(match[1]), int(match[2]) + 1)
