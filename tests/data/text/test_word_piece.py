"""WordPiece vocabularies and tokenizer.json, compared with the tokenizers library."""

import csv
import itertools
import json
import lzma
import sys

import numpy as np
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


def test_special_pieces_anywhere(tokenizer):
    assert tokenizer.vocab_size == 13
    assert tokenizer.special_ids == (0, 2, 3, 4, 5)
    assert tokenizer.pad_id == 0
    assert tokenizer.unk_id == 2
    assert tokenizer.cls_id == 3
    assert tokenizer.sep_id == 4
    assert tokenizer.mask_id == 5
    assert tokenizer.may_be_unknown


def test_uncased(tokenizer):
    assert tokenizer.cases == (True, True)
    assert tokenizer.encode("The Cafés is\n\told.") == [6, 7, 8, 9, 11, 10]
    assert tokenizer.encode("the zebra [SEP]") == [6, 2, 2, 2, 2]
    assert tokenizer.decode([3, 6, 7, 8, 9, 11, 10, 4, 0]) == "the cafes is old."
    got = [tokenizer.piece(token) for token in (6, 8, 5)]
    assert got == [" the", "s", "[MASK]"]


def test_cased():
    tokenizer = Tokenizer(vocabulary([*PIECES, "The", "café"]))
    assert tokenizer.cases == (False, False)
    assert tokenizer.encode("The the café Old") == [13, 6, 14, 2]


def test_bytes_of_pieces(tokenizer):
    """No space is counted before a punctuation mark."""
    ids = tokenizer.encode("the cafes is old.")
    assert tokenizer.byte_counts()[ids].sum() == len(" the cafes is old.")
    assert tokenizer.byte_counts()[[0, 2, 3, 4, 5]].tolist() == [0] * 5


def test_offsets(tokenizer):
    text = "The  Cafe\u0301s\u00ad is\n😀old \ud800."
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode(text)
    assert ids.dtype == "int32"
    assert spans.dtype == "int32"
    parts = [text[start:stop] for start, stop in spans]
    assert parts[:2] == ["The", "Cafe"]
    assert parts[2][-1:] == "s"
    assert parts[3:] == ["is", "😀old", "\ud800", "."]
    assert tokenizer.encode_with_offsets(" ")[1].shape == (0, 2)


def test_masks(tokenizer):
    assert tokenizer.encode_masked("The [MASK] is [MASK][MASK].") == [6, 5, 9, 5, 5, 10]


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        ([piece for piece in PIECES if piece != "[MASK]"], "[MASK]"),
        ([*PIECES, "is"], "'is'"),
        ([*PIECES, "", "b", ""], "'b'"),
        (["words", "of", "a", "text", "of", "any", "kind"], "its 6 pieces"),
    ],
)
def test_a_damaged_vocabulary(tmp_path, pieces, problem):
    (tmp_path / "v.txt").write_bytes(vocabulary(pieces))
    message = failure(Tokenizer.load, tmp_path / "v.txt")
    assert "v.txt" in message
    assert problem in message


def test_the_library_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert errors.install("wordpiece") in raised(RunError, Tokenizer, vocabulary(PIECES))


# Compared with the library


def bert(pieces, **cases):
    """BERT's tokenizer as the library itself puts it together."""
    ids = {piece: number for number, piece in enumerate(pieces)}
    return library.BertWordPieceTokenizer(ids, **cases)


# Words of the vocabulary, text of any kind, and what BERT's cleaning, splitting and 100 letters a
# word are about.
ODD = [*"\u200b\u00ad\ufffd\0\x85\u3000İß-", "\t\r\n", "e\u0301", "東京", "a" * 101, "##"]
SNIPPETS = st.one_of(
    st.text(max_size=12), st.sampled_from(" ".join(TEXTS.values()).split()), st.sampled_from(ODD)
)
PARTS = st.tuples(SNIPPETS, st.sampled_from(["", " ", "\n"])).map("".join)
STRINGS = st.lists(PARTS, max_size=8).map("".join)


@pytest.mark.parametrize("examples", [300, pytest.param(10_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("lower", [True, False])
def test_any_string_as_bert(lower, examples):
    letters = [chr(code) for code in range(33, 383)]
    continued = [f"##{letter}" for letter in letters]
    pieces = list(dict.fromkeys([*pieces_of(lower, lower), *letters, *continued]))
    theirs = bert(pieces, lowercase=lower, strip_accents=lower)
    document = {**json.loads(theirs.to_str()), "padding": None}
    ours = Tokenizer(json.dumps(document).encode())
    assert ours.cases == (lower, lower)

    @settings(max_examples=examples, derandomize=True)
    @given(STRINGS)
    def compare(text):
        if not any(role in text for role in ROLES):
            encoding = theirs.encode(text, add_special_tokens=False)
            assert ours.encode(text) == encoding.ids

    compare()


@pytest.mark.slow
def test_real_texts_as_bert(shared_data):
    """BERT's own vocabulary on books, reviews and sentences."""
    vocabulary_file = shared_data("tokenizers/bert_uncased_vocab.txt")
    with open(vocabulary_file, encoding="utf-8") as file:
        theirs = bert(file.read().splitlines())
    ours = Tokenizer.load(vocabulary_file, do_lower_case="True")
    with open(shared_data("text/bert_sample_text.txt"), encoding="utf-8") as file:
        assert_same_ids(file.read().splitlines(), ours, theirs)
    with open(shared_data("glue/sst2_dev.tsv"), encoding="utf-8") as file:
        table = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        assert_same_ids([row[0] for row in table], ours, theirs)
    for name in ("text/books_130.jsonl.xz", "text/imdb_train.jsonl.xz", "glue/rte.jsonl.xz"):
        texts = []
        with lzma.open(shared_data(name), "rt", encoding="utf-8") as file:
            for line in itertools.islice(file, 300):
                values = json.loads(line).values()
                texts += [value[:20_000] for value in values if isinstance(value, str)]
        assert_same_ids(texts, ours, theirs)


# Files


@pytest.mark.parametrize("end", [" \n", "\t\n", "\r\n", " \r\n", "\u00a0\n"])
def test_blanks_and_marks_around_lines(tmp_path, end):
    """A piece with a blank at its end would never be found, without a word."""
    pieces = pieces_of(True, True)
    lines = "".join(piece + end for piece in pieces)
    (tmp_path / "vocab.txt").write_bytes(f"\ufeff{lines}".encode())
    tokenizer = Tokenizer.load(tmp_path / "vocab.txt", do_lower_case="True")
    assert_same_ids(TEXTS.values(), tokenizer, reference(pieces, True, True))
    # Of files that were put together.
    marked = [piece if piece in ROLES else f"\ufeff{piece}" for piece in pieces]
    assert Tokenizer(vocabulary(marked)).same_pieces(tokenizer)


DOCUMENT = json.loads(reference([*ROLES, "a", "##b"], True, True).to_str())
MODEL = DOCUMENT["model"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "BPE without a piece for [PAD]"),
        ({"model": {"vocab": {}, "merges": []}}, "BPE without a piece for [PAD]"),
        ({"model": {"type": "Unigram", "vocab": []}}, "Unigram: expected WordPiece or BPE"),
        ({"model": {"vocab": []}}, "Unigram: expected WordPiece or BPE"),
        ({"the": 0, "a": 1}, "no model: expected WordPiece or BPE"),
        ({"model": {"type": "WordPiece"}}, "damaged"),
        ({"model": {"type": "WordPiece", "vocab": [1]}}, "damaged"),
        ({"model": {"type": "WordPiece", "vocab": {"[UNK]": "x"}}}, "an id is 'x'"),
        ({"model": {"type": "WordPiece", "vocab": {"[UNK]": True}}}, "an id is True"),
        ({"model": {"type": "WordPiece", "vocab": {"[UNK]": 0}}}, "[PAD]"),
        ({"model": {**MODEL, "vocab": {**MODEL["vocab"], "c": 9}}}, "not 0 to 7"),
        ({"model": {**MODEL, "unk_token": "<unk>"}}, "unk_token is '<unk>'"),
        ({"model": {**MODEL, "continuing_subword_prefix": ""}}, "prefix is ''"),
        ({**DOCUMENT, "added_tokens": [{"id": 7}]}, "damaged"),
        ({**DOCUMENT, "added_tokens": [{"id": 7, "content": ["x"]}]}, "an added token is ['x']"),
        ({**DOCUMENT, "added_tokens": [{"id": "7", "content": "x"}]}, "an id is '7'"),
        ({**DOCUMENT, "added_tokens": 3}, "damaged"),
        ({**DOCUMENT, "normalizer": {"type": "None of BERT's"}}, "tokenizers library"),
        ({**DOCUMENT, "normalizer": ["a"]}, "its normalizer is no object"),
        ({**DOCUMENT, "pre_tokenizer": "BertPreTokenizer"}, "its pre_tokenizer is no object"),
    ],
    ids=range(20),
)
def test_a_tokenizer_json_that_is_refused(tmp_path, content, problem):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    message = failure(Tokenizer.load, path)
    assert str(path) in message
    assert problem in message


def test_pieces_that_no_line_can_have(tmp_path):
    """A tokenizer.json may have pieces with blanks, which a vocab.txt has not."""
    pieces = [*ROLES, "a", "a ", "b\nc"]
    path = tmp_path / "tokenizer.json"
    path.write_text(reference(pieces, True, True).to_str())
    tokenizer = Tokenizer.load(path)
    assert tokenizer.vocab_size == 8
    assert json.loads(tokenizer.model)["model"]["vocab"]["b\nc"] == 7
    assert Tokenizer(tokenizer.model) == tokenizer


@pytest.mark.parametrize("lower", ["True", "False"])
@pytest.mark.parametrize("strip", ["True", "False"])
def test_what_is_written_as_tokenizer_json(tmp_path, lower, strip):
    """The library reads it, with [CLS] a [SEP] b [SEP]; and it is read here as it was."""
    (tmp_path / "vocab.txt").write_bytes(vocabulary(pieces_of(True, False)))
    ours = Tokenizer.load(tmp_path / "vocab.txt", do_lower_case=lower, strip_accents=strip)
    path = tmp_path / "tokenizer.json"
    ours.save(path)
    copy = Tokenizer.load(path)
    theirs = library.Tokenizer.from_file(str(path))
    assert copy.cases == ours.cases
    assert copy.vocab_size == theirs.get_vocab_size() == ours.vocab_size
    assert theirs.encode("[MASK]", add_special_tokens=False).ids == [ours.mask_id]
    for text in TEXTS.values():
        ids = ours.encode(text)
        assert copy.encode(text) == ids
        pair = theirs.encode(text, "a")
        first = [ours.cls_id, *ids, ours.sep_id]
        second = [*ours.encode("a"), ours.sep_id]
        assert pair.ids == [*first, *second]
        got = np.flatnonzero(pair.type_ids).tolist()
        expected = list(range(len(first), len(pair.ids)))
        assert got == expected
        assert theirs.decode(first) == ours.decode(ids)
