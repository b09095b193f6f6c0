"""The data of a side, "train" or "heldout": which key of config.data names them, and how a data set
is split.

The held-out side reads config.data.heldout. If that is empty, both sides share config.data.train:
its splits, or a share of its examples (see data.splits). With config.data.search another share of
the training data is held out.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax.data.splits import Side
from gmlp_flax.errors import DataError

EMBEDDED = "embedded"  # the value of config.data.train that stands for data which needs no download


def key_of(config: ConfigDict, side: str) -> str:
    """The key of config.data that names the data of a side."""
    return (
        "heldout"
        if side == "heldout" and config.data.heldout and not config.data.search
        else "train"
    )


def share_of(config: ConfigDict) -> float:
    """The share of the training data that is held out; negative (see data.splits) if settings are
    searched."""
    share = config.data.heldout_share
    return -min(share, 0.4) if config.data.search else 0.0 if config.data.heldout else share


def path_of(config: ConfigDict, side: str, expected: str = "PATH") -> str:
    """The value of that key; raises DataError if it is not set, with an example of what is
    `expected`."""
    key = key_of(config, side)
    if not config.data[key]:
        raise DataError(f"config.data.{key} is not set; give --config.data.{key}={expected}")
    return config.data[key]


def open_side(
    config: ConfigDict,
    side: str,
    opener: Callable[..., Any],
    expected: str = "PATH",
    **options: Any,
) -> Any:
    """Calls `opener(path, side=splits.Side(...), **options)`.

    Raises:
        DataError: the key is not set, as in `path_of`; or what the opener raises, with the key in
            front.
    """
    data, path = config.data, path_of(config, side, expected)
    wanted = Side(side, data.split, "" if data.search else data.heldout_split, share_of(config))
    with errors_name(f"data.{key_of(config, side)}"):
        return opener(path, side=wanted, **options)


@contextlib.contextmanager
def errors_name(key: str, other: str = "") -> Iterator[None]:
    """Names config.`key`, and config.`other` if given, in a DataError of the block."""
    try:
        yield
    except DataError as error:
        raise DataError(f"config.{key}: {error}{other and f' (config.{other})'}") from None


def warn(side: str, units: str, message: str) -> None:
    """Tells on standard error what was skipped or cut in the data of a side; `units` are what it
    holds."""
    print(f"{side} {units}: {message}", file=sys.stderr)
