"""ListOps: the grammar and its statistics, and the value of every tree beside a slow, obvious
evaluator."""

import hashlib
import itertools
import json
import math
import random
import statistics
from collections import Counter

import pytest

from gmlp_flax.data import listops
from gmlp_flax.data.finetuning.glue import LONG_RANGE_TASKS
from gmlp_flax.data.finetuning.sentences import open_sentences
from gmlp_flax.data.listops import Grammar
from gmlp_flax.data.splits import Side
from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from tests.data import writers
from tests.failures import raised

SIZES, GRAMMAR = (30, 7, 5), Grammar(10, 60)
SMALL = Grammar(shortest=5, longest=80, depth=6)


def parsed(words: list[str]):
    """A digit, or [operator, arguments...]; takes its words from the front of the list."""
    word = words.pop(0)
    if word.isdigit():
        return int(word)
    tree = [word]
    while words[0] != "]":
        tree.append(parsed(words))
    words.pop(0)
    return tree


def value(tree) -> int:
    """The generator's words for the operators: MED is the int of the median, SM the sum modulo
    10."""
    if isinstance(tree, int):
        return tree
    values = [value(each) for each in tree[1:]]
    return {
        "[MIN": lambda: min(values),
        "[MAX": lambda: max(values),
        "[MED": lambda: int(statistics.median(values)),
        "[SM": lambda: sum(values) % 10,
    }[tree[0]]()


def depth(tree) -> int:
    return 1 if isinstance(tree, int) else 1 + max(map(depth, tree[1:]))


def operators(tree):
    """Every operator of a tree with its number of arguments and its level."""

    def below(tree, level):
        if isinstance(tree, list):
            yield tree[0], len(tree) - 1, level
            for each in tree[1:]:
                yield from below(each, level + 1)

    return below(tree, 1)


def length(tree) -> int:
    """As it is published: 1 for a digit, 2 for an operator."""
    return 1 if isinstance(tree, int) else 2 + sum(map(length, tree[1:]))


def taken(grammar, count, seed=0):
    return list(itertools.islice(listops.generate(grammar, seed), count))


@pytest.mark.parametrize(("grammar", "count"), [(SMALL, 1500), (Grammar(), 60)])
def test_every_tree(grammar, count):
    """Value and length, counted again from the text; all texts differ."""
    found = taken(grammar, count)
    assert len({tree.text for tree in found}) == count
    for tree in found:
        words = tree.text.split()
        assert set(words) <= set(listops.SYMBOLS) and len(words) == tree.length
        again = parsed(words)
        assert words == [] and value(again) == tree.value and depth(again) <= grammar.depth
        assert grammar.shortest < tree.length == length(again) < grammar.longest
        assert all(
            2 <= arguments <= 10 and level < grammar.depth
            for _, arguments, level in operators(again)
        )


def test_the_same_seed_gives_the_same_trees():
    assert taken(SMALL, 20) == taken(SMALL, 20) and taken(SMALL, 20) != taken(SMALL, 20, seed=1)
    assert taken(SMALL, 1)[0].text == "[MAX 3 3 6 7 ]"


def test_the_published_draws():
    """Before any tree is thrown away: operators with probability 1/4, 2 to 10 arguments, 4
    operators equally likely."""
    draw = random.Random(0).random
    found = [listops.draw_tree(draw, Grammar(0, 10**9, depth=3)) for _ in range(12_000)]
    every = [each for tree in found if tree for each in operators(parsed(tree.text.split()))]
    roots = [each for each in every if each[2] == 1]
    below = len(every) - len(roots)
    children = sum(arguments for _, arguments, _ in roots)
    assert abs(len(roots) / len(found) - 0.25) < 4 * math.sqrt(0.25 * 0.75 / len(found))
    assert abs(below / children - 0.25) < 4 * math.sqrt(0.25 * 0.75 / children)
    for counted, kinds in (
        (Counter(name for name, _, _ in every), 4),
        (Counter(n for _, n, _ in every), 9),
    ):
        assert len(counted) == kinds
        expected = len(every) / kinds
        chi_square = sum((count - expected) ** 2 / expected for count in counted.values())
        assert chi_square < 30, counted  # of at most 8 degrees of freedom: exceeded once in 5,000


def test_a_grammar_without_such_trees_ends():
    told = raised(DataError, next, listops.generate(Grammar(500, 502, depth=2), 0))
    assert "none was new and had more than 500 and fewer than 502" in told


def checksums(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_splits_that_share_no_tree(tmp_path):
    told = listops.make(str(tmp_path), SIZES, GRAMMAR)
    texts = []
    for split, size in zip(listops.FILES, SIZES, strict=True):
        found = open_sentences(
            str(tmp_path), LONG_RANGE_TASKS["listops"], Side("heldout", heldout_split=split)
        )
        assert len(found) == size
        texts += [text for (text,) in found.texts]
    assert len(set(texts)) == sum(SIZES) and told == max(len(text.split()) for text in texts)


def test_made_once(tmp_path):
    """A whole folder is left alone, an unfinished one is made anew, another data set is refused."""
    first = listops.make(str(tmp_path / "a"), SIZES, GRAMMAR)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    assert listops.make(str(tmp_path / "a"), SIZES, GRAMMAR) == first
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    whole = checksums(tmp_path / "a")
    (tmp_path / "a" / "listops.json").unlink()
    (tmp_path / "a" / "basic_train.tsv").write_bytes(b"broken off")
    listops.make(str(tmp_path / "a"), SIZES, GRAMMAR)
    assert checksums(tmp_path / "a") == whole
    assert "holds another data set" in raised(
        DataError, listops.make, str(tmp_path / "a"), SIZES, GRAMMAR, seed=1
    )


def test_a_remote_folder(tmp_path):
    writers.remote(tmp_path)
    address = "memory://listops_folder"
    told = listops.make(address, SIZES, GRAMMAR)
    listops.make(str(tmp_path / "local"), SIZES, GRAMMAR)
    found = {file.name: file.size for file in files.find_files(address)}
    assert found == {path.name: path.stat().st_size for path in (tmp_path / "local").iterdir()}
    assert json.loads(files.read_small(f"{address}/listops.json"))["longest"] == told


@pytest.mark.parametrize("given", ["", "10,5", "1e3,2,2", "-1,2,3", "99999999999,1,1"])
def test_numbers_that_make_no_sense(given):
    assert "listops: expected 3 numbers" in raised(
        DataError, listops.parse_numbers, given, "listops", 3
    )


@pytest.mark.parametrize(
    "grammar", [Grammar(500, 501), Grammar(0, 2**21), Grammar(1, 9, 1), Grammar(1, 9, 101)]
)
def test_grammars_that_make_no_sense(grammar):
    assert "expected" in raised(DataError, listops.make, "unused", SIZES, grammar)


@pytest.mark.parametrize("sizes", [(10, 5, 0), (10**8, 5, 5)])
def test_sizes_that_make_no_sense(sizes):
    assert "expected 1 to 10,000,000 of each split" in raised(
        DataError, listops.make, "unused", sizes, GRAMMAR
    )
