"""Making a data set of ListOps once: a TFDS folder with the splits train, validation and test."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from gmlp_flax.data.listops import trees
from gmlp_flax.data.listops.trees import Grammar, Tree
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, json_files, tfds_folders

SPLITS = ("train", "validation", "test")
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


def make(folder: str, sizes: tuple[int, ...], grammar: Grammar = Grammar(), seed: int = 0) -> dict[str, Any]:
    """Makes the data set, unless the folder has it already, and returns the `trees.statistics` of each split.

    The same arguments give the same bytes. The trees of all splits differ from each other.

    Raises:
        DataError: the grammar makes no sense; the folder holds another data set or cannot be written to; or as in
            `trees.generate`.
    """
    if not 0 <= grammar.shortest < grammar.longest - 1 <= 2**20:
        raise DataError(
            f"lengths {grammar.shortest},{grammar.longest}: expected two numbers with one between them, up to "
            "1,048,577; a tree has more symbols than the first and fewer than the second"
        )
    if not 2 <= grammar.depth <= _DEEPEST:
        raise DataError(f"depth {grammar.depth}: expected 2 to {_DEEPEST}")
    asked = {"sizes": list(sizes), **grammar._asdict(), "seed": seed}
    if files.exists(files.join(folder, tfds_folders.INFO)):
        facts = _read_facts(folder) if files.exists(files.join(folder, FACTS)) else {}
        if facts.get("made of") != asked:
            raise DataError(
                f"{folder!r} holds another data set, {facts.get('made of', 'unknown')}: give another folder"
            )
        return facts["statistics"]
    if not files.is_remote(folder) and os.path.isdir(folder) and not _is_ours(os.listdir(folder)):
        raise DataError(f"{folder!r} holds other files: give a new folder")
    trees_of: dict[str, list[Tree]] = {name: [] for name in SPLITS}
    stream = trees.generate(grammar, seed)

    def examples(split: str, count: int) -> Iterator[tuple[str, int]]:
        for tree in itertools.islice(stream, count):
            trees_of[split].append(tree._replace(text=""))
            yield tree.text, tree.value

    def facts_file() -> bytes:
        statistics = {name: trees.statistics(sample) for name, sample in trees_of.items()}
        return (json.dumps({"made of": asked, "statistics": statistics}, indent=1) + "\n").encode()

    splits = {name: examples(name, size) for name, size in zip(SPLITS, sizes, strict=True)}
    tfds_folders.write_labelled_texts(folder, "listops", trees.DIGITS, splits, {FACTS: facts_file})
    return _read_facts(folder)["statistics"]


def _read_facts(folder: str) -> dict[str, Any]:
    return json_files.read(files.join(folder, FACTS), dict)


def _is_ours(names: list[str]) -> bool:
    """Whether a folder has nothing but what a preparation that was broken off leaves."""
    return all(name == "features.json" or "listops" in name or name.endswith(".labels.txt") for name in names)
