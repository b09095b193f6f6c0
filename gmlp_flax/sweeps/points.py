"""Sweeps over config keys: product, zipped, chained.

A point is a dict of dotted config names and their values; a sweep is a tuple of points. The functions take sweeps, or
{name: values, ...}, which stands for one sweep per name. They nest:

    product({"optimizer.learning_rate": [1e-5, 2e-5]}, zipped({"batch_size": [16, 32], "steps": [4000, 2000]}))

On a command line a sweep is the product of words KEY=VALUE,VALUE,... or, for keys that change together,
KEY:KEY=VALUE:VALUE,VALUE:VALUE,... Each word is a flag of its own (--grid=KEY=VALUE,...): the characters that could
separate several words in one flag, a space or a semicolon, are special to shells.

In code, a point may also name its config file, with an argument: {"config": "c4_ablation:sgu,scale=small"}.
"""

from __future__ import annotations

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
    """Every combination of one point per part, the last part changing fastest; without parts, one empty point.

    Raises:
        ConfigError: a name is unknown or is set by two parts, or a part is empty.
    """
    return tuple(_merged(points) for points in itertools.product(*_sweeps(parts)))


def zipped(*parts: Part) -> Points:
    """The first points of all parts together, then the second, and so on.

    Raises:
        ConfigError: as in `product`, or the parts differ in length.
    """
    sweeps = _sweeps(parts)
    if len(set(map(len, sweeps))) > 1:
        lengths = ", ".join(f"{'+'.join(sweep[0])}: {len(sweep)}" for sweep in sweeps)
        raise ConfigError(f"zipped values differ in number ({lengths}): give as many of each")
    return tuple(_merged(points) for points in zip(*sweeps, strict=True))


def chained(*parts: Part) -> Points:
    """The points of the first part, then the points of the second, and so on.

    Raises:
        ConfigError: a name is unknown, or a part is empty.
    """
    return tuple(itertools.chain(*_sweeps(parts)))


def parse(words: Iterable[str]) -> Points:
    """The product of KEY=VALUE,VALUE,... and KEY:KEY=VALUE:VALUE,VALUE:VALUE,...

    Values stay text. A comma inside brackets does not separate values, nor does a colon in the values of a single key.

    Raises:
        ConfigError: a word has another form; otherwise as in `product`.
    """
    return product(*map(_parsed, words))


def _parsed(word: str) -> Points:
    key, equals, values = word.partition("=")
    keys = key.split(":")
    for key_name in keys:
        check_name(key_name, word)
    points = [value.split(":") if len(keys) > 1 else [value] for value in _values(values)]
    if not equals or not all(len(point) == len(keys) and all(point) for point in points):
        raise ConfigError(f"{word!r} is no part of a grid: expected {key}={':'.join('VALUE' for _ in keys)},...")
    return zipped(*({name: [point[place] for point in points]} for place, name in enumerate(keys)))


def _values(text: str) -> list[str]:
    """The parts between the commas that stand outside brackets; brackets in quotes, within others, are text."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif depth and letter in "\"'":
            quote = letter
        else:
            depth = max(0, depth + (letter in "([{") - (letter in ")]}"))
        if letter == "," and not (depth or quote):
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
    words = (_label(value) if name == CONFIG else f"{name}={value}" for name, value in point.items())
    return re.sub(r"[^\w.,=+-]+", "_", ",".join(words))


def _label(config: str) -> str:
    path, colon, argument = config.partition(":")
    stem = os.path.splitext(os.path.basename(path))[0]
    return f"{stem}{'-' * len(colon)}{argument.replace(',', '-').replace('=', '_')}"


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


def _merged(points: Iterable[Point]) -> Point:
    pairs = [pair for point in points for pair in point.items()]
    merged = dict(pairs)
    if len(merged) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ConfigError(f"the sweep sets {twice} twice: give all its values in one place")
    return merged
