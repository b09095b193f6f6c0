"""Text as bytes, and ListOps's symbols as tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data import listops
from gmlp_flax.data.text.fixed_vocabulary import SPECIAL_PIECES
from gmlp_flax.data.text.tokenizer import Tokenizer
from tests.data.text.vocabularies import assert_special_ids
from tests.failures import failure

BYTES = Tokenizer.load("bytes")
SYMBOLS = Tokenizer.load("listops")


@pytest.mark.parametrize(("tokenizer", "size"), [(BYTES, 261), (SYMBOLS, 20)])
def test_a_vocabulary_without_a_file(tokenizer, size):
    assert tokenizer.vocab_size == size
    assert_special_ids(tokenizer)
    assert tokenizer.cases is None
    assert not tokenizer.may_be_unknown
    pieces = [tokenizer.piece(token) for token in range(size)]
    assert pieces[:5] == list(SPECIAL_PIECES)
    assert len(set(pieces)) == size


def test_pieces():
    assert BYTES.piece(5 + 65) == "A"
    assert BYTES.piece(5 + 10) == "<0x0A>"
    assert BYTES.piece(5 + 255) == "<0xFF>"
    got = [SYMBOLS.piece(token) for token in range(5, 20)]
    assert got == list(listops.SYMBOLS)


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_text_is_its_bytes(text):
    """White space, case and special pieces' names included."""
    ids = BYTES.encode(text)
    assert ids == [5 + byte for byte in text.encode()]
    assert BYTES.decode(ids) == text
    whole, empty = BYTES.encode_batch([text, ""])
    assert whole.tolist() == ids
    assert empty.tolist() == []


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([2, 5 + 0xC3, 5 + 65, 5 + 0xFF, 5 + 0xE6, 5 + 0x97, 3, 0], "\ufffdA\ufffd\ufffd"),
        ([5 + 0xE6, 5 + 0x97, 5 + 0xA5], "日"),
        ([0, 1, 2, 3, 4], ""),
    ],
)
def test_bytes_that_a_model_may_draw(ids, text):
    """U+FFFD stands for each wrong sequence."""
    assert BYTES.decode(ids) == text


def test_a_lone_surrogate_has_no_bytes():
    assert BYTES.encode("a\ud800") == [5 + 97, 5 + 63]
    _, spans = BYTES.encode_with_offsets("a\ud800")
    assert spans.tolist() == [[0, 1], [1, 2]]


def test_offsets():
    text = " é\n日x"
    ids, spans = BYTES.encode_with_offsets(text)
    assert ids.tolist() == BYTES.encode(text)
    assert ids.dtype == "int32"
    assert spans.dtype == "int32"
    expected = ["", "é", "é", "", "日", "日", "日", "x"]
    got = [text[start:stop] for start, stop in spans]
    assert got == expected
    assert (np.diff(spans, axis=0) >= 0).all()
    assert BYTES.encode_with_offsets("")[1].shape == (0, 2)


def test_a_mask_hides_one_byte():
    assert BYTES.encode_masked("a[MASK] b") == [5 + 97, 4, 5 + 32, 5 + 98]


def test_byte_counts_of_bytes():
    expected = [0] * 5 + [1] * 256
    np.testing.assert_array_equal(BYTES.byte_counts(), expected)


def test_byte_counts(tokenizer):
    """Of any tokenizer: the bytes of a text are those of its pieces, but for the space that begins
    it."""
    text = "The object is 日本"
    counts = tokenizer.byte_counts()
    of_text = counts[tokenizer.encode(text)]
    assert of_text.sum() == len(f" {text}".encode())
    assert (counts[:5] == 0).all()


TREE = "[MAX 4 [SM 0 9 ] ]"


def test_one_token_per_symbol():
    ids = SYMBOLS.encode(TREE)
    assert ids == [6, 14, 8, 10, 19, 9, 9]
    assert SYMBOLS.decode([2, *ids, 3, 0]) == TREE


def test_the_published_files_have_pairs_in_brackets():
    published = "( ( ( [MAX 4 ) ( ( ( [SM 0 ) 9 ) ] ) ) ] )"
    ids, spans = SYMBOLS.encode_with_offsets(published)
    assert ids.tolist() == SYMBOLS.encode(published) == SYMBOLS.encode(TREE)
    got = [published[start:stop] for start, stop in spans]
    assert got == TREE.split()


@pytest.mark.parametrize(
    ("text", "word"),
    [("[AVG 1 2 ]", "[AVG"), ("[MAX 10 2 ]", "10"), ("MAX 1", "MAX"), ("[UNK] 1", "[UNK]")],
)
def test_another_word_is_an_error(text, word):
    for encode in (SYMBOLS.encode, SYMBOLS.encode_with_offsets):
        message = failure(encode, text)
        assert repr(word) in message
        assert "[MIN [MAX [MED [SM ] 0 1" in message
