"""Files numbered as parts of a set: `c4-train.00000-of-01024.json.gz`."""

import itertools
import os
import re
from collections.abc import Iterable

from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from gmlp_flax.io.files import File

NAME = re.compile(r"^(?P<stem>.*?)[-_.]?(?P<number>\d+)-of-(?P<count>\d+)")


def check(path: str, found: Iterable[File]) -> None:
    """Raises DataError if one of a set of numbered files in the folder `path` is not among those found there."""
    sets: dict[tuple[str, str, str], set[int]] = {}
    for file in found:
        folder, name = os.path.split(file.name)
        shard = NAME.match(name)
        if shard:
            key = (os.path.join(folder, shard["stem"]), shard["count"], files.suffix(name) + files.packing(name))
            sets.setdefault(key, set()).add(int(shard["number"]))
    for (stem, count, _), numbers in sets.items():
        missing = int(count) - len([number for number in numbers if number < int(count)])
        if missing > 0:
            first = next(number for number in itertools.count() if number not in numbers)
            more = f" and {missing - 1} more are" if missing > 1 else " is"
            raise DataError(
                f"{path!r}: of the {int(count)} shards of {stem!r}, {first:0{len(count)}d}-of-{count}{more} "
                "missing; copy the rest, or give single files"
            )
