"""ListOps as Long Range Arena makes it: long trees of operators on digits, and their values (2011.04006, section 2.2).

    [MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]    has the value 5

The grammar is that of the published generator (google-research/long-range-arena, data/listops.py): at each node above
the greatest depth stands an operator with probability 1/4, else a digit; an operator has 2 to 10 arguments, all equally
likely. Trees of other lengths than the wanted ones are thrown away, and no two trees are equal.
"""

import hashlib
import random
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

from gmlp_flax.errors import DataError

OPERATORS = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(median(values)),  # of an even number of arguments, rounded down
    "[SM": lambda values: sum(values) % 10,
}
END = "]"
DIGITS = tuple("0123456789")
SYMBOLS = (*OPERATORS, END, *DIGITS)  # the vocabulary of a model
BRACES = ("(", ")")  # the published files group arguments in pairs by these, and its readers drop them

_OPERATOR_SHARE = 0.25
_FRUITLESS = 200_000  # trees thrown away in a row


class Grammar(NamedTuple):
    """What trees are kept: with more symbols than `shortest` and fewer than `longest`, a digit 1 and an operator 2."""

    shortest: int = 500
    longest: int = 2000
    depth: int = 10  # of a node, at most; the root has depth 1
    arguments: int = 10  # of an operator, at most


class Tree(NamedTuple):
    """A tree: its symbols with a space between, its value from 0 to 9, the number of its symbols, and its depth."""

    text: str
    value: int
    length: int
    depth: int


def generate(grammar: Grammar, seed: int) -> Iterator[Tree]:
    """Endless different trees, the same ones for the same grammar and seed, on any machine.

    Raises:
        DataError: the grammar hardly ever gives a tree of the wanted length that is not among the earlier ones.
    """
    # Of all that `random` draws, `random()` alone is promised to stay the same in later versions of Python.
    draw, digests, thrown = random.Random(seed).random, set(), 0
    while thrown < _FRUITLESS:
        thrown += 1
        tree = draw_tree(draw, grammar)
        if tree is None or tree.length <= grammar.shortest:
            continue
        digest = hashlib.blake2b(tree.text.encode(), digest_size=16).digest()
        if digest not in digests:
            digests.add(digest)
            thrown = 0
            yield tree
    raise DataError(
        f"of {_FRUITLESS:,} trees of depth {grammar.depth} none was new and had more than {grammar.shortest} and fewer "
        f"than {grammar.longest} symbols: choose fewer trees, other lengths or another depth"
    )


def draw_tree(draw: Any, grammar: Grammar) -> Tree | None:
    """A tree; None as soon as it has too many symbols."""
    symbols: list[str] = []
    open_brackets = deepest = 0

    def node(depth: int) -> int:
        """Adds a node's symbols and returns its value; -1 if there are too many."""
        nonlocal open_brackets, deepest
        deepest = max(deepest, depth)
        if len(symbols) + open_brackets + 1 >= grammar.longest:
            return -1
        if depth >= grammar.depth or draw() > _OPERATOR_SHARE:
            digit = int(10 * draw())
            symbols.append(DIGITS[digit])
            return digit
        operator, arguments = list(OPERATORS)[int(4 * draw())], 2 + int((grammar.arguments - 1) * draw())
        symbols.append(operator)
        open_brackets += 1
        values = []
        for _ in range(arguments):
            values.append(node(depth + 1))
            if values[-1] < 0:
                return -1
        symbols.append(END)
        open_brackets -= 1
        return OPERATORS[operator](values)

    value = node(1)
    if value < 0 or len(symbols) >= grammar.longest:
        return None
    return Tree(" ".join(symbols), value, len(symbols), deepest)
