"""Model inputs of texts and pairs of texts: `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, cut and
padded as in BERT."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError

_TEXTS = 4096  # encoded in one call: the tokenizers library holds kilobytes for each
# Lengths to which batches are cut: a program is compiled for each.
LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def encode(
    texts: Sequence[str], tokenizer: Tokenizer, max_tokens: int | None = None
) -> list[np.ndarray]:
    """Encodes texts on all cores, each to int32 [tokens] without special tokens; tokens after the
    first `max_tokens` of a text are dropped."""
    encoded: list[np.ndarray] = []
    for start in range(0, len(texts), _TEXTS):
        stop = start + _TEXTS
        batch = texts[start:stop]
        for ids in tokenizer.encode_batch(batch):
            # A view would keep the ids of the whole batch.
            kept = ids[:max_tokens].copy()
            encoded.append(kept)
    return encoded


def room_for(texts: int, length: int) -> int:
    """How many tokens of one text, or of two, a sequence of `length` tokens holds besides [CLS] and
    each text's [SEP]; raises DataError if that is less than one of each."""
    room = length - 1 - texts
    if room < texts:
        what = "a text" if texts == 1 else "two texts"
        shortest = 1 + 2 * texts
        raise DataError(
            f"length={length} has no room for {what} besides [CLS] and [SEP]: give "
            f"{shortest} or more"
        )
    return room


class Inputs(NamedTuple):
    """What the model reads of an example.

    Attributes:
        tokens: int32 [length], filled with [PAD].
        segments: int32 [length], 1 for the second text and its [SEP], else 0.
    """

    tokens: np.ndarray
    segments: np.ndarray


def assemble(texts: Sequence[np.ndarray], length: int, tokenizer: Tokenizer) -> Inputs:
    """Lays out one example.

    A pair that is too long loses tokens one by one from the end of the longer text, or of the
    second text if both are equally long, as in BERT.

    Args:
        texts: one text, or both texts of a pair, each int32 [tokens] without special tokens.
        length: of the returned arrays.
        tokenizer: for the ids of special tokens.

    Raises:
        DataError: as in `room_for`.
    """
    room = room_for(len(texts), length)
    total = sum(map(len, texts))
    second_half = room // 2
    first_half = room - second_half
    halves = (first_half, second_half)
    tokens = np.full(length, tokenizer.pad_id, np.int32)
    segments = np.zeros(length, np.int32)
    tokens[0] = tokenizer.cls_id
    start = 1
    for segment, text in enumerate(texts):
        size = len(text)
        size_of_others = total - size
        left_by_others = room - size_of_others
        most = max(left_by_others, halves[segment])
        kept = min(size, most)
        separator = start + kept
        after_separator = separator + 1
        tokens[start:separator] = text[:kept]
        tokens[separator] = tokenizer.sep_id
        segments[start:after_separator] = segment
        start = after_separator
    return Inputs(tokens, segments)


def cut_padding(batch: Mapping[str, np.ndarray], pad_id: int) -> dict[str, np.ndarray]:
    """The batch with "tokens" and "segments" [..., n] cut to the least of LENGTHS that keeps
    everything but [PAD], or to n."""
    tokens = batch["tokens"]
    longest = tokens.shape[-1]
    texts = tokens.reshape(-1, longest)
    is_used = np.any(texts != pad_id, axis=0)
    used = np.flatnonzero(is_used)
    last_used = int(used[-1])
    length = longest
    for shorter in reversed(LENGTHS):
        if last_used < shorter < length:
            length = shorter
    cut = dict(batch)
    for name in ("tokens", "segments"):
        values = batch[name]
        cut[name] = values[..., :length]
    return cut


class Pairs:
    """A random-access source of {"tokens", "segments": int32 [length], "index": int32} and the
    values of `columns`.

    Args:
        texts: the token ids of single texts, or those of the first and of the second text of pairs.
        columns: name -> array with an entry for each example.
        length, tokenizer: as in `assemble`.
        dual_encoder: whether each text of a pair is laid out alone, `[CLS] a [SEP]`: "tokens" and
            "segments" are then [2, length].

    Attributes:
        cut: how many examples lose tokens.

    Raises:
        DataError: as in `room_for`.
    """

    def __init__(
        self,
        texts: Sequence[Sequence[np.ndarray]],
        columns: Mapping[str, np.ndarray],
        *,
        length: int,
        tokenizer: Tokenizer,
        dual_encoder: bool = False,
    ):
        self.texts = texts
        self.columns = columns
        self.dual_encoder = dual_encoder and len(texts) == 2
        self.length = length
        self.tokenizer = tokenizer
        self.cut = self._count_cut()

    def _count_cut(self) -> int:
        columns = []
        for column in self.texts:
            columns.append([len(ids) for ids in column])
        lengths = np.array(columns)
        texts_read = 1
        if not self.dual_encoder:
            texts_read = len(self.texts)
            lengths = lengths.sum(axis=0, keepdims=True)
        room = room_for(texts_read, self.length)
        is_cut = np.any(lengths > room, axis=0)
        return int(is_cut.sum())

    def __len__(self) -> int:
        return len(self.texts[0])

    def __getitem__(self, index: int) -> dict[str, Any]:
        texts = [column[index] for column in self.texts]
        if self.dual_encoder:
            inputs = self._assemble_each(texts)
        else:
            inputs = assemble(texts, self.length, self.tokenizer)
        example = {
            "tokens": inputs.tokens,
            "segments": inputs.segments,
            "index": np.int32(index),
        }
        for name, values in self.columns.items():
            example[name] = values[index]
        return example

    def _assemble_each(self, texts: Sequence[np.ndarray]) -> Inputs:
        """Lays out each text alone: int32 [texts, length]."""
        tokens = []
        segments = []
        for text in texts:
            inputs = assemble([text], self.length, self.tokenizer)
            tokens.append(inputs.tokens)
            segments.append(inputs.segments)
        all_tokens = np.stack(tokens)
        all_segments = np.stack(segments)
        return Inputs(all_tokens, all_segments)
