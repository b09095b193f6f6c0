"""Model inputs of texts and pairs of texts: `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, cut and
padded as in BERT."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError

_TEXTS = 4096  # encoded in one call: the tokenizers library holds kilobytes for each
# of batches that are cut: a program for each
LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def encode(
    texts: Sequence[str], tokenizer: Tokenizer, max_tokens: int | None = None
) -> list[np.ndarray]:
    """Encodes texts on all cores, each int32 [tokens], without special tokens; further tokens of a
    text are dropped."""
    batches = (
        tokenizer.encode_batch(texts[start : start + _TEXTS])
        for start in range(0, len(texts), _TEXTS)
    )
    return [ids[:max_tokens].copy() for batch in batches for ids in batch]


def room_for(texts: int, length: int) -> int:
    """How many tokens of one text, or of two, a sequence of `length` tokens holds beside [CLS] and
    each text's [SEP]; raises DataError if that is less than one of each."""
    room = length - 1 - texts
    if room < texts:
        what, least = "a text" if texts == 1 else "two texts", 1 + 2 * texts
        raise DataError(
            f"length={length} has no room for {what} beside [CLS] and [SEP]: give {least} or more"
        )
    return room


def assemble(
    texts: Sequence[np.ndarray], length: int, tokenizer: Tokenizer
) -> tuple[np.ndarray, np.ndarray]:
    """Lays out one example.

    A pair that is too long loses tokens one by one from the end of the longer text, or of the
    second text if both are equally long, as in BERT.

    Args:
        texts: one text, or both texts of a pair, each int32 [tokens] without special tokens.
        length: of the returned arrays.
        tokenizer: for the ids of special tokens.

    Returns:
        tokens: int32 [length], filled with [PAD].
        segments: int32 [length], 1 for the second text and its [SEP], else 0.

    Raises:
        DataError: as in `room_for`.
    """
    room, total = room_for(len(texts), length), sum(map(len, texts))
    halves = -(-room // 2), room // 2
    tokens, segments = np.full(length, tokenizer.pad_id, np.int32), np.zeros(length, np.int32)
    tokens[0], start = tokenizer.cls_id, 1
    for segment, text in enumerate(texts):
        kept = min(len(text), max(room - (total - len(text)), halves[segment]))
        stop = start + kept
        tokens[start:stop], tokens[stop], segments[start : stop + 1] = (
            text[:kept],
            tokenizer.sep_id,
            segment,
        )
        start = stop + 1
    return tokens, segments


def cut_padding(batch: Mapping[str, np.ndarray], pad_id: int) -> dict[str, np.ndarray]:
    """The batch with "tokens" and "segments" [..., n] cut to the least of LENGTHS that keeps all
    but [PAD], or to n."""
    tokens = batch["tokens"]
    used = 1 + int(np.flatnonzero((tokens != pad_id).reshape(-1, tokens.shape[-1]).any(0))[-1])
    length = min([length for length in LENGTHS if length >= used], default=tokens.shape[-1])
    return dict(batch) | {name: batch[name][..., :length] for name in ("tokens", "segments")}


class Pairs:
    """A random-access source of {"tokens", "segments": int32 [length], "index": int32} and the
    values of `columns`.

    Args:
        texts: token ids of single texts, or of the first and of the second text of pairs.
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
        self.texts, self.columns, self.dual_encoder = (
            texts,
            columns,
            dual_encoder and len(texts) == 2,
        )
        self.length, self.tokenizer = length, tokenizer
        lengths = np.array([[*map(len, tokens)] for tokens in texts])
        sequences = lengths if self.dual_encoder else lengths.sum(0, keepdims=True)
        self.cut = int((sequences > room_for(len(texts) // len(sequences), length)).any(0).sum())

    def __len__(self) -> int:
        return len(self.texts[0])

    def __getitem__(self, index: int) -> dict[str, Any]:
        texts = [tokens[index] for tokens in self.texts]
        if self.dual_encoder:
            layouts = [assemble([text], self.length, self.tokenizer) for text in texts]
            tokens, segments = map(np.stack, zip(*layouts, strict=True))
        else:
            tokens, segments = assemble(texts, self.length, self.tokenizer)
        columns = {name: values[index] for name, values in self.columns.items()}
        return {"tokens": tokens, "segments": segments, "index": np.int32(index), **columns}
