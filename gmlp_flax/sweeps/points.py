"""Sweeps over config keys: product, zipped, chained.

A point is a dict of dotted config names and their values; a sweep is a tuple of points. The
functions take sweeps, or {name: values, ...}, which stands for one sweep per name. They nest:

    product({"optimizer.learning_rate": [1e-5, 2e-5]}, zipped({"batch_size": [16, 32], "steps":
    [4000, 2000]}))

On a command line a sweep is the product of words KEY=VALUE,VALUE,... or, for keys that change
together, KEY:KEY=VALUE:VALUE,VALUE:VALUE,... Each word is a separate flag (--grid=KEY=VALUE,...):
the characters that could separate words in one flag, a space or a semicolon, are special to shells.

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

CONFIG = "config"  # the only name that is not a key of the config


def product(*parts: Part) -> Points:
    """Every combination of one point per part, the last part changing fastest; without parts, one
    empty point.

    Raises:
        ConfigError: a name is unknown or is set by two parts, or a part is empty.
    """
    sweeps = _sweeps(parts)
    combinations = itertools.product(*sweeps)
    return tuple(_merge(points) for points in combinations)


def zipped(*parts: Part) -> Points:
    """The first points of all parts together, then the second, and so on.

    Raises:
        ConfigError: as in `product`, or the parts differ in length.
    """
    sweeps = _sweeps(parts)
    lengths = set(map(len, sweeps))
    if len(lengths) > 1:
        counts = []
        for sweep in sweeps:
            first = sweep[0]
            keys = "+".join(first)
            counts.append(f"{keys}: {len(sweep)}")
        all_counts = ", ".join(counts)
        raise ConfigError(f"zipped values differ in number ({all_counts}): give as many of each")
    aligned = zip(*sweeps, strict=True)
    return tuple(_merge(points) for points in aligned)


def chained(*parts: Part) -> Points:
    """The points of the first part, then the points of the second, and so on.

    Raises:
        ConfigError: a name is unknown, or a part is empty.
    """
    sweeps = _sweeps(parts)
    return tuple(itertools.chain(*sweeps))


def parse(words: Iterable[str]) -> Points:
    """The product of KEY=VALUE,VALUE,... and KEY:KEY=VALUE:VALUE,VALUE:VALUE,...

    Values stay text. A comma inside brackets does not separate values, nor does a colon in the
    values of a single key.

    Raises:
        ConfigError: a word has another form; otherwise as in `product`.
    """
    parts = [_parse_word(word) for word in words]
    return product(*parts)


def _parse_word(word: str) -> Points:
    """The points of KEY=VALUE,VALUE,... or KEY:KEY=VALUE:VALUE,..."""
    names, equals, values = word.partition("=")
    keys = names.split(":")
    for key in keys:
        check_name(key, word)
    count = len(keys)
    points = []
    for value in _values(values):
        cells = [value]
        if count > 1:
            cells = value.split(":")
        has_all = len(cells) == count and all(cells)
        if not equals or not has_all:
            expected = ":".join(["VALUE"] * count)
            raise ConfigError(f"{word!r} is not part of a grid: expected {names}={expected},...")
        point = dict(zip(keys, cells, strict=True))
        points.append(point)
    return tuple(points)


def _values(text: str) -> list[str]:
    """The parts between the commas that stand outside brackets."""
    parts = [""]
    depth = 0
    for letter in text:
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth = max(0, depth - 1)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def flags(point: Point) -> list[str]:
    """The command line's words for a point."""
    words = []
    if CONFIG in point:
        source = point[CONFIG]
        words.append(f"--config={source}")
    for key, value in point.items():
        if key != CONFIG:
            words.append(f"--config.{key}={value}")
    return words


def name(point: Point) -> str:
    """A name for a point's folder: KEY=VALUE,KEY=VALUE, with FILESTEM-ARGUMENT for its config.

    Values that differ only in punctuation may share a name.
    """
    words = []
    for key, value in point.items():
        if key == CONFIG:
            words.append(_config_name(value))
        else:
            words.append(f"{key}={value}")
    text = ",".join(words)
    return folder_name(text)


def folder_name(text: str) -> str:
    """A text with what does not belong in the name of a file or folder replaced."""
    return re.sub(r"[^\w.,=+-]+", "_", text)


def _config_name(source: str) -> str:
    """FILESTEM-ARGUMENT for a config PATH:ARGUMENT."""
    path, _, argument = source.partition(":")
    base = os.path.basename(path)
    stem, _ = os.path.splitext(base)
    if not argument:
        return stem
    with_hyphens = argument.replace(",", "-")
    words = with_hyphens.replace("=", "_")
    return f"{stem}-{words}"


def _sweeps(parts: Iterable[Part]) -> list[Points]:
    sweeps: list[Points] = []
    for part in parts:
        if not isinstance(part, Mapping):
            sweeps.append(tuple(part))
            continue
        values_of = cast("Mapping[str, Sequence[Any]]", part)
        for key, values in values_of.items():
            if isinstance(values, str):
                raise ConfigError(f"the sweep over {key} is {values!r}: expected a list of values")
            points = tuple({key: value} for value in values)
            sweeps.append(points)
    _check_names(sweeps)
    if not all(sweeps):
        raise ConfigError("a sweep without a value: give each key at least one")
    return sweeps


def _check_names(sweeps: Iterable[Points]) -> None:
    """Raises ConfigError for a name that no config has."""
    names: dict[str, None] = {}  # in order
    for points in sweeps:
        for point in points:
            names |= dict.fromkeys(point)
    names.pop(CONFIG, None)
    for key in names:
        check_name(key, "the sweep")


def _merge(points: Iterable[Point]) -> Point:
    merged: Point = {}
    for point in points:
        for key in point:
            if key in merged:
                raise ConfigError(f"the sweep sets {key} twice: give all its values in one place")
        merged |= point
    return merged
