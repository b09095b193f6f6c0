"""Documents to token ids, in batches of pieces of documents."""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from gmlp_flax.data.text.fixed_vocabulary import utf8
from gmlp_flax.data.text.tokenizer import Blank, Tokenizer

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
    pieces_of_documents = (_pieces(text, tokenizer.blank_before) for text in documents)
    pieces = itertools.chain.from_iterable(pieces_of_documents)
    while batch := list(itertools.islice(pieces, BATCH)):
        texts = [piece.text for piece in batch]
        encoded = tokenizer.encode_batch(texts, threads)
        id_parts = []
        ended = 0
        text_bytes = 0
        for ids, piece in zip(encoded, batch, strict=True):
            if piece.is_inside:
                continued = tokenizer.encode_after(piece.text)
                ids = np.array(continued, np.int32)
            id_parts.append(ids)
            text_bytes += piece.bytes
            if piece.is_last:
                id_parts.append(sep)
                ended += 1
        yield EncodedBatch(
            ids=np.concatenate(id_parts),
            documents=ended,
            text_bytes=text_bytes,
        )


class _Piece(NamedTuple):
    """A piece of a document.

    Attributes:
        text: what is encoded.
        is_last: whether the document ends with it.
        is_inside: whether it begins inside a word.
        bytes: of it in the document, in UTF-8.
    """

    text: str
    is_last: bool
    is_inside: bool
    bytes: int


def _pieces(document: str, blank_before: Blank) -> Iterator[_Piece]:
    """A document in pieces, cut between words.

    Args:
        document: the document.
        blank_before: of the tokenizer. If it is "always", the blank between two pieces is in
            neither, as the second one gets it.
    """
    start = 0
    is_inside = False
    left_out = 0  # the blank before the piece
    while len(document) - start > PIECE:
        limit = start + PIECE
        cut = _last_cut(document, start, limit, blank_before)
        stop = limit if cut is None else cut
        text = document[start:stop]
        yield _Piece(text, False, is_inside, left_out + _size(text))
        is_inside = cut is None
        left_out = int(blank_before == "always" and not is_inside)
        start = stop + left_out
    rest = document[start:]
    yield _Piece(rest, True, is_inside, left_out + _size(rest))


def _last_cut(document: str, start: int, limit: int, blank_before: Blank) -> int | None:
    """The last position after `start` and before `limit` where a word ends, and what follows would
    be encoded alike on its own. None if there is none."""
    for position in range(limit - 1, start, -1):
        is_space = document[position].isspace()
        if not is_space or document[position - 1].isspace():
            continue
        if blank_before == "never":
            return position
        is_blank = document[position] == " "
        is_single = not document[position + 1].isspace()
        if is_blank and (is_single or blank_before == "missing"):
            return position
    return None


def _size(text: str) -> int:
    """The bytes of a text in UTF-8."""
    content = utf8(text)
    return len(content)
