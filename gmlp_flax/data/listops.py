"""ListOps as in Long Range Arena: long trees of operators on digits, and their values (2011.04006,
section 2.2); and its data set on disk, in the form that Long Range Arena publishes.

    [MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]    has the value 5

The grammar is that of the published generator (google-research/long-range-arena, data/listops.py).
A node above the greatest depth is an operator with probability 1/4, else a digit. An operator has 2
to 10 arguments, all equally likely. Trees of other lengths than the requested ones are thrown away,
and no two trees are equal.
"""

import hashlib
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any, NamedTuple

from gmlp_flax.errors import DataError
from gmlp_flax.io import files, json_files

OPERATORS = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(median(values)),  # of an even number of arguments, rounded down
    "[SM": lambda values: sum(values) % 10,
}
END = "]"
DIGITS = tuple("0123456789")
SYMBOLS = (*OPERATORS, END, *DIGITS)  # the vocabulary of a model
# the published files group arguments in pairs by these, and its readers drop them
BRACES = ("(", ")")

# by split
FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
PUBLISHED = (96_000, 2_000, 2_000)  # trees of each
FACTS = "listops.json"

_MOST = 10_000_000  # trees of a split
_LONGEST = 2**20  # symbols of a tree
_DEEPEST = 100  # levels; each is a call in a call
_OPERATOR_SHARE = 0.25
_FRUITLESS = 200_000  # trees thrown away in a row
_NUMBER = re.compile("[0-9]{1,9}")


class Grammar(NamedTuple):
    """The trees that are kept: they have more symbols than `shortest` and fewer than `longest`. A
    digit counts as 1 symbol, an operator as 2."""

    shortest: int = 500
    longest: int = 2000
    depth: int = 10  # the largest depth of a node; the root has depth 1
    arguments: int = 10  # the most arguments of an operator


class Tree(NamedTuple):
    """A tree: its symbols with a space between, its value from 0 to 9, and the number of its
    symbols."""

    text: str
    value: int
    length: int


def generate(grammar: Grammar, seed: int) -> Iterator[Tree]:
    """Endless different trees, the same ones for the same grammar and seed, on any machine.

    Raises:
        DataError: the grammar hardly ever gives a new tree of the requested length.
    """
    # Python promises only for `random()` that its numbers stay the same in later versions.
    draw = random.Random(seed).random
    known: set[bytes] = set()
    thrown = 0
    while thrown < _FRUITLESS:
        thrown += 1
        tree = draw_tree(draw, grammar)
        if tree is None or tree.length <= grammar.shortest:
            continue
        content = tree.text.encode()
        state = hashlib.blake2b(content, digest_size=16)
        digest = state.digest()
        if digest not in known:
            known.add(digest)
            thrown = 0
            yield tree
    raise DataError(
        f"none of {_FRUITLESS:,} trees of depth {grammar.depth} was new and had more than "
        f"{grammar.shortest} and fewer than {grammar.longest} symbols: choose fewer trees, other "
        "lengths or another depth"
    )


def draw_tree(draw: Callable[[], float], grammar: Grammar) -> Tree | None:
    """A tree; None as soon as it has too many symbols."""
    symbols: list[str] = []
    operators = list(OPERATORS)

    def node(depth: int) -> int:
        """Adds a node's symbols and returns its value. Above it, `depth - 1` brackets are open."""
        least_length = len(symbols) + depth
        if least_length >= grammar.longest:
            raise OverflowError
        if depth >= grammar.depth or draw() > _OPERATOR_SHARE:
            digit = int(10 * draw())
            symbols.append(DIGITS[digit])
            return digit
        choice = int(len(operators) * draw())
        operator = operators[choice]
        evaluate = OPERATORS[operator]
        argument_choices = grammar.arguments - 1
        arguments = 2 + int(argument_choices * draw())
        symbols.append(operator)
        values = [node(depth + 1) for _ in range(arguments)]
        symbols.append(END)
        return evaluate(values)

    try:
        value = node(1)
    except OverflowError:
        return None
    text = " ".join(symbols)
    length = len(symbols)
    return Tree(text, value, length)


def parse_numbers(text: str, what: str, count: int) -> tuple[int, ...]:
    """A number of whole numbers with commas between them; raises DataError, which names `what`, for
    any other text."""
    words = text.split(",")
    are_numbers = all(map(_NUMBER.fullmatch, words))
    has_count = len(words) == count
    if not are_numbers or not has_count:
        raise DataError(f"{what}: expected {count} numbers with commas between them")
    numbers = map(int, words)
    return tuple(numbers)


def make(folder: str, sizes: tuple[int, ...], grammar: Grammar = Grammar(), seed: int = 0) -> int:
    """Makes the data set, unless the folder has it already, and returns the number of symbols of
    its longest tree.

    The same arguments give the same bytes. The trees of all splits differ from each other.

    Raises:
        DataError: the sizes or the grammar are out of range; the folder holds another data set or
            cannot be written to; or as in `generate`.
    """
    _check_grammar(sizes, grammar)
    arguments = {
        "sizes": list(sizes),
        **grammar._asdict(),
        "seed": seed,
    }
    if FACTS in files.listdir(folder):  # it is written last
        return _read_longest(folder, arguments)
    trees = generate(grammar, seed)
    longest = 0
    for name, size in zip(FILES.values(), sizes, strict=True):
        path = files.join(folder, name)
        trees_of_split = itertools.islice(trees, size)
        longest_of_split = _write_split(path, trees_of_split)
        longest = max(longest, longest_of_split)
    facts = {"made of": arguments, "longest": longest}
    facts_path = files.join(folder, FACTS)
    json_files.write(facts_path, facts)
    return longest


def _write_split(path: str, trees: Iterable[Tree]) -> int:
    """Writes trees to a table; returns the number of symbols of the longest one."""
    lines = ["Source\tTarget\n"]
    longest = 0
    for tree in trees:
        longest = max(longest, tree.length)
        lines.append(f"{tree.text}\t{tree.value}\n")
    text = "".join(lines)
    files.write(path, text.encode())
    return longest


def _check_grammar(sizes: tuple[int, ...], grammar: Grammar) -> None:
    has_room = 0 <= grammar.shortest < grammar.longest - 1 <= _LONGEST
    has_depth = 2 <= grammar.depth <= _DEEPEST
    has_trees = min(sizes) >= 1 and max(sizes) <= _MOST
    if has_room and has_depth and has_trees:
        return
    raise DataError(
        f"trees {sizes} of lengths {grammar.shortest},{grammar.longest} and depth {grammar.depth}: "
        f"expected 1 to {_MOST:,} of each split, two lengths with one between, 2 to {_DEEPEST} "
        "levels"
    )


def _read_longest(folder: str, arguments: dict[str, Any]) -> int:
    """The number of symbols of the longest tree in a folder; raises DataError if the data set was
    made from other arguments."""
    path = files.join(folder, FACTS)
    facts = json_files.read(path, dict)
    made_of = facts.get("made of", "unknown")
    if made_of != arguments:
        raise DataError(f"{folder!r} holds another data set, {made_of}: give another folder")
    longest = facts.get("longest")
    if not isinstance(longest, int):
        raise DataError(f"{path}: damaged: it does not say how long the longest tree is; delete it")
    return longest
