"""Frequent bigrams of a text."""

import collections
import itertools

import numpy as np
import pytest

from gmlp_flax.data.text import bigrams
from tests.training import tiny


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A text of documents with [SEP] between them, as token ids."""
    folder = tmp_path_factory.mktemp("bigrams")
    _, data = tiny.open_task(tiny.text_config(folder), folder)
    return data.windows("train").prepared


@pytest.mark.parametrize("most", [1, 5, 20])
def test_frequent_bigrams_are_those_that_a_slow_count_finds(text, most):
    ids = text.read(0, text.tokens).tolist()
    vocab_size = text.tokenizer.vocab_size
    counts = collections.Counter(itertools.pairwise(ids))
    expected = []
    for (first, second), count in counts.items():
        if count > most:
            expected.append(first * vocab_size + second)
    assert len(expected) > 3
    keys = bigrams.frequent_keys(text, most)
    assert keys.tolist() == sorted(expected)


class Text:
    """A prepared text of 40 tokens, of which `frequent_keys` reads 20: every second block."""

    tokens = 40

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def some_blocks(self, most):
        assert most == 20
        yield np.tile(np.uint16([7, 8]), 5)
        yield np.tile(np.uint16([9, 8]), 5)


def test_counts_in_some_blocks_are_scaled_to_the_whole_text(text):
    sample = Text(text.tokenizer)
    vocab_size = text.tokenizer.vocab_size
    # (7, 8) is 5 times in the 20 tokens that are read, (8, 7) 4 times
    most_frequent = [7 * vocab_size + 8, 9 * vocab_size + 8]
    over_9 = bigrams.frequent_keys(sample, 9, counted_tokens=20)
    assert over_9.tolist() == most_frequent
    over_10 = bigrams.frequent_keys(sample, 10, counted_tokens=20)
    assert over_10.tolist() == []
    over_7 = bigrams.frequent_keys(sample, 7, counted_tokens=20)
    assert len(over_7) == 4


TOKENS = np.int32([5, 6, 5, 6, 7])
FREQUENT = np.array([56, 67])  # 5 6 and 6 7, of ten ids
IS_FREQUENT = [False, True, False, True, True]


def test_tokens_that_end_a_frequent_bigram_are_marked():
    is_frequent = bigrams.are_frequent(TOKENS, FREQUENT, 10)
    assert is_frequent.tolist() == IS_FREQUENT
    no_keys = np.empty(0, np.int64)
    is_frequent = bigrams.are_frequent(TOKENS, no_keys, 10)
    assert is_frequent.tolist() == [False] * 5


def test_windows_have_a_mark_for_each_token():
    source = [{"tokens": TOKENS, "index": 3}]
    windows = bigrams.WithFrequency(source, FREQUENT, 10)
    assert len(windows) == 1
    window = windows[0]
    assert window["index"] == 3
    assert window["is_frequent"].tolist() == IS_FREQUENT


def test_keys_of_the_largest_ids_do_not_overflow():
    vocab_size = 2**24
    last = vocab_size - 1
    tokens = np.uint32([last, last - 1, last, last - 1])
    keys = bigrams.keys_of(tokens, vocab_size).tolist()
    falling = last * vocab_size + last - 1
    rising = (last - 1) * vocab_size + last
    assert keys == [falling, rising, falling]
