"""Which bigrams, pairs of consecutive tokens, a text has often."""

from typing import Any

import numpy as np

from gmlp_flax.data.pipeline import Source
from gmlp_flax.data.text.prepared import Prepared

COUNTED_TOKENS = 1 << 24


def keys_of(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """A number for each bigram, int64 [tokens - 1]: equal bigrams have equal numbers.

    Args:
        tokens: ids, [tokens].
        vocab_size: more than the largest id.
    """
    wide = tokens.astype(np.int64)
    first = wide[:-1]
    second = wide[1:]
    return first * vocab_size + second


def frequent_keys(text: Prepared, most: int, counted_tokens: int = COUNTED_TOKENS) -> np.ndarray:
    """The bigrams that a text has more than `most` times: sorted numbers of `keys_of`, int64.

    They are counted in blocks of 65,536 tokens, without the pairs across blocks. Of a text with
    more than `counted_tokens` tokens, evenly spread blocks are counted, and the counts are scaled
    to the whole text.
    """
    vocab_size = text.tokenizer.vocab_size
    keys = []
    tokens = 0
    for ids in text.some_blocks(counted_tokens):
        keys_of_block = keys_of(ids, vocab_size)
        keys.append(keys_of_block)
        tokens += len(ids)
    all_keys = np.concatenate(keys)
    different, counts = np.unique(all_keys, return_counts=True)
    scale = text.tokens / tokens
    is_frequent = counts * scale > most
    return different[is_frequent]


def are_frequent(tokens: np.ndarray, frequent: np.ndarray, vocab_size: int) -> np.ndarray:
    """Whether each token and the one before it are a frequent bigram: bool [tokens], False for the
    first token.

    Args:
        tokens: ids, [tokens].
        frequent: of `frequent_keys`.
        vocab_size: of the tokenizer that made both.
    """
    result = np.zeros(len(tokens), bool)
    if len(frequent):
        keys = keys_of(tokens, vocab_size)
        after = np.searchsorted(frequent, keys)
        last = len(frequent) - 1
        nearest = np.minimum(after, last)
        result[1:] = frequent[nearest] == keys
    return result


class WithFrequency:
    """Windows of tokens, each with "is_frequent", bool [tokens]: see `are_frequent`; a
    `pipeline.Source`."""

    def __init__(self, windows: Source, frequent: np.ndarray, vocab_size: int):
        self._windows = windows
        self._frequent = frequent
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        window = self._windows[index]
        is_frequent = are_frequent(window["tokens"], self._frequent, self._vocab_size)
        return {**window, "is_frequent": is_frequent}
