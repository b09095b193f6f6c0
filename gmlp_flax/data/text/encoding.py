"""Documents to token ids, in batches of pieces of documents."""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from gmlp_flax.data.text.fixed_vocabulary import utf8
from gmlp_flax.data.text.tokenizer import Tokenizer

# Pieces that are encoded by one call: enough to keep threads busy, few enough to stream.
BATCH = 1024

# A longer document is encoded in pieces: SentencePiece adds up the scores of a text's tokens in
# float32, which rounds them in a whole book, and takes thirty bytes of memory per character.
PIECE = 2**12


class EncodedBatch(NamedTuple):
    """Some pieces of documents.

    Attributes:
        ids: int32 [tokens], with [SEP] after each document.
        documents: how many documents end in the batch.
        text_bytes: the size of the text in UTF-8, before it was normalized.
    """

    ids: np.ndarray
    documents: int
    text_bytes: int


def encode_documents(
    documents: Iterable[str], tokenizer: Tokenizer, threads: int = 1
) -> Iterator[EncodedBatch]:
    """Encodes documents one after another, with [SEP] after each."""
    sep = np.array([tokenizer.sep_id], np.int32)
    pieces_of_documents = map(_pieces, documents)
    pieces = itertools.chain.from_iterable(pieces_of_documents)
    while batch := list(itertools.islice(pieces, BATCH)):
        texts = [piece.text for piece in batch]
        encoded = tokenizer.encode_batch(texts, threads)
        id_parts = []
        ended = 0
        text_bytes = 0
        for ids, piece in zip(encoded, batch, strict=True):
            content = utf8(piece.text)
            id_parts.append(ids)
            text_bytes += len(content)
            if piece.is_last:
                id_parts.append(sep)
                ended += 1
        yield EncodedBatch(
            ids=np.concatenate(id_parts),
            documents=ended,
            text_bytes=text_bytes,
        )


class _Piece(NamedTuple):
    """A piece of a document, and whether it is the last."""

    text: str
    is_last: bool


def _pieces(document: str) -> Iterator[_Piece]:
    """A document in pieces, cut before white space, where no token spans the cut."""
    start = 0
    while len(document) - start > PIECE:
        limit = start + PIECE
        space = document.rfind(" ", start + 1, limit)
        line_feed = document.rfind("\n", start + 1, limit)
        cut = max(space, line_feed)
        stop = cut if cut > 0 else limit
        text = document[start:stop]
        yield _Piece(text, False)
        start = stop
    rest = document[start:]
    yield _Piece(rest, True)
