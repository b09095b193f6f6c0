"""Making a data set of ListOps once, in the form in which Long Range Arena publishes it."""

import itertools
import json
import re

from gmlp_flax.data.listops import trees
from gmlp_flax.data.listops.trees import Grammar
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, json_files

FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}  # by split
SPLITS = tuple(FILES)
PUBLISHED = (96_000, 2_000, 2_000)  # trees of each split
FACTS = "listops.json"

_MOST = 10_000_000  # trees of a split
_DEEPEST = 100  # levels; each is a call in a call


def parse_sizes(given: str) -> tuple[int, ...]:
    """The trees of SPLITS: of `paper` the published ones, else of TRAIN,VALIDATION,TEST.

    Raises:
        DataError: it is neither.
    """
    if given == "paper":
        return PUBLISHED
    sizes = parse_numbers(given, f"listops:{given}", len(SPLITS))
    if not all(1 <= size <= _MOST for size in sizes):
        raise DataError(f"listops:{given}: expected from 1 to {_MOST:,} trees in each split")
    return sizes


def parse_numbers(given: str, what: str, count: int) -> tuple[int, ...]:
    """So many numbers with commas between; raises DataError, naming `what`, if they are not that."""
    if not re.fullmatch(rf"[0-9]{{1,9}}(,[0-9]{{1,9}}){{{count - 1}}}", given):
        raise DataError(f"{what}: expected {count} numbers with commas between them")
    return tuple(map(int, given.split(",")))


def make(folder: str, sizes: tuple[int, ...], grammar: Grammar = Grammar(), seed: int = 0) -> int:
    """Makes the data set, unless the folder has it already, and returns the symbols of its longest tree.

    The same arguments give the same bytes. The trees of all splits differ from each other.

    Raises:
        DataError: the grammar makes no sense; the folder holds another data set or cannot be written to; or as in
            `trees.generate`.
    """
    if not 0 <= grammar.shortest < grammar.longest - 1 <= 2**20:
        raise DataError(f"lengths {grammar.shortest},{grammar.longest}: expected two numbers with one between them")
    if not 2 <= grammar.depth <= _DEEPEST:
        raise DataError(f"depth {grammar.depth}: expected 2 to {_DEEPEST}")
    asked = {"sizes": list(sizes), **grammar._asdict(), "seed": seed}
    names = files.listdir(folder)
    if FACTS in names:  # it is written last
        facts = json_files.read(files.join(folder, FACTS), dict)
        if facts.get("made of") != asked:
            raise DataError(f"{folder!r} holds another data set, {facts.get('made of', 'unknown')}: give another")
        return facts.get("longest", grammar.longest - 1)
    if {name for name in names if not name.startswith(".")} - {*FILES.values()}:
        raise DataError(f"{folder!r} holds other files: give a new folder")
    stream, longest = trees.generate(grammar, seed), 0
    for name, size in zip(SPLITS, sizes, strict=True):
        content = bytearray(b"Source\tTarget\n")
        for tree in itertools.islice(stream, size):
            longest = max(longest, tree.length)
            content += f"{tree.text}\t{tree.value}\n".encode()
        files.write(files.join(folder, FILES[name]), bytes(content))
    files.write(files.join(folder, FACTS), (json.dumps({"made of": asked, "longest": longest}) + "\n").encode())
    return longest
