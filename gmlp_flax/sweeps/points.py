"""Sweeps over config keys: product, zipped, chained.

A point is a dict of dotted config names and their values; a sweep is a tuple of points. The
functions take sweeps, or {name: values, ...}, which stands for one sweep per name. They nest:

    product({"optimizer.learning_rate": [1e-5, 2e-5]}, zipped({"batch_size": [16, 32], "steps":
    [4000, 2000]}))

On a command line a sweep is the product of words KEY=VALUE,VALUE,... or, for keys that change
together, KEY:KEY=VALUE:VALUE,VALUE:VALUE,... Each word is a flag of its own (--grid=KEY=VALUE,...):
the characters that could separate several words in one flag, a space or a semicolon, are special to
shells.

In code, a point may also name its config file, with an argument: {"config":
"c4_ablation:sgu,scale=small"}.
"""

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from gmlp_flax.config import check_name
from gmlp_flax.errors import ConfigError

Point = dict[str, Any]
Points = tuple[Point, ...]
Part = Mapping[str, Sequence[Any]] | Iterable[Point]

CONFIG = "config"  # the only name that is no key of the config


def product(*parts: Part) -> Points:
    """Every combination of one point per part, the last part changing fastest; without parts, one
    empty point.

    Raises:
        ConfigError: a name is unknown or is set by two parts, or a part is empty.
    """
    return tuple(_merge(points) for points in itertools.product(*_sweeps(parts)))


def zipped(*parts: Part) -> Points:
    """The first points of all parts together, then the second, and so on.

    Raises:
        ConfigError: as in `product`, or the parts differ in length.
    """
    sweeps = _sweeps(parts)
    if len(set(map(len, sweeps))) > 1:
        lengths = ", ".join(f"{'+'.join(sweep[0])}: {len(sweep)}" for sweep in sweeps)
        raise ConfigError(f"zipped values differ in number ({lengths}): give as many of each")
    return tuple(_merge(points) for points in zip(*sweeps, strict=True))


def chained(*parts: Part) -> Points:
    """The points of the first part, then the points of the second, and so on.

    Raises:
        ConfigError: a name is unknown, or a part is empty.
    """
    return tuple(itertools.chain(*_sweeps(parts)))


def parse(words: Iterable[str]) -> Points:
    """The product of KEY=VALUE,VALUE,... and KEY:KEY=VALUE:VALUE,VALUE:VALUE,...

    Values stay text. A comma inside brackets does not separate values, nor does a colon in the
    values of a single key.

    Raises:
        ConfigError: a word has another form; otherwise as in `product`.
    """
    return product(*map(_parse_word, words))


def _parse_word(word: str) -> Points:
    key, equals, values = word.partition("=")
    keys = key.split(":")
    for key_name in keys:
        check_name(key_name, word)
    points = [value.split(":") if len(keys) > 1 else [value] for value in _values(values)]
    if not equals or not all(len(point) == len(keys) and all(point) for point in points):
        raise ConfigError(
            f"{word!r} is no part of a grid: expected {key}={':'.join('VALUE' for _ in keys)},..."
        )
    return tuple(dict(zip(keys, point, strict=True)) for point in points)


def _values(text: str) -> list[str]:
    """The parts between the commas that stand outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth = max(0, depth + (letter in "([{") - (letter in ")]}"))
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def flags(point: Point) -> list[str]:
    """The command line's words for a point."""
    file = [f"--config={point[CONFIG]}"] if CONFIG in point else []
    return file + [f"--config.{name}={value}" for name, value in point.items() if name != CONFIG]


def name(point: Point) -> str:
    """A name for a point's folder: KEY=VALUE,KEY=VALUE, with FILESTEM-ARGUMENT for its config.

    Values that differ only in punctuation may share a name.
    """
    words = []
    for key, value in point.items():
        if key == CONFIG:
            path, colon, argument = value.partition(":")
            stem = os.path.splitext(os.path.basename(path))[0]
            words.append(f"{stem}{'-' * len(colon)}{argument.replace(',', '-').replace('=', '_')}")
        else:
            words.append(f"{key}={value}")
    return re.sub(r"[^\w.,=+-]+", "_", ",".join(words))


def _sweeps(parts: Iterable[Part]) -> list[Points]:
    sweeps: list[Points] = []
    for part in parts:
        if not isinstance(part, Mapping):
            sweeps.append(tuple(part))
            continue
        for key, values in cast("Mapping[str, Sequence[Any]]", part).items():
            if isinstance(values, str):
                raise ConfigError(f"the sweep over {key} is {values!r}: expected a list of values")
            sweeps.append(tuple({key: value} for value in values))
    for key in dict.fromkeys(name for sweep in sweeps for point in sweep for name in point):
        if key != CONFIG:
            check_name(key, "the sweep")
    if not all(sweeps):
        raise ConfigError("a sweep without a value: give each key at least one")
    return sweeps


def _merge(points: Iterable[Point]) -> Point:
    merged: Point = {}
    for point in points:
        if twice := [key for key in point if key in merged]:
            raise ConfigError(f"the sweep sets {twice[0]} twice: give all its values in one place")
        merged |= point
    return merged
