"""Bigrams that a text has often."""

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


def test_frequent_bigrams_are_counted_one_by_one(text):
    ids = text.read(0, text.tokens).tolist()
    counts = collections.Counter(itertools.pairwise(ids))
    vocab_size = text.tokenizer.vocab_size
    for most in (1, 5, 20):
        expected = sorted(
            first * vocab_size + second for (first, second), count in counts.items() if count > most
        )
        assert len(expected) > 3
        assert bigrams.frequent_keys(text, most).tolist() == expected


class Text:
    """What `frequent_keys` reads of a prepared text, of which only every second block is read."""

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
    expected = sorted([7 * vocab_size + 8, 9 * vocab_size + 8])
    assert bigrams.frequent_keys(sample, 9, counted_tokens=20).tolist() == expected
    assert not len(bigrams.frequent_keys(sample, 10, counted_tokens=20))
    assert len(bigrams.frequent_keys(sample, 7, counted_tokens=20)) == 4


def test_a_window_says_which_of_its_bigrams_are_frequent():
    tokens = np.int32([5, 6, 5, 6, 7])
    frequent = np.array(sorted([5 * 10 + 6, 6 * 10 + 7]))
    found = bigrams.are_frequent(tokens, frequent, 10)
    assert found.tolist() == [False, True, False, True, True]
    none = bigrams.are_frequent(tokens, np.empty(0, np.int64), 10)
    assert none.tolist() == [False] * 5
    windows = bigrams.WithFrequency([{"tokens": tokens, "index": 3}], frequent, 10)
    assert len(windows) == 1
    assert windows[0]["index"] == 3
    assert windows[0]["is_frequent"].tolist() == found.tolist()


def test_the_largest_ids_do_not_overflow():
    tokens = np.uint32([2**24 - 1, 2**24 - 2, 2**24 - 1, 2**24 - 2])
    keys = bigrams.keys_of(tokens, 2**24)
    assert keys[0] == keys[2] == (2**24 - 1) * 2**24 + 2**24 - 2
    assert keys[1] != keys[0]
