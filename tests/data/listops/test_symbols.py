"""ListOps's symbols as tokens."""

import pytest

from gmlp_flax.data.listops import trees
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError

SYMBOLS = Tokenizer.load("listops")


def test_a_vocabulary_without_a_file():
    assert SYMBOLS.vocab_size == 20 and SYMBOLS.special_ids == (0, 1, 2, 3, 4)
    assert [SYMBOLS.piece(i) for i in range(5, 20)] == list(trees.SYMBOLS)


def test_one_token_per_symbol():
    text = "[MAX 4 [SM 0 9 ] ]"
    ids = SYMBOLS.encode(text)
    assert ids == [6, 14, 8, 10, 19, 9, 9] and SYMBOLS.decode([2, *ids, 3, 0]) == text
    published = "( ( ( [MAX 4 ) ( ( ( [SM 0 ) 9 ) ] ) ) ] )"  # the published files have pairs in brackets
    assert SYMBOLS.encode(published) == ids
    found, spans = SYMBOLS.encode_with_offsets(published)
    assert found.tolist() == ids and [published[start:stop] for start, stop in spans] == text.split()


@pytest.mark.parametrize("text", ["[AVG 1 2 ]", "[MAX 10 2 ]", "MAX 1"])
def test_another_word_is_an_error(text):
    with pytest.raises(DataError, match="the symbol '.*'; expected one of .MIN .MAX .MED .SM . 0 1"):
        SYMBOLS.encode(text)
