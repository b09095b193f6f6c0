"""Model inputs of texts and pairs of texts: `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, cut and padded as in BERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError

_TEXTS = 4096  # encoded in one call


@dataclass(frozen=True)
class TokenLists:
    """Token ids of many texts, in one array.

    Attributes:
        ids: int32 [tokens of all texts].
        offsets: int64 [texts + 1], where each text begins, and the end.
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """int64 [texts]: tokens of each text."""
        return np.diff(self.offsets)


def encode(
    texts: Sequence[str], tokenizer: Tokenizer, threads: int | None = None, most: int | None = None
) -> TokenLists:
    """Encodes texts, without special tokens; `threads=None` uses all cores. Of each text `most` tokens are kept."""
    ids, lengths = [np.zeros(0, np.int32)], [0]
    for start in range(0, len(texts), _TEXTS):
        batch = [each[:most] for each in tokenizer.encode_batch(texts[start : start + _TEXTS], threads)]
        ids.append(np.concatenate(batch))
        lengths.extend(map(len, batch))
    return TokenLists(np.concatenate(ids), np.cumsum(lengths, dtype=np.int64))


def encode_pairs(
    first: Sequence[str],
    second: Sequence[str] | None,
    tokenizer: Tokenizer,
    threads: int | None = None,
    most: int | None = None,
) -> tuple[TokenLists, TokenLists | None]:
    """Encodes both texts of each pair, as `encode` does; `second` is None for single texts."""
    encoded = encode(first, tokenizer, threads, most)
    return encoded, None if second is None else encode(second, tokenizer, threads, most)


def kept_lengths(
    first: np.ndarray | int, second: np.ndarray | int | None, length: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """How many tokens of each text are kept.

    A pair that is too long loses tokens one by one from the end of the longer text, or of the second text if both are
    equally long, as in BERT.

    Args:
        first, second: int [...], tokens of each text; None if there is no second text.
        length: of the whole sequence, including special tokens.

    Raises:
        DataError: there is no room for a token of each text.
    """
    texts = 1 if second is None else 2
    room = length - 1 - texts
    if room < texts:
        raise DataError(
            f"length={length} has no room for {'a text' if texts == 1 else 'two texts'} beside [CLS] and [SEP]: give "
            f"{1 + 2 * texts} or more"
        )
    if second is None:
        return np.minimum(first, room), None
    return np.minimum(first, np.maximum(room - second, -(-room // 2))), np.minimum(
        second, np.maximum(room - first, room // 2)
    )


def assemble(
    first: np.ndarray, second: np.ndarray | None, length: int, tokenizer: Tokenizer
) -> tuple[np.ndarray, np.ndarray]:
    """Lays out one example.

    Args:
        first, second: int32 [tokens], without special tokens; None if there is no second text.
        length: of the returned arrays.
        tokenizer: for the ids of special tokens.

    Returns:
        tokens: int32 [length], filled with [PAD].
        segments: int32 [length], 1 for the second text and its [SEP], else 0.

    Raises:
        DataError: as in `kept_lengths`.
    """
    first_kept, second_kept = kept_lengths(len(first), None if second is None else len(second), length)
    tokens, segments = np.full(length, tokenizer.pad_id, np.int32), np.zeros(length, np.int32)
    end = int(first_kept) + 2
    tokens[0], tokens[1 : end - 1], tokens[end - 1] = tokenizer.cls_id, first[:first_kept], tokenizer.sep_id
    if second is not None and second_kept is not None:
        last = end + int(second_kept)
        tokens[end:last], tokens[last], segments[end : last + 1] = second[:second_kept], tokenizer.sep_id, 1
    return tokens, segments


class Pairs:
    """A random-access source of {"tokens", "segments": int32 [length], "index": int32} and the values of `columns`.

    Args:
        first, second: token ids; None if there is no second text.
        columns: name -> array with an entry for each example.
        length, tokenizer: as in `assemble`.
        name: the source's name in messages.
        apart: whether both texts of a pair are laid out alone, each `[CLS] a [SEP]`: "tokens" and "segments" are then
            [2, length].

    Attributes:
        cut: how many examples lose tokens.

    Raises:
        DataError: as in `kept_lengths`.
    """

    def __init__(
        self,
        first: TokenLists,
        second: TokenLists | None,
        columns: Mapping[str, np.ndarray],
        *,
        length: int,
        tokenizer: Tokenizer,
        name: str,
        apart: bool = False,
    ):
        self.first, self.second, self.columns = first, second, dict(columns)
        self.length, self.tokenizer, self.name, self.apart = length, tokenizer, name, apart and second is not None
        lengths = first.lengths, None if second is None else second.lengths
        lost = np.zeros(len(first), np.int64)
        alone = (kept_lengths(each, None, length)[0] for each in lengths if each is not None)
        for before, after in zip(lengths, alone if self.apart else kept_lengths(*lengths, length), strict=True):
            if before is not None and after is not None:
                lost += before - after
        self.cut = int(np.count_nonzero(lost))

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: int) -> dict[str, Any]:
        texts = [self.first[index], *([] if self.second is None else [self.second[index]])]
        if self.apart:
            both = [assemble(text, None, self.length, self.tokenizer) for text in texts]
            tokens, segments = map(np.stack, zip(*both, strict=True))
        else:
            tokens, segments = assemble(texts[0], texts[1] if len(texts) == 2 else None, self.length, self.tokenizer)
        columns = {name: values[index] for name, values in self.columns.items()}
        return {"tokens": tokens, "segments": segments, "index": np.int32(index), **columns}

    def __repr__(self) -> str:
        return f"Pairs({self.name!r}, examples={len(self)}, length={self.length})"
