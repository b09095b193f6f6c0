"""Documents to token ids, in batches of pieces."""

import numpy as np
import pytest

from gmlp_flax.data.text import encoding
from gmlp_flax.data.text.encoding import encode_documents
from tests.data.text.preparing import TEXTS, stream, tokenizer


def encode(documents: list[str], threads: int = 1) -> tuple[list[int], int]:
    """The ids of all documents, and their number."""
    tokens: list[int] = []
    count = 0
    for batch, ended, _ in encode_documents(documents, tokenizer(), threads):
        assert batch.dtype == np.int32
        tokens += batch.tolist()
        count += ended
    return tokens, count


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("pieces", [1, 3, 10**6])
def test_batches_change_nothing(monkeypatch, threads, pieces):
    monkeypatch.setattr(encoding, "BATCH", pieces)
    assert encode(TEXTS, threads) == (stream(TEXTS), len(TEXTS))
    assert encode([]) == ([], 0)
    assert encode(["", "the fox", ""]) == (stream(["", "the fox", ""]), 3)


@pytest.mark.parametrize("piece", [30, 57])
def test_long_documents_are_cut_where_no_token_is(monkeypatch, piece):
    monkeypatch.setattr(encoding, "PIECE", piece)
    texts = ["the quick brown\nfox  jumps over \n lazy dogs " * 20, "the fox"]
    assert encode(texts) == (stream(texts), 2)


@pytest.mark.parametrize("piece", [7, 4096])
def test_bytes_of_the_text_before_it_is_normalised(monkeypatch, piece):
    monkeypatch.setattr(encoding, "PIECE", piece)
    texts = ["the  quick\n\n\tfox ﬁ \ud800", "日本  "]
    batches = list(encode_documents(texts, tokenizer()))
    assert sum(batch.text_bytes for batch in batches) == 22 + 8
    assert sum(batch.documents for batch in batches) == 2


def test_words_longer_than_a_piece_are_cut(monkeypatch):
    monkeypatch.setattr(encoding, "PIECE", 30)
    pieces = ["x" * 30, "x" * 30, "x" * 7]
    expected = []
    for piece in pieces:
        expected += tokenizer().encode(piece)
    tokens, _ = encode(["".join(pieces)])
    assert tokens == [*expected, tokenizer().sep_id]
