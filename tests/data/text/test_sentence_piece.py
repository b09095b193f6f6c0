"""SentencePiece models: T5's own, and models like it."""

import io
import pickle

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data.embedded import embedded_text
from gmlp_flax.data.text.sentence_piece import cut_in_chunks
from gmlp_flax.data.text.tokenizer import Tokenizer
from tests.failures import failure

T5_PIECES = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "pad_piece": "<pad>"}
TEXTS = ["Paris is the capital (of France).", "", " ", "An  object\n€日\t!", "ﬁ ½ E\u0301"]


def train(**options) -> bytes:
    """A model with T5's special pieces: without byte fallback, [CLS] and [MASK]."""
    model = io.BytesIO()
    lines = []
    for text in embedded_text("heldout"):
        lines += text.splitlines()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=600,
        minloglevel=2,
        num_threads=2,
        **{**T5_PIECES, **options},
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def model():
    return train()


@pytest.fixture(scope="module")
def tokenizer(model):
    return Tokenizer(model)


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_those_of_the_package(model, tokenizer, text):
    package = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = package.encode(text)
    assert tokenizer.encode(text) == ids
    known = []
    for token in ids:
        if token != package.unk_id():
            known.append(token)
    decoded = package.decode(known)
    assert tokenizer.decode(ids) == decoded
    for token in ids:
        piece = package.id_to_piece(token)
        expected = piece.replace("▁", " ")
        assert tokenizer.piece(token) == expected


def test_added_pieces_have_the_last_ids(tokenizer):
    assert tokenizer.vocab_size == 602
    assert tokenizer.pad_id == 0
    assert tokenizer.sep_id == 1
    assert tokenizer.unk_id == 2
    assert tokenizer.cls_id == 600
    assert tokenizer.mask_id == 601
    assert tokenizer.special_ids == (0, 1, 2, 600, 601)


def test_added_pieces_are_not_decoded(tokenizer):
    pieces = []
    for token in tokenizer.special_ids:
        pieces.append(tokenizer.piece(token))
    assert pieces == ["<pad>", "</s>", "<unk>", "[CLS]", "[MASK]"]
    counts = tokenizer.byte_counts()[[600, 601]]
    assert counts.tolist() == [0, 0]
    text_ids = tokenizer.encode("an object")
    ids = [600, *text_ids, 601, 1, 0]
    assert tokenizer.decode(ids) == "an object"


@pytest.mark.parametrize(("byte_fallback", "may_be_unknown"), [(True, False), (False, True)])
def test_text_may_be_unknown_without_byte_fallback(byte_fallback, may_be_unknown):
    tokenizer = Tokenizer(train(byte_fallback=byte_fallback))
    assert tokenizer.may_be_unknown is may_be_unknown
    is_unknown = tokenizer.unk_id in tokenizer.encode("€")
    assert is_unknown is may_be_unknown
    assert tokenizer.cases is None


def test_pieces_that_a_model_has_are_not_added():
    tokenizer = Tokenizer(
        train(
            bos_id=3,
            bos_piece="[CLS]",
            eos_piece="[SEP]",
            control_symbols=["[MASK]", "<extra>"],
        )
    )
    assert tokenizer.vocab_size == 600
    assert tokenizer.cls_id == 3
    assert tokenizer.sep_id == 1
    assert tokenizer.mask_id == 4
    assert tokenizer.special_ids == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("options", "piece"),
    [({"pad_id": -1, "unk_id": 0}, "[PAD]"), ({"eos_id": -1, "unk_id": 1}, "[SEP]")],
)
def test_a_missing_special_piece_is_refused(tmp_path, options, piece):
    (tmp_path / "a.model").write_bytes(train(**options))
    message = failure(Tokenizer.load, tmp_path / "a.model")
    assert "a.model" in message
    assert piece in message


def test_masks_next_to_unknown_characters(tokenizer):
    mask = tokenizer.mask_id
    unknown = tokenizer.unk_id
    the = tokenizer.encode("the")
    ids_with_stop = tokenizer.encode("the.")
    full_stop = ids_with_stop[len(the) :]
    blank = tokenizer.encode("a €")[-2]
    assert tokenizer.encode("€") == [blank, unknown]
    expected = [mask, unknown, mask, mask, *full_stop]
    assert tokenizer.encode_masked("[MASK]€[MASK] [MASK].") == expected


def test_offsets_of_unknown_characters(tokenizer):
    """Without byte fallback, unknown characters in a row are one piece."""
    text = "an  €日 object"
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode(text)
    is_unknown = ids == tokenizer.unk_id
    (unknown,) = np.flatnonzero(is_unknown)
    assert spans[unknown].tolist() == [4, 6]
    assert spans[0].tolist() == [0, 2]
    assert spans[unknown + 1, 0] == 7
    last_stop = spans[-1, 1]
    assert last_stop == len(text)


def test_offsets_of_bytes():
    """Each byte of a character has its whole span."""
    tokenizer = Tokenizer(train(byte_fallback=True))
    text = "an 日 €"
    ids, spans = tokenizer.encode_with_offsets(text)
    pieces = [tokenizer.piece(token) for token in ids]
    pairs = zip(pieces, spans.tolist(), strict=True)
    by_piece = dict(pairs)
    for piece in ("<0xE6>", "<0x97>", "<0xA5>"):
        assert by_piece[piece] == [3, 4]
    for piece in ("<0xE2>", "<0x82>", "<0xAC>"):
        assert by_piece[piece] == [5, 6]


CHARACTERS = st.sampled_from("a \n\t€")


@given(st.text(CHARACTERS, max_size=5000))
def test_joined_chunks_are_the_text(text):
    chunks = list(cut_in_chunks(text))
    assert "".join(chunks) == text
    for chunk in chunks:
        assert len(chunk.encode()) < 4192


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("x" * 2500, [1000, 1000, 500]),
        ("x" * 999 + " " + "y" * 5, [999, 6]),
        ("x" * 600 + " " + "y" * 600, [600, 601]),
        ("one\ntwo\n", [4, 4]),
        ("", []),
    ],
)
def test_where_chunks_are_cut(text, sizes):
    found = [len(chunk) for chunk in cut_in_chunks(text)]
    assert found == sizes


def test_masked_text_has_the_ids_of_t5(shared_data):
    tokenizer = Tokenizer.load(shared_data("tokenizers/t5_spiece.model"))
    assert tokenizer.vocab_size == 32_002
    assert tokenizer.special_ids == (0, 1, 2, 32_000, 32_001)
    assert tokenizer.pad_id == 0
    assert tokenizer.sep_id == 1
    assert tokenizer.cls_id == 32_000
    assert tokenizer.mask_id == 32_001
    ids = tokenizer.encode_masked("Paris is the [MASK] of France.")
    before = tokenizer.encode("Paris is the")
    assert ids == [*before, 32_001, *tokenizer.encode("of France.")]
    assert tokenizer.decode(ids) == "Paris is the of France."


def test_offsets_of_t5_are_those_of_the_words(shared_data):
    tokenizer = Tokenizer.load(shared_data("tokenizers/t5_spiece.model"))
    text = "  Paris is\tthe  capital (of France)."
    _, spans = tokenizer.encode_with_offsets(text)
    words = []
    for start, stop in spans.tolist():
        words.append(text[start:stop])
    assert words == ["Paris", "is", "the", "capital", "(", "of", "France", ")."]


CODE = "def f(x):\n    if x > 0:\n\t\treturn x\n    return  0\n\n"
VERSE = "Shall I compare thee\n  to a summer's day?\n\n"
KEPT_TEXTS = [
    *TEXTS,
    CODE,
    VERSE,
    "  leading and trailing  ",
    "a\r\nb\rc\u2028d\u00a0e\u3000f\x00g",
    "| a | b |\n|---|---|\n| 1 |   2 |",
    "日本語の\n文。\u200d👩\u200d💻 ﬁ½",
    "x" * 3000,
]


@pytest.fixture(scope="module")
def keeping():
    return Tokenizer.train([CODE * 9, VERSE * 9, "a tab\tin text\0 or two\t\n"], 400, True)


@pytest.mark.parametrize("text", KEPT_TEXTS)
def test_decoding_restores_white_space(keeping, text):
    ids = keeping.encode(text)
    assert keeping.decode(ids) == text
    byte_count = len(text.encode())
    assert keeping.byte_counts()[ids].sum() == byte_count
    copy = pickle.loads(pickle.dumps(keeping))
    assert copy.encode(text) == ids


ANY_CHARACTER = st.characters(exclude_characters="\u2581", exclude_categories=["Cs"])


@given(st.text(ANY_CHARACTER))
def test_decoding_restores_any_text(keeping, text):
    ids = keeping.encode(text)
    assert keeping.decode(ids) == text


def test_indentation_is_a_piece(keeping):
    pieces = []
    for token in keeping.encode(CODE):
        pieces.append(keeping.piece(token))
    assert "".join(pieces) == CODE
    assert pieces.count("\t") == 2
    indentations = []
    for piece in pieces:
        if len(piece) > 1 and not piece.strip(" "):
            indentations.append(piece)
    assert indentations
    assert len(pieces) < len(CODE)


def test_which_tokenizers_keep_white_space(keeping, tokenizer):
    assert keeping.keeps_white_space
    assert not tokenizer.keeps_white_space
    assert not Tokenizer.train([CODE, VERSE], 320).keeps_white_space
    llamas = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    assert Tokenizer(train(**llamas)).keeps_white_space  # it begins a text with a blank
    assert Tokenizer.load("bytes").keeps_white_space
    assert not Tokenizer.load("listops").keeps_white_space


def test_masks_keep_the_white_space_around_them(keeping):
    ids = keeping.encode_masked("def [MASK](x):\n    [MASK]")
    assert ids.count(keeping.mask_id) == 2
    first = ids.index(keeping.mask_id)
    assert keeping.decode(ids[:first]) == "def "
    between = ids[first + 1 : -1]
    assert keeping.decode(between) == "(x):\n    "


def test_text_with_tabs_and_nulls_is_trained_on():
    """SentencePiece itself drops lines that have tabs or nulls."""
    tokenizer = Tokenizer.train(["zebra\tzebra\0zebra\n" * 999], 300, True)
    pieces = [tokenizer.piece(token) for token in tokenizer.encode("zebra\tzebra\n")]
    assert pieces == ["zebra", "\t", "zebra", "\n"]
