"""Documents are encoded in batches of pieces."""

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
def test_ids_do_not_depend_on_batches_and_threads(monkeypatch, threads, pieces):
    monkeypatch.setattr(encoding, "BATCH", pieces)
    for texts in (TEXTS, [], ["", "the fox", ""]):
        tokens, count = encode(texts, threads)
        assert tokens == stream(texts)
        assert count == len(texts)


@pytest.mark.parametrize("piece", [30, 57])
def test_long_documents_are_cut_between_tokens(monkeypatch, piece):
    monkeypatch.setattr(encoding, "PIECE", piece)
    texts = ["the quick brown\nfox  jumps over \n lazy dogs " * 20, "the fox"]
    tokens, _ = encode(texts)
    assert tokens == stream(texts)


@pytest.mark.parametrize("piece", [7, 4096])
def test_bytes_are_counted_before_normalization(monkeypatch, piece):
    monkeypatch.setattr(encoding, "PIECE", piece)
    texts = ["the  quick\n\n\tfox ﬁ \ud800", "日本  "]
    batches = list(encode_documents(texts, tokenizer()))
    assert sum(batch.text_bytes for batch in batches) == 22 + 8
    assert sum(batch.documents for batch in batches) == 2


def test_words_longer_than_a_piece_are_cut(monkeypatch):
    monkeypatch.setattr(encoding, "PIECE", 30)
    expected = []
    for piece in ("x" * 30, "x" * 30, "x" * 7):
        expected += tokenizer().encode(piece)
    expected.append(tokenizer().sep_id)
    tokens, _ = encode(["x" * 67])
    assert tokens == expected
