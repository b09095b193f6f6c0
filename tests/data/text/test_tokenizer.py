import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data.embedded import embedded_text
from gmlp_flax.data.text.sentence_piece import SPECIAL_PIECES
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError


def test_special_pieces(tokenizer):
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id) == (0, 1, 2)
    assert (tokenizer.sep_id, tokenizer.mask_id) == (3, 4)
    assert [tokenizer.piece(i) for i in tokenizer.special_ids] == list(SPECIAL_PIECES)
    assert not set(tokenizer.encode(" ".join(SPECIAL_PIECES))) & set(tokenizer.special_ids)
    assert tokenizer.decode([2, *tokenizer.encode("an object"), 4, 3, 0]) == "an object"


def test_vocabulary_size(tokenizer):
    assert tokenizer.vocab_size == 600
    assert Tokenizer.train(["a small corpus"], 5000).vocab_size < 300


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=40))
def test_any_text_survives(tokenizer, text):
    assert tokenizer.unk_id not in tokenizer.encode(text)
    normalised = tokenizer.decode(tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(normalised)) == normalised


def test_case_is_kept_and_white_space_is_not(tokenizer):
    assert tokenizer.decode(tokenizer.encode("  The\n\nObject\t日本 ")) == "The Object 日本"


def test_encode_batch(tokenizer):
    texts = ["an object", "", "the class"]
    assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == [tokenizer.encode(text) for text in texts]


def test_offsets(tokenizer):
    text = "  an object\n\n日 is½ "
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode(text) and (ids.dtype, spans.dtype) == ("int32", "int32")
    pieces = [tokenizer.piece(token) for token in ids]
    found = [text[start:stop] for start, stop in spans]
    # Up to the last word, every piece is the text of its span.
    assert "".join(found[: pieces.index("<0xE6>")]) == "anobject"
    assert found[pieces.index("<0xE6>") :][:3] == ["日"] * 3 and spans[pieces.index("<0xE6>")].tolist() == [13, 14]
    assert found[pieces.index("<0xE6>") - 1] == "" and pieces[pieces.index("<0xE6>") - 1] == " "
    assert found[-1] == found[-2] == "½" and spans[-1, 1] == len(text) - 1
    empty, none = tokenizer.encode_with_offsets("")
    assert (empty.shape, none.shape) == ((0,), (0, 2))


@given(st.text(st.sampled_from("the is \t\u2003\u200bé日½\u0301ﬁ🙂\x01\u00ad\ud800."), max_size=25))
def test_offsets_of_any_text(tokenizer, text):
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode(text) and spans.shape == (len(ids), 2)
    assert (spans[:, 0] <= spans[:, 1]).all() and (np.diff(spans, axis=0) >= 0).all()
    assert spans.size == 0 or (spans.min() >= 0 and spans.max() <= len(text))
    blank = " \t\u2003\u200b\x01\u00ad"
    assert not any(start < stop and text[start] in blank for start, stop in spans)
    covered = {place for start, stop in spans for place in range(start, stop)}
    # Characters outside of all spans are white space, or dropped like it.
    assert all(text[place] in blank for place in set(range(len(text))) - covered)


def test_pieces_show_words(tokenizer):
    assert "".join(map(tokenizer.piece, tokenizer.encode("the name is"))) == " the name is"


def test_encode_masked(tokenizer):
    mask = tokenizer.mask_id
    assert tokenizer.encode_masked("the name is") == tokenizer.encode("the name is")
    assert tokenizer.encode_masked("the [MASK] is") == [*tokenizer.encode("the"), mask, *tokenizer.encode("is")]
    full_stop = tokenizer.encode("the.")[len(tokenizer.encode("the")) :]
    assert tokenizer.encode_masked("[MASK][MASK] [MASK].") == [mask, mask, mask, *full_stop]


def test_masks_where_the_stand_in_was_in_the_corpus():
    tokenizer = Tokenizer.train(["some \ue000 words \ue000"] * 20, 400)
    assert tokenizer.encode_masked("[MASK] [MASK]") == [tokenizer.mask_id] * 2


def test_training_is_reproducible(tokenizer):
    again = Tokenizer.train(embedded_text("heldout"), 600)
    assert again == tokenizer and again.checksum == tokenizer.checksum and hash(again) == hash(tokenizer)
    assert repr(again) == f"Tokenizer(vocab_size=600, checksum={tokenizer.checksum[:8]})"


def test_long_lines_are_trained_on():
    assert len(Tokenizer.train(["zebra " * 5000], 300).encode("zebra zebra")) == 2


def test_save_load_pickle(tokenizer, tmp_path):
    path = tmp_path / "new" / "tokenizer.model"
    tokenizer.save(path)
    assert Tokenizer.load(path) == tokenizer == pickle.loads(pickle.dumps(tokenizer))
    assert [file.name for file in path.parent.iterdir()] == ["tokenizer.model"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (b"", "a.model: damaged: an empty file is no tokenizer"),
        (b"junk", r"a.model: a text file is a WordPiece vocabulary, .* of 1 pieces none is \[PAD\] or \[UNK\]"),
        (b"\xffjunk", "a.model: damaged or not a SentencePiece model"),
        (None, "a.model: damaged or not a SentencePiece model"),
    ],
)
def test_damaged_model(tokenizer, tmp_path, damage, message):
    path = tmp_path / "a.model"
    path.write_bytes(tokenizer.model[:5000] if damage is None else damage)
    with pytest.raises(DataError, match=message):
        Tokenizer.load(path)


def test_missing_model(tmp_path):
    with pytest.raises(
        DataError, match="no tokenizer: .*a.model: cannot be read .No such file or directory.; check the file"
    ):
        Tokenizer.load(tmp_path / "a.model")


def test_training_errors():
    with pytest.raises(DataError, match="no text to train a tokenizer on"):
        Tokenizer.train([], 500)
    with pytest.raises(DataError, match="no text to train a tokenizer on"):
        Tokenizer.train([" "], 500)
    with pytest.raises(DataError, match="vocab_size=3 is too small"):
        Tokenizer.train(["some text"], 3)
    with pytest.raises(DataError, match="vocab_size=200 is too small: 5 special pieces, 256 bytes and every character"):
        Tokenizer.train(["some text"], 200)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/dev/zero", "no tokenizer: /dev/zero: a device or a pipe; expected a plain file"),
        ("/", "no tokenizer: /: a folder; expected"),
    ],
)
def test_what_is_no_file(path, message):
    with pytest.raises(DataError, match=re.escape(message)):
        Tokenizer.load(path)
