"""Windows of a prepared corpus, and their order in training."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal, assert_equal

from gmlp_flax.data import pipeline
from gmlp_flax.data.pipeline import Reading
from gmlp_flax.data.text import packing
from gmlp_flax.data.text.packing import Mixture, Packing, WindowOrder, read_shares
from gmlp_flax.data.text.prepare import Limits, prepare
from gmlp_flax.errors import ConfigError
from tests.data.text.preparing import TEXTS, corpus, stream, tokenizer
from tests.failures import failure, raised


class InMemory:
    """What packing uses of a prepared corpus, with the ids in memory."""

    def __init__(self, documents):
        self.tokenizer = tokenizer()
        self.dtype = np.dtype(np.uint16)
        ids = []
        for document in documents:
            ids += [*document, self.tokenizer.sep_id]
        self.ids = np.array(ids, np.uint16)
        self.tokens = len(ids)

    def read(self, start, stop):
        assert 0 <= start <= stop <= self.tokens
        return self.ids[start:stop]


# Ids above the special ones. Documents may be empty.
DOCUMENTS = st.lists(st.lists(st.integers(5, 99), max_size=30), max_size=20)


def expected_windows(made, length, closed=True):
    """The stream, cut into windows, of which the last is padded."""
    special = made.tokenizer
    ids = made.ids.tolist()
    room = length - 2 if closed else length - 1
    windows = []
    for start in range(0, len(ids), room):
        window_ids = ids[start : start + room]
        window = [special.cls_id, *window_ids]
        if closed:
            window.append(special.sep_id)
        missing = length - len(window)
        padding = [special.pad_id] * missing
        windows.append(window + padding)
    return windows


@given(DOCUMENTS, st.integers(3, 20), st.integers(1, 200), st.booleans())
def test_windows_are_consecutive_parts_of_the_corpus(documents, length, group_tokens, closed):
    padding_document = [7] * 20
    made = InMemory([*documents, padding_document])
    windows = Packing(made, length, closed)
    windows.group = max(1, group_tokens // length)
    copy = pickle.loads(pickle.dumps(windows))
    expected = expected_windows(made, length, closed)
    assert len(windows) == len(expected)
    assert len(copy) == len(expected)
    for index, expected_tokens in enumerate(expected):
        window = windows[index]
        tokens = window["tokens"]
        assert tokens.tolist() == expected_tokens
        assert tokens.dtype == np.int32
        assert window["index"] == index
        tokens_of_copy = copy[index]["tokens"]
        assert tokens_of_copy.tolist() == expected_tokens


@given(DOCUMENTS, st.integers(3, 20))
def test_windows_have_every_token_once(documents, length):
    """The tokens after [CLS] in windows without a final [SEP] are the stream of ids."""
    filler = [7] * 20
    made = InMemory([*documents, filler])
    packing = Packing(made, length, closed=False)
    windows = packing.windows(0, 10**6)
    tokens = windows[:, 1:].ravel()
    is_text = tokens != made.tokenizer.pad_id
    text_tokens = tokens[is_text]
    assert text_tokens.tolist() == made.ids.tolist()


@pytest.mark.parametrize(("closed", "longest"), [(True, 7), (False, 6)])
def test_a_corpus_shorter_than_a_window_is_refused(closed, longest):
    made = InMemory([[5, 6, 7, 8]])
    windows = Packing(made, longest, closed)
    assert len(windows) == 1
    message = failure(Packing, made, longest + 1, closed)
    assert "5 tokens" in message
    assert f"lower the length to {longest}" in message


@pytest.mark.parametrize("length", [0, 2])
def test_a_length_without_room_for_tokens_is_refused(length):
    message = failure(Packing, InMemory([[5]]), length)
    assert f"length={length}" in message


@given(DOCUMENTS, st.integers(3, 20))
def test_closed_windows_have_every_word_once(documents, length):
    filler = [7] * 20
    made = InMemory([*documents, filler])
    packed = Packing(made, length)
    closed_windows = packed.windows(0, 10**6)
    words = closed_windows[closed_windows >= 5]
    is_word = made.ids >= 5
    assert words.tolist() == made.ids[is_word].tolist()


@pytest.mark.parametrize("index", [2, -1])
def test_indices_out_of_range_are_refused(index):
    windows = Packing(InMemory([[5] * 20]), 16)
    message = raised(IndexError, windows.__getitem__, index)
    assert f"window {index} of 2" in message


# Order


def mixture_of(
    made, length, seed, group_tokens=packing.GROUP_TOKENS, pool_tokens=packing.POOL_TOKENS
):
    """All windows of one corpus, in groups and pools of these sizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "GROUP_TOKENS", group_tokens)
        patch.setattr(packing, "POOL_TOKENS", pool_tokens)
        windows = Packing(made, length)
        return Mixture([windows], [1.0], seed)


class Case(NamedTuple):
    """A corpus and how its windows are ordered."""

    documents: list[list[int]]
    length: int
    group_tokens: int
    pool_tokens: int
    seed: int

    def corpus(self) -> InMemory:
        long_document = [7] * 40
        return InMemory([*self.documents, long_document])

    def windows(self) -> np.ndarray:
        return np.array(expected_windows(self.corpus(), self.length))

    def order(self) -> Mixture:
        sizes = (self.group_tokens, self.pool_tokens)
        return mixture_of(self.corpus(), self.length, self.seed, *sizes)


CASES = st.builds(
    Case,
    documents=DOCUMENTS,
    length=st.integers(3, 12),
    group_tokens=st.integers(1, 40),
    pool_tokens=st.integers(1, 200),
    seed=st.integers(0, 2**40),
)


@given(CASES)
def test_each_epoch_has_every_window_once(case):
    expected = case.windows()
    count = len(expected)
    positions = range(3 * count)
    batch = case.order().batch(positions)
    tokens = batch["tokens"]
    indices = batch["index"]
    assert tokens.dtype == np.int32
    assert indices.dtype == np.int32
    for epoch in indices.reshape(3, count):
        assert sorted(epoch) == list(range(count))
    assert_array_equal(tokens, expected[indices])


@given(CASES, st.data())
def test_any_positions_can_be_read_first(case, data):
    """A second order starts at any position, and gives the same batches."""
    count = 3 * len(case.windows())
    batch = case.order().batch(range(count))
    first = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(first, count))
    second_order = case.order()
    part = second_order.batch(range(first, stop))
    expected = {}
    for name, values in batch.items():
        expected[name] = values[first:stop]
    assert_equal(part, expected)


@pytest.fixture(scope="module")
def thousand():
    """A thousand windows of a document each."""
    documents = []
    for number in range(1000):
        token = 5 + number % 90
        documents.append([token] * 7)
    return InMemory(documents)


def test_pools_are_of_equal_size_and_mix_groups(thousand):
    order = mixture_of(thousand, 10, 3, group_tokens=20, pool_tokens=1000)
    (windows,) = order.packings
    assert windows.group == 2
    batch = order.batch(range(100))
    first_pool = batch["index"]
    other_members = {number ^ 1 for number in first_pool}
    assert other_members == set(first_pool), "whole groups of two"
    steps = np.abs(np.diff(first_pool))
    neighbours = np.count_nonzero(steps == 1)
    assert 0 < neighbours < 20
    assert first_pool.max() - first_pool.min() > 800


def test_each_group_is_read_once_even_by_threads(monkeypatch):
    monkeypatch.setattr(packing, "GROUP_TOKENS", 50)
    monkeypatch.setattr(packing, "POOL_TOKENS", 250)
    packed = Packing(InMemory([[5] * 50] * 40), 10)
    windows = packed.windows
    reads = []

    def counting(first, stop):
        reads.append((first, stop))
        return windows(first, stop)

    monkeypatch.setattr(packed, "windows", counting)
    count = len(packed)
    single = Mixture([packed], [1.0], 0)
    expected = single.batch(range(count))["index"]
    assert sorted(expected) == list(range(count))
    assert len(reads) == 51
    assert len(set(reads)) == 51
    starts = range(0, count, 5)
    parts = [range(first, first + 5) for first in starts]
    order = Mixture([packed], [1.0], 0)
    with ThreadPoolExecutor(2) as threads:
        read = threads.map(order.batch, parts)
        batches = list(read)
    indices = [batch["index"] for batch in batches]
    assert_array_equal(np.concatenate(indices), expected)


def corpora():
    """Of 10, 4, 31 and 13 windows. The text of each consists of one id, from 5 to 8."""
    packings = []
    for token, size in ((5, 9), (6, 3), (7, 30), (8, 12)):
        document = [token] * size
        made = InMemory([document] * 4)
        packings.append(Packing(made, 6))
    return packings


# Golden values: a run that resumes under a new version must see the same windows.
GOLDEN = [
    (0, [1.0], 0, [5, 1, 6, 3, 4, 8, 9, 7, 2, 0, 2, 7]),
    (7, [1.0], 30, [5, 8, 7, 3, 9, 1, 2, 4, 0, 6, 4, 6]),
    (7, [0.5, 0.25, 0.25], 0, [8, 11, 2, 40, 4, 10, 1, 44, 3, 12, 7, 18]),
    (7, [0.5, 0.25, 0.25], 10**6, [2, 10, 3, 20, 9, 12, 6, 40, 7, 11, 8, 22]),
]


@pytest.mark.parametrize(("seed", "shares", "step", "expected"), GOLDEN)
def test_the_order_of_a_seed_stays_the_same(seed, shares, step, expected):
    packings = corpora()[: len(shares)]
    mixture = Mixture(packings, shares, seed)
    first = 12 * step
    positions = range(first, first + 12)
    batch = mixture.batch(positions)
    assert batch["index"].tolist() == expected


def test_the_order_of_pools_stays_the_same():
    documents = [[5] * 30] * 9
    order = mixture_of(InMemory(documents), 6, 3, group_tokens=12, pool_tokens=60)
    batch = order.batch(range(60, 72))
    assert batch["index"].tolist() == [14, 39, 11, 9, 51, 8, 50, 15, 38, 10, 24, 23]


def test_epochs_and_seeds_have_other_orders(thousand):
    order = mixture_of(thousand, 10, 3, group_tokens=20, pool_tokens=1000)
    other_order = mixture_of(thousand, 10, 4, group_tokens=20, pool_tokens=1000)
    batch = order.batch(range(2000))
    other_batch = other_order.batch(range(1000))
    indices = batch["index"].reshape(2, 1000)
    first_epoch, second_epoch = indices
    for different in (second_epoch, other_batch["index"]):
        assert np.mean(first_epoch != different) > 0.9


WEIGHTS = st.lists(st.integers(1, 50), min_size=2, max_size=4)


def mixture_by(weights: list[int]) -> Mixture:
    """A mixture of as many corpora as there are weights."""
    total = sum(weights)
    shares = [weight / total for weight in weights]
    packings = corpora()[: len(weights)]
    return Mixture(packings, shares, 3)


@given(WEIGHTS, st.integers(0, 400))
def test_a_mixture_gives_each_corpus_its_share(weights, first):
    """The shares are exact to within one example for each corpus."""
    mixture = mixture_by(weights)
    batch = mixture.batch(range(first + 24))
    text_of = batch["tokens"].max(axis=1)
    positions = np.arange(1, len(text_of) + 1)
    for token, weight in enumerate(weights, start=5):
        count = np.cumsum(text_of == token)
        exact = weight / sum(weights) * positions
        errors = np.abs(count - exact)
        assert errors.max() < len(weights)


@given(WEIGHTS, st.integers(0, 400))
def test_each_corpus_of_a_mixture_has_its_own_order(weights, first):
    mixture = mixture_by(weights)
    batch = mixture.batch(range(first + 24))
    first_window = 0
    for number, windows in enumerate(mixture.packings):
        places = batch["index"] - first_window
        is_of_corpus = (places >= 0) & (places < len(windows))
        corpus_tokens = batch["tokens"][is_of_corpus]
        texts = set(corpus_tokens.ravel().tolist())
        special_ids = windows.prepared.tokenizer.special_ids
        assert texts <= {5 + number, *special_ids}
        alone = WindowOrder(windows, 3 + number)
        expected = alone.take(0, np.count_nonzero(is_of_corpus))
        assert_array_equal(places[is_of_corpus], expected["index"])
        first_window += len(windows)


@given(WEIGHTS, st.integers(0, 400))
def test_later_positions_of_a_mixture_can_be_read_first(weights, first):
    """A pickled copy starts there, and gives the same batch."""
    mixture = mixture_by(weights)
    copy = pickle.loads(pickle.dumps(mixture))
    batch = mixture.batch(range(first + 24))
    positions = range(first, first + 24)
    later = copy.batch(positions)
    expected = {}
    for name, values in batch.items():
        expected[name] = values[first:]
    assert_equal(later, expected)


# In files


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    limits = Limits(workers=1, shard_bytes=1)
    return prepare(corpus(3), tokenizer(), folder, limits)


def test_windows_of_a_prepared_folder(prepared):
    encode = tokenizer().encode
    made = InMemory([encode(text) for text in TEXTS])
    assert made.ids.tolist() == stream(TEXTS)
    windows = Packing(prepared, 16)
    found = windows.windows(0, len(windows))
    assert found.tolist() == expected_windows(made, 16)


def test_pickles_of_windows_are_small(prepared):
    windows = Packing(prepared, 16)
    order = Mixture([windows], [1.0], 0)
    content = pickle.dumps((windows, order))
    assert len(content) < 1000
    copy, _ = pickle.loads(content)
    copied = copy[5]["tokens"]
    tokens = windows[5]["tokens"]
    assert_array_equal(copied, tokens)


@pytest.mark.parametrize(("workers", "start", "host"), [(0, 0, 0), (0, 70, 1), (1, 70, 1)])
def test_train_batches_follow_the_order(prepared, workers, start, host):
    windows = Packing(prepared, 16)
    order = Mixture([windows], [1.0], 5)
    reading = Reading(6, host, hosts=2, workers=workers)
    with pipeline.train_batches(order, reading, start) as batches:
        for step in range(start, start + 5):
            first_of_step = 6 * step
            first = first_of_step + 3 * host
            positions = range(first, first + 3)
            expected = order.batch(positions)
            assert_equal(next(batches), expected)


# Shares


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        (("a.txt",), "a.txt"),
        (("a.txt=",), "a.txt="),
        (("a.txt=0",), "a.txt=0"),
        (("a.txt=-0.1",), "a.txt=-0.1"),
        (("a.txt=1",), "a.txt=1"),
        (("a.txt=0.1", "a.txt=0.2"), "a.txt=0.2"),
        (("a.txt=0.5", "b/=0.5"), "b/=0.5"),
        (("=0.5",), "=0.5"),
        (("a.txt=nan",), "a.txt=nan"),
        (("a.txt=half",), "a.txt=half"),
    ],
)
def test_invalid_shares_are_refused(lines, wrong):
    message = raised(ConfigError, read_shares, lines)
    assert f"config.data.mixture: {wrong!r}" in message


def test_shares_are_read_by_path():
    lines = ("s3://b/a=b.txt=0.25", "wiki/=0.5")
    assert read_shares(lines) == {"s3://b/a=b.txt": 0.25, "wiki/": 0.5}
    assert read_shares(()) == {}
