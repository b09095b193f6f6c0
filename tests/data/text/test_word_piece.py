import sys

import pytest

from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError

PIECES = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cafe", "##s", "is", ".", "old", "b"]


def vocabulary(pieces) -> bytes:
    return ("\n".join(pieces) + "\n").encode()


@pytest.fixture
def tokenizer():
    pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
    return Tokenizer(vocabulary(PIECES))


def test_uncased(tokenizer):
    assert tokenizer.vocab_size == 13 and tokenizer.special_ids == (0, 2, 3, 4, 5)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id) == (0, 2, 3)
    assert (tokenizer.sep_id, tokenizer.mask_id) == (4, 5)
    assert tokenizer.encode("The Cafés is\n\told.") == [6, 7, 8, 9, 11, 10]
    assert tokenizer.encode("the zebra [SEP]") == [6, 2, 2, 2, 2]
    assert tokenizer.decode([3, 6, 7, 8, 9, 11, 10, 4, 0]) == "the cafes is old."
    assert [tokenizer.piece(i) for i in (6, 8, 5)] == [" the", "s", "[MASK]"]
    assert Tokenizer(b"\xef\xbb\xbf" + vocabulary(PIECES)).special_ids == tokenizer.special_ids  # as editors save it


def test_bytes_of_pieces(tokenizer):
    """No space is counted before a punctuation mark."""
    ids = tokenizer.encode("the cafes is old.")
    assert tokenizer.byte_counts()[ids].sum() == len(" the cafes is old.")


def test_offsets(tokenizer):
    text = "The  Cafe\u0301s\u00ad is\n😀old \ud800."
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode(text) and (ids.dtype, spans.dtype) == ("int32", "int32")
    found = [text[start:stop] for start, stop in spans]
    assert found[:2] == ["The", "Cafe"] and found[2][-1:] == "s" and found[3:] == ["is", "😀old", "\ud800", "."]
    assert tokenizer.encode_with_offsets(" ")[1].shape == (0, 2)


def test_cased():
    pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
    tokenizer = Tokenizer(vocabulary([*PIECES, "The", "café"]))
    assert tokenizer.encode("The the café Old") == [13, 6, 14, 2]


def test_masks(tokenizer):
    assert tokenizer.encode_masked("The [MASK] is [MASK][MASK].") == [6, 5, 9, 5, 5, 10]


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([piece for piece in PIECES if piece != "[MASK]"], r"v.txt: .*\[MASK\]"),
        ([*PIECES, "is"], "v.txt: the piece 'is'"),
    ],
)
def test_damaged(tmp_path, pieces, message):
    (tmp_path / "v.txt").write_bytes(vocabulary(pieces))
    with pytest.raises(DataError, match=message):
        Tokenizer.load(tmp_path / "v.txt")


def test_missing_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"gmlp_flax\[wordpiece\]"):
        Tokenizer(vocabulary(PIECES))
