"""ListOps: the grammar and its statistics, and the value of each tree, compared with a slow
evaluator."""

import csv
import itertools
import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from gmlp_flax.data import listops
from gmlp_flax.data.listops import Grammar
from gmlp_flax.io import files
from tests.data import writers
from tests.failures import failure

SIZES = (30, 7, 5)
GRAMMAR = Grammar(10, 60)
SMALL = Grammar(shortest=5, longest=80, depth=6)


def parse(words: list[str]):
    """A digit, or [operator, arguments...]; takes its words from the front of the list."""
    word = words.pop(0)
    if word.isdigit():
        return int(word)
    tree = [word]
    while words[0] != "]":
        tree.append(parse(words))
    words.pop(0)
    return tree


def value(tree) -> int:
    """As in the published generator: MED is the int of the median, SM the sum modulo 10."""
    if isinstance(tree, int):
        return tree
    operator, *arguments = tree
    values = [value(argument) for argument in arguments]
    match operator:
        case "[MIN":
            return min(values)
        case "[MAX":
            return max(values)
        case "[MED":
            return int(statistics.median(values))
        case "[SM":
            return sum(values) % 10
    raise AssertionError(operator)


def depth(tree) -> int:
    if isinstance(tree, int):
        return 1
    _, *arguments = tree
    return 1 + max(map(depth, arguments))


def length(tree) -> int:
    """The published length: 1 for a digit, 2 for an operator."""
    if isinstance(tree, int):
        return 1
    _, *arguments = tree
    return 2 + sum(map(length, arguments))


class Operator(NamedTuple):
    """An operator in a tree; the root has level 1."""

    name: str
    arguments: int
    level: int


def operators(tree, level: int = 1) -> Iterator[Operator]:
    """Every operator of a tree."""
    if isinstance(tree, int):
        return
    name, *arguments = tree
    yield Operator(name, len(arguments), level)
    for argument in arguments:
        yield from operators(argument, level + 1)


def take(grammar, count, seed=0):
    trees = listops.generate(grammar, seed)
    return list(itertools.islice(trees, count))


@pytest.mark.parametrize(("grammar", "count"), [(SMALL, 1500), (Grammar(), 60)])
def test_trees_have_their_value_and_length(grammar, count):
    """Value and length are computed again from the text; all texts differ."""
    trees = take(grammar, count)
    texts = {tree.text for tree in trees}
    assert len(texts) == count
    for tree in trees:
        words = tree.text.split()
        assert set(words) <= set(listops.SYMBOLS)
        assert len(words) == tree.length
        parsed = parse(words)
        assert words == []
        assert value(parsed) == tree.value
        assert length(parsed) == tree.length
        assert grammar.shortest < tree.length < grammar.longest
        assert depth(parsed) <= grammar.depth
        for operator in operators(parsed):
            assert 2 <= operator.arguments <= 10
            assert operator.level < grammar.depth


def test_the_same_seed_gives_the_same_trees():
    trees = take(SMALL, 20)
    assert take(SMALL, 20) == trees
    assert take(SMALL, 20, seed=1) != trees
    assert trees[0] == ("[MAX 3 3 6 7 ]", 7, 6)


def test_draws_have_the_published_probabilities():
    """Before long and short trees are rejected, a node is an operator with probability 1/4, and
    the 4 operators and 2 to 10 arguments are equally likely."""
    draw = random.Random(0).random
    grammar = Grammar(0, 10**9, depth=3)
    drawn = []
    for _ in range(12_000):
        tree = listops.draw_tree(draw, grammar)
        assert tree is not None
        tree_operators = parse(tree.text.split())
        drawn += operators(tree_operators)
    roots = []
    for operator in drawn:
        if operator.level == 1:
            roots.append(operator)
    children_of_roots = sum(operator.arguments for operator in roots)
    assert_share(len(roots), 12_000, 0.25)
    inner = len(drawn) - len(roots)
    assert_share(inner, children_of_roots, 0.25)
    names = Counter(operator.name for operator in drawn)
    assert_uniform(names, 4)
    arguments = Counter(operator.arguments for operator in drawn)
    assert_uniform(arguments, 9)


def assert_share(count, total, share):
    """Asserts a share to within four standard errors."""
    variance = share * (1 - share) / total
    standard_error = math.sqrt(variance)
    error = abs(count / total - share)
    assert error < 4 * standard_error


def assert_uniform(counts, kinds):
    """Asserts equal shares by a chi-square of at most 8 degrees of freedom, which exceeds 30 once
    in 5,000."""
    assert len(counts) == kinds
    expected = counts.total() / kinds
    squares = [(count - expected) ** 2 for count in counts.values()]
    chi_square = sum(squares) / expected
    assert chi_square < 30, counts


def test_trees_that_grow_too_long_are_rejected():
    grammar = Grammar(1, 9, depth=4)
    tree = listops.draw_tree(lambda: 0.1, grammar)
    assert tree is None


def test_impossible_grammars_are_refused():
    trees = listops.generate(Grammar(500, 502, depth=2), 0)
    message = failure(next, trees)
    assert "depth 2" in message
    assert "more than 500 and fewer than 502" in message


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_splits_share_no_tree(tmp_path):
    folder = str(tmp_path)
    longest = listops.make(folder, SIZES, GRAMMAR)
    texts = []
    names = ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv")
    for name, size in zip(names, SIZES, strict=True):
        table = read(tmp_path / name)
        assert len(table) == size
        for row in table:
            text = row["Source"]
            tree = parse(text.split())
            assert int(row["Target"]) == value(tree)
            texts.append(text)
    assert len(set(texts)) == sum(SIZES)
    assert longest == max(len(text.split()) for text in texts)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_finished_folders_are_left_alone(tmp_path):
    longest = listops.make(str(tmp_path), SIZES, GRAMMAR)
    before = times(tmp_path)
    assert listops.make(str(tmp_path), SIZES, GRAMMAR) == longest
    assert times(tmp_path) == before


def test_unfinished_folders_are_generated_again(tmp_path):
    listops.make(str(tmp_path), SIZES, GRAMMAR)
    whole = contents(tmp_path)
    (tmp_path / "listops.json").unlink()
    (tmp_path / "basic_train.tsv").write_bytes(b"Source\tTar")
    listops.make(str(tmp_path), SIZES, GRAMMAR)
    assert contents(tmp_path) == whole


def test_folders_of_another_data_set_are_refused(tmp_path):
    listops.make(str(tmp_path), SIZES, GRAMMAR)
    before = contents(tmp_path)
    message = failure(listops.make, str(tmp_path), SIZES, GRAMMAR, seed=1)
    assert "'seed': 0" in message
    assert contents(tmp_path) == before


@pytest.mark.parametrize("content", ["{", "[]", '{"longest": 9}'])
def test_damaged_facts_are_refused(tmp_path, content):
    (tmp_path / "listops.json").write_text(content)
    folder = str(tmp_path)
    message = failure(listops.make, folder, SIZES, GRAMMAR)
    assert str(tmp_path) in message


def test_facts_with_an_invalid_length_are_refused(tmp_path):
    listops.make(str(tmp_path), SIZES, GRAMMAR)
    path = tmp_path / "listops.json"
    facts = json.loads(path.read_text())
    facts["longest"] = "60"
    path.write_text(json.dumps(facts))
    message = failure(listops.make, str(tmp_path), SIZES, GRAMMAR)
    assert "listops.json: damaged" in message


def test_remote_folders_have_the_same_files(tmp_path):
    address = writers.remote(tmp_path)
    longest = listops.make(address, SIZES, GRAMMAR)
    local = tmp_path / "local"
    listops.make(str(local), SIZES, GRAMMAR)
    for path in local.iterdir():
        remote_content = files.read_small(f"{address}/{path.name}")
        assert remote_content == path.read_bytes()
    assert listops.make(address, SIZES, GRAMMAR) == longest


def test_numbers_are_parsed():
    assert listops.parse_numbers("10,0,007", "it", 3) == (10, 0, 7)
    assert listops.parse_numbers("999999999", "it", 1) == (999_999_999,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10,5",
        "1,2,3,4",
        "1e3,2,2",
        "-1,2,3",
        "1, 2,3",
        "9999999999,1,1",
        "\uff11,2,3",
        "1,2,3\n",
    ],
)
def test_invalid_numbers_are_refused(text):
    message = failure(listops.parse_numbers, text, "listops", 3)
    assert "listops: expected 3 numbers" in message


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(500, 501),
        Grammar(-1, 9),
        Grammar(0, 2**21),
        Grammar(1, 9, depth=1),
        Grammar(1, 9, depth=101),
    ],
)
def test_invalid_grammars_are_refused(tmp_path, grammar):
    folder = str(tmp_path)
    message = failure(listops.make, folder, SIZES, grammar)
    assert f"{grammar.shortest},{grammar.longest} and depth {grammar.depth}" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sizes", [(10, 5, 0), (10**8, 5, 5)])
def test_invalid_sizes_are_refused(tmp_path, sizes):
    folder = str(tmp_path)
    message = failure(listops.make, folder, sizes, GRAMMAR)
    assert "expected 1 to 10,000,000 of each split" in message
