import numpy as np
import pytest

from gmlp_flax.data.text import encoding
from gmlp_flax.data.text.encoding import encode_documents
from tests.data.text.preparing import TEXTS, stream, tokenizer


def flat(batches):
    batches = list(batches)
    lengths = [length for _, ended, _ in batches for length in ended]
    return np.concatenate([ids for ids, _, _ in batches]).tolist(), lengths, sum(count for _, _, count in batches)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("characters", "documents"), [(1, 1), (100, 3), (10**6, 10**6)])
def test_batches_change_nothing(monkeypatch, threads, characters, documents):
    monkeypatch.setattr(encoding, "_CHARACTERS", characters)
    monkeypatch.setattr(encoding, "_DOCUMENTS", documents)
    ids, lengths, count = flat(encode_documents(iter(TEXTS), tokenizer(), threads))
    assert ids == stream(TEXTS)
    assert lengths == [len(tokenizer().encode(text)) + 1 for text in TEXTS]
    assert count == sum(map(len, TEXTS))


@pytest.mark.parametrize("piece", [30, 57])
def test_long_documents_are_cut_where_no_token_is(monkeypatch, piece):
    monkeypatch.setattr(encoding, "_PIECE", piece)
    text = "the quick brown\nfox  jumps over \n lazy dogs " * 20
    ids, lengths, count = flat(encode_documents([text, "the fox"], tokenizer()))
    assert ids == stream([text, "the fox"]) and lengths == [len(stream([text])), len(stream(["the fox"]))]
    assert count == len(text) + 7
    assert len("".join(part for part, _ in encoding._pieces(text))) == len(text)
    # Without white space, the cut is at the limit.
    assert [part for part, _ in encoding._pieces("x" * 70)] == ["x" * piece] * (70 // piece) + ["x" * (70 % piece)]


def test_nothing():
    assert list(encode_documents([], tokenizer())) == []
