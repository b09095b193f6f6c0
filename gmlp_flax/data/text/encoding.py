"""Documents to token ids, in batches large enough for the tokenizer's threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from gmlp_flax.data.text.tokenizer import Tokenizer

# Characters and documents per call: enough to keep threads busy, few enough to stream.
_CHARACTERS = 2**20
_DOCUMENTS = 4096

# A longer document is encoded in pieces: SentencePiece adds up the scores of a text's tokens in float32, which rounds
# them in a whole book, and takes thirty bytes of memory per character.
_PIECE = 2**12


def encode_documents(
    documents: Iterable[str], tokenizer: Tokenizer, threads: int = 1
) -> Iterator[tuple[np.ndarray, list[int], int]]:
    """Encodes documents one after another, with [SEP] after each.

    Yields:
        ids: int32 [tokens] of one batch.
        lengths: the tokens of each document that ends in the batch, including its [SEP] and its tokens in earlier
            batches.
        characters: how many characters the ids stand for.
    """
    sep, begun = np.array([tokenizer.sep_id], np.int32), 0
    for pieces in _batches(documents):
        texts = [text for text, _ in pieces]
        parts, lengths = [], []
        for ids, (_, ends) in zip(tokenizer.encode_batch(texts, threads), pieces, strict=True):
            parts.append(ids)
            begun += len(ids)
            if ends:
                parts.append(sep)
                lengths.append(begun + 1)
                begun = 0
        yield np.concatenate(parts), lengths, sum(map(len, texts))


def _batches(documents: Iterable[str]) -> Iterator[list[tuple[str, bool]]]:
    batch, characters = [], 0
    for document in documents:
        for piece in _pieces(document):
            batch.append(piece)
            characters += len(piece[0])
            if characters >= _CHARACTERS or len(batch) == _DOCUMENTS:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch


def _pieces(document: str) -> Iterator[tuple[str, bool]]:
    """Cuts a long document before white space, where no token spans the cut; its last piece comes with True."""
    start = 0
    while len(document) - start > _PIECE:
        end = max(document.rfind(space, start + 1, start + _PIECE) for space in " \n")
        end = end if end > 0 else start + _PIECE
        yield document[start:end], False
        start = end
    yield document[start:], True
