"""The interface of all tokenizers, and tokenizers that are trained here."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data.embedded import embedded_text
from gmlp_flax.data.text.fixed_vocabulary import SPECIAL_PIECES
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError
from tests.data.text.vocabularies import assert_special_ids
from tests.failures import failure


def test_special_pieces(tokenizer):
    assert_special_ids(tokenizer)
    assert [tokenizer.piece(token) for token in range(5)] == list(SPECIAL_PIECES)


def test_vocabulary_size(tokenizer):
    assert tokenizer.vocab_size == 600
    assert Tokenizer.train(["a small corpus"], 5000).vocab_size < 300


def test_special_pieces_come_from_no_text(tokenizer):
    ids = tokenizer.encode(" ".join(SPECIAL_PIECES))
    assert not set(ids) & set(tokenizer.special_ids)


def test_special_pieces_are_not_decoded(tokenizer):
    ids = tokenizer.encode("an object")
    assert tokenizer.decode([2, *ids, 4, 3, 0]) == "an object"


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=40))
def test_any_text_survives(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.unk_id not in ids
    normalised = tokenizer.decode(ids)
    assert tokenizer.decode(tokenizer.encode(normalised)) == normalised


WORDS = [*SPECIAL_PIECES, "the", "cafe", "is", ".", "?"]


@pytest.fixture(params=["trained", "word pieces", "bytes", "listops"])
def any_kind(request, tokenizer):
    """A tokenizer of each kind, and texts that it reads."""
    match request.param:
        case "trained":
            return tokenizer, ["an object", "", "the class \ud800", "€ 日本"] * 20
        case "word pieces":
            pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
            vocabulary = Tokenizer("\n".join(WORDS).encode())
            return vocabulary, ["The cafe.", "", "is \ud800", "€"] * 20
        case "bytes":
            return Tokenizer.load("bytes"), ["an object", "", "\ud800 日本"]
    return Tokenizer.load("listops"), ["[MAX 4 [SM 0 9 ] ]", "", "( 1 )"]


def test_batches_and_offsets(any_kind):
    """One text is encoded as in a batch, by any number of threads, and with offsets."""
    tokenizer, texts = any_kind
    expected = [tokenizer.encode(text.replace("\ud800", "?")) for text in texts]
    for threads in (1, 2, None):
        batch = tokenizer.encode_batch(texts, threads)
        assert [ids.tolist() for ids in batch] == expected
        assert {ids.dtype.name for ids in batch} == {"int32"}
    forbidden = set(tokenizer.special_ids) - {tokenizer.unk_id}
    for text, ids in zip(texts, expected, strict=True):
        tokens, spans = tokenizer.encode_with_offsets(text)
        assert tokens.tolist() == tokenizer.encode(text) == ids
        assert spans.shape == (len(ids), 2)
        assert tokens.dtype == "int32"
        assert spans.dtype == "int32"
        assert not forbidden & set(ids)
        whole = [tokenizer.cls_id, *ids, tokenizer.pad_id]
        assert tokenizer.decode(whole) == tokenizer.decode(ids)
    assert tokenizer.encode_batch([]) == []


def test_copies(any_kind, tmp_path):
    tokenizer, texts = any_kind
    path = tmp_path / "new" / "tokenizer.model"
    tokenizer.save(path)
    assert [file.name for file in path.parent.iterdir()] == ["tokenizer.model"]
    for copy in (
        Tokenizer.load(path),
        Tokenizer.load(path.parent),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert copy == tokenizer
        assert hash(copy) == hash(tokenizer)
        assert copy.checksum == tokenizer.checksum
        assert copy.same_pieces(tokenizer)
        assert copy.encode(texts[0]) == tokenizer.encode(texts[0])


def test_kinds_have_different_pieces(tokenizer):
    others = [Tokenizer.load("bytes"), Tokenizer.load("listops"), tokenizer]
    others.append(Tokenizer.train(["another text"], 5000))
    for first, second in itertools.combinations(others, 2):
        assert first != second
        assert not first.same_pieces(second)
    assert tokenizer != tokenizer.model


def test_case_is_kept_and_white_space_is_not(tokenizer):
    assert tokenizer.decode(tokenizer.encode("  The\n\nObject\t日本 ")) == "The Object 日本"


BLANKS = " \t\u2003\u200b\x01\u00ad"


@given(st.text(st.sampled_from(f"the is {BLANKS}é日½\u0301ﬁ🙂\ud800."), max_size=25))
def test_offsets_of_any_text(tokenizer, text):
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode(text)
    assert spans.shape == (len(ids), 2)
    assert (np.diff(spans, axis=0) >= 0).all()
    covered = set()
    for start, stop in spans.tolist():
        assert 0 <= start <= stop <= len(text)
        assert start == stop or text[start] not in BLANKS
        covered |= set(range(start, stop))
    # Characters outside of all spans are white space, or dropped like it.
    for position in set(range(len(text))) - covered:
        assert text[position] in BLANKS


def test_pieces_show_words(tokenizer):
    assert "".join(map(tokenizer.piece, tokenizer.encode("the name is"))) == " the name is"


def test_masked_words(tokenizer):
    mask = tokenizer.mask_id
    the = tokenizer.encode("the")
    full_stop = tokenizer.encode("the.")[len(the) :]
    masked = tokenizer.encode_masked("the [MASK] is")
    assert masked == [*the, mask, *tokenizer.encode("is")]
    masked = tokenizer.encode_masked("[MASK][MASK] [MASK].")
    assert masked == [mask, mask, mask, *full_stop]


def test_text_without_masks(tokenizer):
    assert tokenizer.encode_masked("the name is") == tokenizer.encode("the name is")


def test_masks_where_the_stand_in_was_in_the_corpus():
    tokenizer = Tokenizer.train(["some \ue000 words \ue000"] * 20, 400)
    assert tokenizer.encode_masked("[MASK] [MASK]") == [tokenizer.mask_id] * 2


def test_training_is_reproducible(tokenizer):
    assert Tokenizer.train(embedded_text("heldout"), 600) == tokenizer


def test_long_lines_are_trained_on():
    assert len(Tokenizer.train(["zebra " * 5000], 300).encode("zebra zebra")) == 2


@pytest.mark.parametrize(
    ("texts", "size"), [([], 500), ([" "], 500), (["some text"], 3), (["some text"], 200)]
)
def test_what_cannot_be_trained(texts, size):
    assert f"vocab_size={size}" in failure(Tokenizer.train, texts, size)


@pytest.mark.parametrize("error", [DataError("line 3: found list"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [0, 50])
def test_what_stops_the_documents_is_raised_as_it_is(error, after):
    def documents():
        yield from ["some text"] * after
        raise error

    with pytest.raises(type(error)) as caught:
        Tokenizer.train(documents(), 320)
    assert caught.value is error


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda model: b"", "an empty file"),
        (lambda model: b"junk", "none of its 1 pieces is [PAD]"),
        (lambda model: b"\xff\0junk", "not a SentencePiece model"),
        (lambda model: model[:5000], "not a SentencePiece model"),
    ],
)
def test_a_damaged_model(tokenizer, tmp_path, damage, problem):
    path = tmp_path / "a.model"
    path.write_bytes(damage(tokenizer.model))
    message = failure(Tokenizer.load, path)
    assert str(path) in message
    assert problem in message


@pytest.mark.parametrize("name", ["nowhere.model", "", "a\0b", "/dev/zero"])
def test_a_path_that_is_no_file(tmp_path, name):
    assert name.replace("\0", "") in failure(Tokenizer.load, name).replace("\0", "")


def test_a_folder_without_a_tokenizer(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    message = failure(Tokenizer.load, tmp_path)
    assert str(tmp_path) in message
    assert "vocab.txt" in message


@pytest.mark.parametrize("name", ["bytes", "listops"])
def test_cases_of_a_tokenizer_that_has_none(name):
    message = failure(Tokenizer.load, name, do_lower_case="True")
    assert "config.data.do_lower_case is True" in message
    assert Tokenizer.load(name, do_lower_case="auto", strip_accents="auto").cases is None


def test_a_sentence_piece_model_that_others_lower_case(tokenizer, tmp_path):
    """ALBERT's texts are lower-cased before its model reads them, which is not done here."""
    tokenizer.save(tmp_path / "spiece.model")
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"do_lower_case": false}')
    assert Tokenizer.load(tmp_path) == tokenizer
    config.write_text('{"do_lower_case": "true"}')
    message = failure(Tokenizer.load, tmp_path)
    assert f"{config}: do_lower_case is true" in message
