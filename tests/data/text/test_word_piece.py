"""WordPiece vocabularies and tokenizer.json, compared with the tokenizers library."""

import csv
import itertools
import json
import lzma
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_flax import errors
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import RunError
from tests.data.text.vocabularies import (
    ROLES,
    TEXTS,
    assert_same_ids,
    library,
    pieces_of,
    reference,
    vocabulary,
)
from tests.failures import failure, raised

SPECIAL_ANYWHERE = ["[PAD]", "[unused0]", *ROLES[1:]]
PIECES = [*SPECIAL_ANYWHERE, "the", "cafe", "##s", "is", ".", "old", "b"]


@pytest.fixture
def tokenizer():
    return Tokenizer(vocabulary(PIECES))


# A vocabulary by itself


def test_special_pieces_may_have_any_ids(tokenizer):
    assert tokenizer.vocab_size == 13
    assert tokenizer.special_ids == (0, 2, 3, 4, 5)
    assert tokenizer.pad_id == 0
    assert tokenizer.unk_id == 2
    assert tokenizer.cls_id == 3
    assert tokenizer.sep_id == 4
    assert tokenizer.mask_id == 5
    assert tokenizer.may_be_unknown


def test_uncased_vocabularies_fold_case_and_accents(tokenizer):
    assert tokenizer.cases == (True, True)
    ids = tokenizer.encode("The Cafés is\n\told.")
    assert ids == [6, 7, 8, 9, 11, 10]
    assert tokenizer.encode("the zebra [SEP]") == [6, 2, 2, 2, 2]
    text = tokenizer.decode([3, 6, 7, 8, 9, 11, 10, 4, 0])
    assert text == "the cafes is old."
    assert tokenizer.piece(6) == " the"
    assert tokenizer.piece(8) == "s"
    assert tokenizer.piece(5) == "[MASK]"


def test_cased_vocabularies_keep_case_and_accents():
    tokenizer = Tokenizer(vocabulary([*PIECES, "The", "café"]))
    assert tokenizer.cases == (False, False)
    assert tokenizer.encode("The the café Old") == [13, 6, 14, 2]


def test_byte_counts_have_no_space_before_punctuation(tokenizer):
    text = "the cafes is old."
    counts = tokenizer.byte_counts()
    of_text = counts[tokenizer.encode(text)]
    assert of_text.sum() == len(f" {text}")
    special_ids = [0, 2, 3, 4, 5]
    assert counts[special_ids].tolist() == [0] * 5


def test_offsets_are_those_of_the_original_text(tokenizer):
    text = "The  Cafe\u0301s\u00ad is\n😀old \ud800."
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode(text)
    assert ids.dtype == "int32"
    assert spans.dtype == "int32"
    parts = []
    for start, stop in spans:
        parts.append(text[start:stop])
    assert parts[:2] == ["The", "Cafe"]
    assert parts[2][-1:] == "s"
    assert parts[3:] == ["is", "😀old", "\ud800", "."]


def test_a_blank_text_has_no_offsets(tokenizer):
    _, spans = tokenizer.encode_with_offsets(" ")
    assert spans.shape == (0, 2)


def test_masks_are_encoded_as_the_mask_id(tokenizer):
    assert tokenizer.encode_masked("The [MASK] is [MASK][MASK].") == [6, 5, 9, 5, 5, 10]


WITHOUT_MASK = [piece for piece in PIECES if piece != "[MASK]"]


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        (WITHOUT_MASK, "[MASK]"),
        ([*PIECES, "is"], "'is'"),
        ([*PIECES, "", "b", ""], "'b'"),
        (["words", "of", "a", "text", "of", "any", "kind"], "its 6 pieces"),
    ],
)
def test_damaged_vocabularies_are_refused(tmp_path, pieces, problem):
    path = tmp_path / "v.txt"
    path.write_bytes(vocabulary(pieces))
    message = failure(Tokenizer.load, path)
    assert "v.txt" in message
    assert problem in message


def test_a_missing_library_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    message = raised(RunError, Tokenizer, vocabulary(PIECES))
    assert errors.install("wordpiece") in message


# Compared with the library


def bert(pieces, **cases):
    """The library's own BERT tokenizer."""
    ids = {piece: number for number, piece in enumerate(pieces)}
    return library.BertWordPieceTokenizer(ids, **cases)


# Characters that BERT cleans, splits or strips, and a word of more than 100 letters.
ODD = [*"\u200b\u00ad\ufffd\0\x85\u3000İß-", "\t\r\n", "e\u0301", "東京", "a" * 101, "##"]
WORDS = " ".join(TEXTS.values()).split()
SNIPPETS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(WORDS),
    st.sampled_from(ODD),
)
BLANKS = st.sampled_from(["", " ", "\n"])
PARTS = st.tuples(SNIPPETS, BLANKS).map("".join)
STRINGS = st.lists(PARTS, max_size=8).map("".join)


@pytest.mark.parametrize("examples", [300, pytest.param(10_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("lower", [True, False])
def test_any_string_has_the_ids_of_bert(lower, examples):
    codes = range(33, 383)
    letters = [chr(code) for code in codes]
    continued = [f"##{letter}" for letter in letters]
    lower_pieces = pieces_of(lower, lower)
    pieces = [*lower_pieces, *letters, *continued]
    unique_pieces = list(dict.fromkeys(pieces))
    theirs = bert(unique_pieces, lowercase=lower, strip_accents=lower)
    document = json.loads(theirs.to_str())
    document["padding"] = None
    ours = Tokenizer(json.dumps(document).encode())
    assert ours.cases == (lower, lower)

    @settings(max_examples=examples, derandomize=True)
    @given(STRINGS)
    def compare(text):
        if not any(role in text for role in ROLES):
            encoding = theirs.encode(text, add_special_tokens=False)
            assert ours.encode(text) == encoding.ids

    compare()


@pytest.mark.nightly
def test_real_texts_have_the_ids_of_bert(shared_data):
    """BERT's own vocabulary is used on books, reviews and sentences."""
    vocabulary_file = shared_data("tokenizers/bert_uncased_vocab.txt")
    with open(vocabulary_file, encoding="utf-8") as file:
        theirs = bert(file.read().splitlines())
    ours = Tokenizer.load(vocabulary_file, do_lower_case="True")
    with open(shared_data("text/bert_sample_text.txt"), encoding="utf-8") as file:
        lines = file.read().splitlines()
    assert_same_ids(lines, ours, theirs)
    with open(shared_data("glue/sst2_dev.tsv"), encoding="utf-8") as file:
        table = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        first_cells = [row[0] for row in table]
    assert_same_ids(first_cells, ours, theirs)
    for name in ("text/books_130.jsonl.xz", "text/imdb_train.jsonl.xz", "glue/rte.jsonl.xz"):
        texts = []
        path = shared_data(name)
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for line in itertools.islice(file, 300):
                for value in json.loads(line).values():
                    if isinstance(value, str):
                        texts.append(value[:20_000])
        assert_same_ids(texts, ours, theirs)


# Files


@pytest.mark.parametrize("end", [" \n", "\t\n", "\r\n", " \r\n", "\u00a0\n"])
def test_blanks_after_pieces_and_a_byte_order_mark_are_stripped(tmp_path, end):
    """A piece with a blank at its end would never be used, and nothing would say so."""
    pieces = pieces_of(True, True)
    lines = "".join(piece + end for piece in pieces)
    path = tmp_path / "vocab.txt"
    path.write_bytes(f"\ufeff{lines}".encode())
    tokenizer = Tokenizer.load(path, do_lower_case="True")
    expected = reference(pieces, True, True)
    assert_same_ids(TEXTS.values(), tokenizer, expected)


def test_byte_order_marks_before_any_piece_are_stripped():
    """Concatenated files have marks inside."""
    pieces = pieces_of(True, True)
    marked = [piece if piece in ROLES else f"\ufeff{piece}" for piece in pieces]
    tokenizer = Tokenizer(vocabulary(marked))
    assert tokenizer.same_pieces(Tokenizer(vocabulary(pieces)))


DOCUMENT = json.loads(reference([*ROLES, "a", "##b"], True, True).to_str())
MODEL = DOCUMENT["model"]


def word_piece(**fields) -> dict:
    """A file with this WordPiece model and nothing else."""
    return {"model": {"type": "WordPiece", **fields}}


def changed_model(**fields) -> dict:
    """A file with the model of DOCUMENT, in which these fields are replaced."""
    return {"model": {**MODEL, **fields}}


def changed_document(**fields) -> dict:
    """DOCUMENT, in which these fields are replaced."""
    return {**DOCUMENT, **fields}


GAP_IN_IDS = {**MODEL["vocab"], "c": 9}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "BPE without a piece for [PAD]"),
        ({"model": {"vocab": {}, "merges": []}}, "BPE without a piece for [PAD]"),
        ({"model": {"type": "Unigram", "vocab": []}}, "Unigram: expected WordPiece or BPE"),
        ({"model": {"vocab": []}}, "Unigram: expected WordPiece or BPE"),
        ({"the": 0, "a": 1}, "no model: expected WordPiece or BPE"),
        (word_piece(), "damaged"),
        (word_piece(vocab=[1]), "damaged"),
        (word_piece(vocab={"[UNK]": "x"}), "an id is 'x'"),
        (word_piece(vocab={"[UNK]": True}), "an id is True"),
        (word_piece(vocab={"[UNK]": 0}), "[PAD]"),
        (changed_model(vocab=GAP_IN_IDS), "not 0 to 7"),
        (changed_model(unk_token="<unk>"), "unk_token is '<unk>'"),
        (changed_model(continuing_subword_prefix=""), "prefix is ''"),
        (changed_document(added_tokens=[{"id": 7}]), "damaged"),
        (
            changed_document(added_tokens=[{"id": 7, "content": ["x"]}]),
            "an added token is ['x']",
        ),
        (changed_document(added_tokens=[{"id": "7", "content": "x"}]), "an id is '7'"),
        (changed_document(added_tokens=3), "damaged"),
        (changed_document(normalizer={"type": "None of BERT's"}), "tokenizers library"),
        (changed_document(normalizer=["a"]), "its normalizer is not an object"),
        (changed_document(pre_tokenizer="BertPreTokenizer"), "its pre_tokenizer is not an object"),
    ],
)
def test_unsupported_tokenizer_json_is_refused(tmp_path, content, problem):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    message = failure(Tokenizer.load, path)
    assert str(path) in message
    assert problem in message


def test_tokenizer_json_may_have_pieces_with_blanks_and_line_feeds(tmp_path):
    """Unlike a vocab.txt, a tokenizer.json may have pieces with blanks."""
    pieces = [*ROLES, "a", "a ", "b\nc"]
    path = tmp_path / "tokenizer.json"
    path.write_text(reference(pieces, True, True).to_str())
    tokenizer = Tokenizer.load(path)
    assert tokenizer.vocab_size == 8
    model = json.loads(tokenizer.model)["model"]
    assert model["vocab"]["b\nc"] == 7
    assert Tokenizer(tokenizer.model) == tokenizer


@pytest.fixture(params=[(lower, strip) for lower in (True, False) for strip in (True, False)])
def saved(request, tmp_path):
    """A tokenizer, and the path of its tokenizer.json."""
    lower, strip = request.param
    vocabulary_path = tmp_path / "vocab.txt"
    vocabulary_path.write_bytes(vocabulary(pieces_of(True, False)))
    keys = {"do_lower_case": str(lower), "strip_accents": str(strip)}
    ours = Tokenizer.load(vocabulary_path, **keys)
    path = tmp_path / "tokenizer.json"
    ours.save(path)
    return ours, path


def test_saved_tokenizer_json_is_read_again(saved):
    ours, path = saved
    copy = Tokenizer.load(path)
    assert copy.cases == ours.cases
    assert copy.vocab_size == ours.vocab_size
    for text in TEXTS.values():
        assert copy.encode(text) == ours.encode(text)


def test_saved_tokenizer_json_is_read_by_the_library(saved):
    """The library lays out a pair of texts as [CLS] a [SEP] b [SEP]."""
    ours, path = saved
    theirs = library.Tokenizer.from_file(str(path))
    assert theirs.get_vocab_size() == ours.vocab_size
    mask = theirs.encode("[MASK]", add_special_tokens=False)
    assert mask.ids == [ours.mask_id]
    ids_of_a = ours.encode("a")
    second = [*ids_of_a, ours.sep_id]
    for text in TEXTS.values():
        ids = ours.encode(text)
        first = [ours.cls_id, *ids, ours.sep_id]
        pair = theirs.encode(text, "a")
        expected = [*first, *second]
        assert pair.ids == expected
        segments = [0] * len(first) + [1] * len(second)
        assert pair.type_ids == segments
        decoded = ours.decode(ids)
        assert theirs.decode(first) == decoded
