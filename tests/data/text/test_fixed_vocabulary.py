"""Vocabularies without a file: bytes, and the symbols of ListOps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from gmlp_flax.data import listops
from gmlp_flax.data.text.fixed_vocabulary import SPECIAL_PIECES
from gmlp_flax.data.text.tokenizer import Tokenizer
from tests.data.text.vocabularies import assert_special_ids
from tests.failures import failure

BYTES = Tokenizer.load("bytes")
SYMBOLS = Tokenizer.load("listops")


@pytest.mark.parametrize(("tokenizer", "size"), [(BYTES, 261), (SYMBOLS, 20)])
def test_vocabularies_have_special_pieces_and_known_sizes(tokenizer, size):
    assert tokenizer.vocab_size == size
    assert_special_ids(tokenizer)
    assert tokenizer.cases is None
    assert not tokenizer.may_be_unknown
    pieces = [tokenizer.piece(token) for token in range(size)]
    assert pieces[:5] == list(SPECIAL_PIECES)
    assert len(set(pieces)) == size


def test_pieces_of_bytes_are_characters_or_codes():
    assert BYTES.piece(5 + 65) == "A"
    assert BYTES.piece(5 + 10) == "<0x0A>"
    assert BYTES.piece(5 + 255) == "<0xFF>"


def test_pieces_of_listops_are_its_symbols():
    pieces = [SYMBOLS.piece(token) for token in range(5, 20)]
    assert pieces == list(listops.SYMBOLS)


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_text_is_encoded_as_its_bytes(text):
    """White space, case and the names of special pieces are kept."""
    ids = BYTES.encode(text)
    assert ids == [5 + byte for byte in text.encode()]
    assert BYTES.decode(ids) == text
    whole, empty = BYTES.encode_batch([text, ""])
    assert whole.tolist() == ids
    assert empty.tolist() == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xc3A\xff\xe6\x97", "\ufffdA\ufffd\ufffd"),
        (b"\xe6\x97\xa5", "日"),
        (b"", ""),
    ],
)
def test_invalid_bytes_are_decoded_as_replacement_characters(content, text):
    ids = [5 + byte for byte in content]
    assert BYTES.decode(ids) == text
    assert BYTES.decode([2, 1, 4, *ids, 3, 0]) == text


def test_a_lone_surrogate_is_encoded_as_a_question_mark():
    assert BYTES.encode("a\ud800") == [5 + 97, 5 + 63]
    _, spans = BYTES.encode_with_offsets("a\ud800")
    assert spans.tolist() == [[0, 1], [1, 2]]


def test_offsets_are_those_of_the_characters():
    text = " é\n日x"
    ids, spans = BYTES.encode_with_offsets(text)
    assert ids.tolist() == BYTES.encode(text)
    assert ids.dtype == "int32"
    assert spans.dtype == "int32"
    expected = ["", "é", "é", "", "日", "日", "日", "x"]
    parts = [text[start:stop] for start, stop in spans]
    assert parts == expected
    assert (np.diff(spans, axis=0) >= 0).all()


def test_an_empty_text_has_no_offsets():
    _, spans = BYTES.encode_with_offsets("")
    assert spans.shape == (0, 2)


def test_a_mask_hides_one_byte():
    assert BYTES.encode_masked("a[MASK] b") == [5 + 97, 4, 5 + 32, 5 + 98]


def test_bytes_count_one_byte_each():
    expected = [0] * 5 + [1] * 256
    assert_array_equal(BYTES.byte_counts(), expected)


def test_byte_counts_add_up_to_the_bytes_of_the_text(tokenizer):
    """A trained tokenizer puts a space before a text."""
    text = "The object is 日本"
    counts = tokenizer.byte_counts()
    of_text = counts[tokenizer.encode(text)]
    encoded = f" {text}".encode()
    assert of_text.sum() == len(encoded)
    assert (counts[:5] == 0).all()


TREE = "[MAX 4 [SM 0 9 ] ]"


def test_each_symbol_is_one_token():
    ids = SYMBOLS.encode(TREE)
    assert ids == [6, 14, 8, 10, 19, 9, 9]
    assert SYMBOLS.decode([2, *ids, 3, 0]) == TREE


def test_parentheses_of_published_files_are_skipped():
    published = "( ( ( [MAX 4 ) ( ( ( [SM 0 ) 9 ) ] ) ) ] )"
    ids, spans = SYMBOLS.encode_with_offsets(published)
    assert ids.tolist() == SYMBOLS.encode(published)
    assert ids.tolist() == SYMBOLS.encode(TREE)
    words = [published[start:stop] for start, stop in spans]
    assert words == TREE.split()


@pytest.mark.parametrize(
    ("text", "word"),
    [("[AVG 1 2 ]", "[AVG"), ("[MAX 10 2 ]", "10"), ("MAX 1", "MAX"), ("[UNK] 1", "[UNK]")],
)
def test_unknown_words_are_refused(text, word):
    for encode in (SYMBOLS.encode, SYMBOLS.encode_with_offsets):
        message = failure(encode, text)
        assert repr(word) in message
        assert "[MIN [MAX [MED [SM ] 0 1" in message
