import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data.embedded import embedded_text
from gmlp_flax.data.text.fixed_vocabulary import SPECIAL_PIECES
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError
from tests.failures import raised


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


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("trained", ["an object", "", "the class \ud800", "€ 日本"] * 20),
        ("word pieces", ["The cafe.", "", "is \ud800", "€"] * 20),
        ("bytes", ["an object", "", "\ud800 日本"]),
        ("listops", ["[MAX 4 [SM 0 9 ] ]", "", "( 1 )"]),
    ],
)
def test_every_kind(tokenizer, tmp_path, kind, texts):
    """One text is encoded as in a batch, by any number of threads, with offsets, and by a copy from
    a file."""
    if kind == "word pieces":
        pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
        tokenizer = Tokenizer("\n".join([*SPECIAL_PIECES, "the", "cafe", "is", ".", "?"]).encode())
    elif kind != "trained":
        tokenizer = Tokenizer.load(kind)
    expected = [tokenizer.encode(text.replace("\ud800", "?")) for text in texts]
    tokenizer.save(tmp_path / "new" / "tokenizer.model")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["tokenizer.model"]
    copy = Tokenizer.load(tmp_path / "new" / "tokenizer.model")
    assert copy == tokenizer == pickle.loads(pickle.dumps(tokenizer))
    for threads in (1, 2, None):
        batch = copy.encode_batch(texts, threads)
        assert [ids.tolist() for ids in batch] == expected and {
            ids.dtype.name for ids in batch
        } == {"int32"}
    for text, ids in zip(texts, expected, strict=True):
        tokens, spans = tokenizer.encode_with_offsets(text)
        assert tokenizer.encode(text) == tokens.tolist() == ids
        assert spans.shape == (len(ids), 2) and (tokens.dtype, spans.dtype) == ("int32", "int32")
        assert not set(ids) & ({*tokenizer.special_ids} - {tokenizer.unk_id})
        assert tokenizer.decode([tokenizer.cls_id, *ids, tokenizer.pad_id]) == tokenizer.decode(ids)


def test_case_is_kept_and_white_space_is_not(tokenizer):
    assert tokenizer.decode(tokenizer.encode("  The\n\nObject\t日本 ")) == "The Object 日本"


@given(st.text(st.sampled_from("the is \t\u2003\u200bé日½\u0301ﬁ🙂\x01\u00ad\ud800."), max_size=25))
def test_offsets_of_any_text(tokenizer, text):
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode(text) and spans.shape == (len(ids), 2)
    assert (spans[:, 0] <= spans[:, 1]).all() and (np.diff(spans, axis=0) >= 0).all()
    assert spans.size == 0 or (spans.min() >= 0 and spans.max() <= len(text))
    blank = " \t\u2003\u200b\x01\u00ad"
    assert not any(start < stop and text[start] in blank for start, stop in spans)
    covered = {i for start, stop in spans for i in range(start, stop)}
    # Characters outside of all spans are white space, or dropped like it.
    assert all(text[i] in blank for i in set(range(len(text))) - covered)


def test_pieces_show_words(tokenizer):
    assert "".join(map(tokenizer.piece, tokenizer.encode("the name is"))) == " the name is"


def test_encode_masked(tokenizer):
    mask = tokenizer.mask_id
    assert tokenizer.encode_masked("the name is") == tokenizer.encode("the name is")
    assert tokenizer.encode_masked("the [MASK] is") == [
        *tokenizer.encode("the"),
        mask,
        *tokenizer.encode("is"),
    ]
    full_stop = tokenizer.encode("the.")[len(tokenizer.encode("the")) :]
    assert tokenizer.encode_masked("[MASK][MASK] [MASK].") == [mask, mask, mask, *full_stop]


def test_masks_where_the_stand_in_was_in_the_corpus():
    tokenizer = Tokenizer.train(["some \ue000 words \ue000"] * 20, 400)
    assert tokenizer.encode_masked("[MASK] [MASK]") == [tokenizer.mask_id] * 2


def test_training_is_reproducible(tokenizer):
    again = Tokenizer.train(embedded_text("heldout"), 600)
    assert (
        again == tokenizer
        and again.checksum == tokenizer.checksum
        and hash(again) == hash(tokenizer)
    )


def test_long_lines_are_trained_on():
    assert len(Tokenizer.train(["zebra " * 5000], 300).encode("zebra zebra")) == 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda model: b"", "an empty file"),
        (lambda model: b"junk", r"of 1 pieces none is \[PAD\]"),
        (lambda model: model[:5000], "not a SentencePiece model"),
    ],
)
def test_damaged_model(tokenizer, tmp_path, damage, message):
    path = tmp_path / "a.model"
    path.write_bytes(damage(tokenizer.model))
    with pytest.raises(DataError, match=f"a.model: .*{message}"):
        Tokenizer.load(path)


@pytest.mark.parametrize("path", ["nowhere.model", "/"])
def test_what_is_no_file(path):
    with pytest.raises(DataError, match=path):
        Tokenizer.load(path)


@pytest.mark.parametrize(
    ("texts", "size", "message"),
    [
        ([], 500, "give more text"),
        ([" "], 500, "=500"),
        (["some text"], 3, "=3"),
        (["some text"], 200, "vocab_size=200"),
    ],
)
def test_training_errors(texts, size, message):
    with pytest.raises(DataError, match=message):
        Tokenizer.train(texts, size)


def test_a_sentence_piece_model_that_others_lower_case(tokenizer, tmp_path):
    """ALBERT's texts are lower-cased before its model reads them: not here, so its folder is
    refused."""
    tokenizer.save(tmp_path / "spiece.model")
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"do_lower_case": false}')
    assert Tokenizer.load(tmp_path) == tokenizer
    config.write_text('{"do_lower_case": true}')
    assert "tokenizer_config.json: do_lower_case is true" in raised(
        DataError, Tokenizer.load, tmp_path
    )
