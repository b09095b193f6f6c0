"""The interface of all tokenizers, and tokenizers trained by this package."""

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


def test_special_pieces_have_the_first_ids(tokenizer):
    assert_special_ids(tokenizer)
    pieces = [tokenizer.piece(token) for token in range(5)]
    assert pieces == list(SPECIAL_PIECES)


def test_vocabulary_size_is_the_requested_one_or_smaller(tokenizer):
    assert tokenizer.vocab_size == 600
    assert Tokenizer.train(["a small corpus"], 5000).vocab_size < 300


def test_names_of_special_pieces_in_a_text_are_plain_text(tokenizer):
    ids = tokenizer.encode(" ".join(SPECIAL_PIECES))
    assert not set(ids) & set(tokenizer.special_ids)


def test_special_pieces_are_not_decoded(tokenizer):
    ids = tokenizer.encode("an object")
    assert tokenizer.decode([2, *ids, 4, 3, 0]) == "an object"


VISIBLE = st.characters(codec="utf-8", exclude_categories=["C", "Z"])


@given(st.text(VISIBLE, max_size=40))
def test_normalised_text_survives_encoding(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.unk_id not in ids
    normalized = tokenizer.decode(ids)
    assert tokenizer.decode(tokenizer.encode(normalized)) == normalized


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


def test_single_texts_are_encoded_as_in_a_batch(any_kind):
    tokenizer, texts = any_kind
    expected = [tokenizer.encode(text) for text in texts]
    for threads in (1, 2, None):
        batch = tokenizer.encode_batch(texts, threads)
        for ids in batch:
            assert ids.dtype == np.int32
        assert [ids.tolist() for ids in batch] == expected
    assert tokenizer.encode_batch([]) == []


def test_lone_surrogates_are_encoded_as_question_marks(any_kind):
    tokenizer, texts = any_kind
    for text in texts:
        printable = text.replace("\ud800", "?")
        assert tokenizer.encode(text) == tokenizer.encode(printable)


def test_texts_have_no_special_ids(any_kind):
    """Only [UNK] may occur. Special ids around a text are not decoded."""
    tokenizer, texts = any_kind
    forbidden = set(tokenizer.special_ids) - {tokenizer.unk_id}
    for text in texts:
        ids = tokenizer.encode(text)
        assert not forbidden & set(ids)
        with_special_ids = [tokenizer.cls_id, *ids, tokenizer.pad_id]
        assert tokenizer.decode(with_special_ids) == tokenizer.decode(ids)


def test_ids_with_offsets_are_those_without(any_kind):
    tokenizer, texts = any_kind
    for text in texts:
        tokens, spans = tokenizer.encode_with_offsets(text)
        assert tokens.tolist() == tokenizer.encode(text)
        assert tokens.dtype == "int32"
        assert spans.shape == (len(tokens), 2)
        assert spans.dtype == "int32"


def test_saved_and_pickled_copies_are_equal(any_kind, tmp_path):
    tokenizer, texts = any_kind
    path = tmp_path / "new" / "tokenizer.model"
    tokenizer.save(path)
    saved = [file.name for file in path.parent.iterdir()]
    assert saved == ["tokenizer.model"]
    from_file = Tokenizer.load(path)
    from_folder = Tokenizer.load(path.parent)
    unpickled = pickle.loads(pickle.dumps(tokenizer))
    for copy in (from_file, from_folder, unpickled):
        assert copy == tokenizer
        assert hash(copy) == hash(tokenizer)
        assert copy.checksum == tokenizer.checksum
        assert copy.same_pieces(tokenizer)
        assert copy.encode(texts[0]) == tokenizer.encode(texts[0])


def test_kinds_have_different_pieces(tokenizer):
    in_bytes = Tokenizer.load("bytes")
    listops = Tokenizer.load("listops")
    other_text = Tokenizer.train(["another text"], 5000)
    kinds = [in_bytes, listops, tokenizer, other_text]
    for first, second in itertools.combinations(kinds, 2):
        assert first != second
        assert not first.same_pieces(second)
    assert tokenizer != tokenizer.model


def test_case_is_kept_and_white_space_is_not(tokenizer):
    ids = tokenizer.encode("  The\n\nObject\t日本 ")
    assert tokenizer.decode(ids) == "The Object 日本"


BLANKS = " \t\u2003\u200b\x01\u00ad"
CHARACTERS = st.sampled_from(f"the is {BLANKS}é日½\u0301ﬁ🙂\ud800.")


@given(st.text(CHARACTERS, max_size=25))
def test_offsets_cover_all_of_a_text_except_blanks(tokenizer, text):
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode(text)
    assert spans.shape == (len(ids), 2)
    assert (np.diff(spans, axis=0) >= 0).all()
    covered = np.zeros(len(text), bool)
    for start, stop in spans.tolist():
        assert 0 <= start <= stop <= len(text)
        assert start == stop or text[start] not in BLANKS
        covered[start:stop] = True
    for position in np.flatnonzero(~covered):
        assert text[position] in BLANKS


def test_pieces_show_words(tokenizer):
    pieces = [tokenizer.piece(token) for token in tokenizer.encode("the name is")]
    assert "".join(pieces) == " the name is"


def test_masks_replace_words_and_their_blanks(tokenizer):
    mask = tokenizer.mask_id
    the = tokenizer.encode("the")
    full_stop = tokenizer.encode("the.")[len(the) :]
    masked = tokenizer.encode_masked("the [MASK] is")
    assert masked == [*the, mask, *tokenizer.encode("is")]
    masked = tokenizer.encode_masked("[MASK][MASK] [MASK].")
    assert masked == [mask, mask, mask, *full_stop]


def test_text_without_masks_is_encoded_as_usual(tokenizer):
    assert tokenizer.encode_masked("the name is") == tokenizer.encode("the name is")


def test_the_corpus_may_have_the_character_that_stands_for_masks():
    tokenizer = Tokenizer.train(["some \ue000 words \ue000"] * 20, 400)
    assert tokenizer.encode_masked("[MASK] [MASK]") == [tokenizer.mask_id] * 2


def test_training_is_reproducible(tokenizer):
    assert Tokenizer.train(embedded_text("heldout"), 600) == tokenizer


def test_long_lines_are_trained_on():
    tokenizer = Tokenizer.train(["zebra " * 5000], 300)
    ids = tokenizer.encode("zebra zebra")
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("texts", "size"),
    [
        pytest.param([], 500, id="no texts"),
        pytest.param([" "], 500, id="a blank text"),
        pytest.param(["some text"], 3, id="fewer than the special pieces"),
        pytest.param(["some text"], 200, id="fewer than the bytes"),
    ],
)
def test_training_without_text_or_pieces_is_refused(texts, size):
    message = failure(Tokenizer.train, texts, size)
    assert f"vocab_size={size}" in message


@pytest.mark.parametrize("error", [DataError("line 3: found list"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [0, 50])
def test_errors_of_the_documents_are_raised_unchanged(error, after):
    def documents():
        yield from ["some text"] * after
        raise error

    with pytest.raises(type(error)) as caught:
        Tokenizer.train(documents(), 320)
    assert caught.value is error


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "an empty file"),
        (b"junk", "none of its 1 pieces is [PAD]"),
        (b"\xff\0junk", "not a SentencePiece model"),
    ],
)
def test_files_that_are_no_model_are_refused(tmp_path, content, problem):
    path = tmp_path / "a.model"
    path.write_bytes(content)
    message = failure(Tokenizer.load, path)
    assert str(path) in message
    assert problem in message


def test_a_truncated_model_is_refused(tokenizer, tmp_path):
    path = tmp_path / "a.model"
    path.write_bytes(tokenizer.model[:5000])
    message = failure(Tokenizer.load, path)
    assert f"{path}" in message
    assert "not a SentencePiece model" in message


@pytest.mark.parametrize("name", ["nowhere.model", "", "a\0b", "/dev/zero"])
def test_a_path_that_is_not_a_file_is_refused(tmp_path, name):
    message = failure(Tokenizer.load, name)
    shown_name = name.replace("\0", "")
    assert shown_name in message.replace("\0", "")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    message = failure(Tokenizer.load, tmp_path)
    assert str(tmp_path) in message
    assert "vocab.txt" in message


@pytest.mark.parametrize("name", ["bytes", "listops"])
def test_do_lower_case_is_refused_by_tokenizers_without_casing(name):
    message = failure(Tokenizer.load, name, do_lower_case="True")
    assert "config.data.do_lower_case is True" in message
    assert Tokenizer.load(name, do_lower_case="auto", strip_accents="auto").cases is None


def test_a_sentence_piece_model_with_lower_casing_is_refused(tokenizer, tmp_path):
    """ALBERT lower-cases texts before its SentencePiece model reads them; this is not supported."""
    tokenizer.save(tmp_path / "spiece.model")
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"do_lower_case": false}')
    assert Tokenizer.load(tmp_path) == tokenizer
    config.write_text('{"do_lower_case": "true"}')
    message = failure(Tokenizer.load, tmp_path)
    assert f"{config}: do_lower_case is true" in message
