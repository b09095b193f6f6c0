"""ListOps: the grammar and its statistics, and the value of every tree compared with a slow,
obvious evaluator."""

import csv
import hashlib
import itertools
import json
import math
import random
import statistics
from collections import Counter

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
    """In the words of the published generator: MED is the int of the median, SM the sum modulo
    10."""
    if isinstance(tree, int):
        return tree
    values = [value(argument) for argument in tree[1:]]
    match tree[0]:
        case "[MIN":
            return min(values)
        case "[MAX":
            return max(values)
        case "[MED":
            return int(statistics.median(values))
        case "[SM":
            return sum(values) % 10
    raise AssertionError(tree[0])


def depth(tree) -> int:
    if isinstance(tree, int):
        return 1
    return 1 + max(map(depth, tree[1:]))


def length(tree) -> int:
    """As it is published: 1 for a digit, 2 for an operator."""
    if isinstance(tree, int):
        return 1
    return 2 + sum(map(length, tree[1:]))


def operators(tree, level: int = 1):
    """Every operator of a tree with its number of arguments and its level."""
    if isinstance(tree, int):
        return
    yield tree[0], len(tree) - 1, level
    for argument in tree[1:]:
        yield from operators(argument, level + 1)


def take(grammar, count, seed=0):
    trees = listops.generate(grammar, seed)
    return list(itertools.islice(trees, count))


@pytest.mark.parametrize(("grammar", "count"), [(SMALL, 1500), (Grammar(), 60)])
def test_every_tree(grammar, count):
    """Value and length, counted again from the text; all texts differ."""
    trees = take(grammar, count)
    assert len({tree.text for tree in trees}) == count
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
        for _, arguments, level in operators(parsed):
            assert 2 <= arguments <= 10
            assert level < grammar.depth


def test_the_same_seed_gives_the_same_trees():
    trees = take(SMALL, 20)
    assert take(SMALL, 20) == trees
    assert take(SMALL, 20, seed=1) != trees
    assert trees[0] == ("[MAX 3 3 6 7 ]", 7, 6)


def test_the_published_draws():
    """Before any tree is thrown away: operators with probability 1/4, 2 to 10 arguments, 4
    operators equally likely."""
    draw = random.Random(0).random
    trees = [listops.draw_tree(draw, Grammar(0, 10**9, depth=3)) for _ in range(12_000)]
    drawn = []
    for tree in trees:
        assert tree is not None
        drawn += operators(parse(tree.text.split()))
    roots = [operator for operator in drawn if operator[2] == 1]
    children = sum(arguments for _, arguments, _ in roots)
    assert_share(len(roots), len(trees), 0.25)
    assert_share(len(drawn) - len(roots), children, 0.25)
    assert_uniform(Counter(name for name, _, _ in drawn), 4)
    assert_uniform(Counter(arguments for _, arguments, _ in drawn), 9)


def assert_share(count, total, share):
    """To within four standard errors."""
    error = math.sqrt(share * (1 - share) / total)
    assert abs(count / total - share) < 4 * error


def assert_uniform(counts, kinds):
    """By a chi-square of at most 8 degrees of freedom, which exceeds 30 once in 5,000."""
    assert len(counts) == kinds
    expected = counts.total() / kinds
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 30, counts


def test_a_tree_that_grows_too_long_is_given_up():
    assert listops.draw_tree(lambda: 0.1, Grammar(1, 9, depth=4)) is None


def test_a_grammar_without_such_trees_ends():
    trees = listops.generate(Grammar(500, 502, depth=2), 0)
    message = failure(next, trees)
    assert "depth 2" in message
    assert "more than 500 and fewer than 502" in message


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_splits_that_share_no_tree(tmp_path):
    longest = listops.make(str(tmp_path), SIZES, GRAMMAR)
    texts = []
    names = ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv")
    for name, size in zip(names, SIZES, strict=True):
        table = read(tmp_path / name)
        assert len(table) == size
        for row in table:
            assert int(row["Target"]) == value(parse(row["Source"].split()))
            texts.append(row["Source"])
    assert len(set(texts)) == sum(SIZES)
    assert longest == max(len(text.split()) for text in texts)


def checksums(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_a_whole_folder_is_left_alone(tmp_path):
    longest = listops.make(str(tmp_path), SIZES, GRAMMAR)
    before = times(tmp_path)
    assert listops.make(str(tmp_path), SIZES, GRAMMAR) == longest
    assert times(tmp_path) == before


def test_an_unfinished_folder_is_made_again(tmp_path):
    listops.make(str(tmp_path), SIZES, GRAMMAR)
    whole = checksums(tmp_path)
    (tmp_path / "listops.json").unlink()
    (tmp_path / "basic_train.tsv").write_bytes(b"Source\tTar")
    listops.make(str(tmp_path), SIZES, GRAMMAR)
    assert checksums(tmp_path) == whole


def test_another_data_set_is_refused(tmp_path):
    listops.make(str(tmp_path), SIZES, GRAMMAR)
    before = checksums(tmp_path)
    message = failure(listops.make, str(tmp_path), SIZES, GRAMMAR, seed=1)
    assert "'seed': 0" in message
    assert checksums(tmp_path) == before


@pytest.mark.parametrize("content", ["{", "[]", '{"longest": 9}'])
def test_facts_that_are_damaged(tmp_path, content):
    (tmp_path / "listops.json").write_text(content)
    assert str(tmp_path) in failure(listops.make, str(tmp_path), SIZES, GRAMMAR)


def test_facts_without_a_length(tmp_path):
    listops.make(str(tmp_path), SIZES, GRAMMAR)
    path = tmp_path / "listops.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "longest": "60"}))
    assert "listops.json: damaged" in failure(listops.make, str(tmp_path), SIZES, GRAMMAR)


def test_a_remote_folder(tmp_path):
    address = writers.remote(tmp_path)
    longest = listops.make(address, SIZES, GRAMMAR)
    listops.make(str(tmp_path / "local"), SIZES, GRAMMAR)
    for path in (tmp_path / "local").iterdir():
        assert files.read_small(f"{address}/{path.name}") == path.read_bytes()
    assert listops.make(address, SIZES, GRAMMAR) == longest


def test_numbers():
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
def test_numbers_that_make_no_sense(text):
    assert "listops: expected 3 numbers" in failure(listops.parse_numbers, text, "listops", 3)


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
def test_grammars_that_make_no_sense(tmp_path, grammar):
    message = failure(listops.make, str(tmp_path), SIZES, grammar)
    assert f"{grammar.shortest},{grammar.longest} and depth {grammar.depth}" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sizes", [(10, 5, 0), (10**8, 5, 5)])
def test_sizes_that_make_no_sense(tmp_path, sizes):
    message = failure(listops.make, str(tmp_path), sizes, GRAMMAR)
    assert "expected 1 to 10,000,000 of each split" in message
