"""Text as bytes, and ListOps's symbols as tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data import listops
from gmlp_flax.data.text.fixed_vocabulary import SPECIAL_PIECES
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError

BYTES, SYMBOLS = Tokenizer.load("bytes"), Tokenizer.load("listops")


def test_a_vocabulary_without_a_file():
    assert BYTES.vocab_size == 261 and BYTES.special_ids == (0, 1, 2, 3, 4)
    assert (BYTES.pad_id, BYTES.unk_id, BYTES.cls_id, BYTES.sep_id, BYTES.mask_id) == (
        0,
        1,
        2,
        3,
        4,
    )
    pieces = [BYTES.piece(i) for i in range(261)]
    assert pieces[:5] == list(SPECIAL_PIECES) and len(set(pieces)) == 261
    assert pieces[5 + 65] == "A" and pieces[5 + 10] == "<0x0A>" and pieces[5 + 255] == "<0xFF>"


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_text_is_its_bytes(text):
    """White space, case and special pieces' names included."""
    ids = BYTES.encode(text)
    assert ids == [5 + byte for byte in text.encode()] and BYTES.decode(ids) == text
    assert [batch.tolist() for batch in BYTES.encode_batch([text, ""])] == [ids, []]
    assert not set(ids) & set(BYTES.special_ids)


def test_bytes_that_are_no_text():
    """Such as a model may draw: U+FFFD for each wrong sequence; and `?` for a lone surrogate, which
    has no bytes."""
    assert (
        BYTES.decode([2, 5 + 0xC3, 5 + 65, 5 + 0xFF, 5 + 0xE6, 5 + 0x97, 3, 0])
        == "\ufffdA\ufffd\ufffd"
    )
    assert BYTES.decode([5 + byte for byte in "日".encode()[:2]] + [5 + "日".encode()[2]]) == "日"
    assert BYTES.encode("a\ud800") == [5 + 97, 5 + 63]


def test_offsets():
    text = " é\n日x"
    ids, spans = BYTES.encode_with_offsets(text)
    assert ids.tolist() == BYTES.encode(text) and (ids.dtype, spans.dtype) == ("int32", "int32")
    assert [text[start:stop] for start, stop in spans] == ["", "é", "é", "", "日", "日", "日", "x"]
    assert (np.diff(spans, axis=0) >= 0).all()
    assert BYTES.encode_with_offsets("")[1].shape == (0, 2)


def test_a_mask_hides_one_byte():
    assert BYTES.encode_masked("a[MASK] b") == [5 + 97, 4, 5 + 32, 5 + 98]


def test_byte_counts(tokenizer):
    """Of any tokenizer: the bytes of a text are those of its pieces, but for the space that begins
    it."""
    np.testing.assert_array_equal(BYTES.byte_counts(), [0] * 5 + [1] * 256)
    text, counts = "The object is 日本", tokenizer.byte_counts()
    assert (
        counts[tokenizer.encode(text)].sum() == len(f" {text}".encode()) and (counts[:5] == 0).all()
    )


def test_symbols_without_a_file():
    assert SYMBOLS.vocab_size == 20 and SYMBOLS.special_ids == (0, 1, 2, 3, 4)
    assert [SYMBOLS.piece(i) for i in range(5, 20)] == list(listops.SYMBOLS)


def test_one_token_per_symbol():
    text = "[MAX 4 [SM 0 9 ] ]"
    ids = SYMBOLS.encode(text)
    assert ids == [6, 14, 8, 10, 19, 9, 9] and SYMBOLS.decode([2, *ids, 3, 0]) == text
    # the published files have pairs in brackets
    published = "( ( ( [MAX 4 ) ( ( ( [SM 0 ) 9 ) ] ) ) ] )"
    assert SYMBOLS.encode(published) == ids
    found, spans = SYMBOLS.encode_with_offsets(published)
    assert (
        found.tolist() == ids and [published[start:stop] for start, stop in spans] == text.split()
    )


@pytest.mark.parametrize("text", ["[AVG 1 2 ]", "[MAX 10 2 ]", "MAX 1"])
def test_another_word_is_an_error(text):
    with pytest.raises(
        DataError, match="the symbol '.*'; expected one of .MIN .MAX .MED .SM . 0 1"
    ):
        SYMBOLS.encode(text)
