"""Byte-pair tokenizers, compared with the tokenizers library."""

import json
import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError
from tests.data.text.byte_pair_files import MODERNBERT, over_bytes, over_characters, save
from tests.failures import raised

pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")

LINES = [
    "First Citizen: Before we proceed any further, hear me speak.",
    "You are all resolved rather to die than to famish?",
    "  indented\n\tand  spaced text, héllo wörld, 東京 😀 ﬁ",
    "the other the other the other",
]
TEXTS = [*LINES, "", " ", "  two  blanks ", "a\r\nb", "<s> and [CLS] and <mask>", "é" * 50]
MAKERS = {
    "roberta": over_bytes,
    "modernbert": lambda texts: over_bytes(texts, MODERNBERT),
    "llama": over_characters,
}


@pytest.fixture(scope="module", params=MAKERS)
def both(request, tmp_path_factory):
    """The library's tokenizer, and ours of the same folder."""
    folder = tmp_path_factory.mktemp("tokenizer")
    library = MAKERS[request.param](LINES)
    save(library, folder)
    return library, Tokenizer.load(folder)


def test_ids_are_those_of_the_library(both):
    library, ours = both
    library.encode_special_tokens = True
    assert ours.vocab_size == library.get_vocab_size()
    expected = [library.encode(text, add_special_tokens=False).ids for text in TEXTS]
    for text, ids in zip(TEXTS, expected, strict=True):
        assert ours.encode(text) == ids, text
        assert not set(ids) & set(ours.special_ids)
    for ids, batched in zip(expected, ours.encode_batch(TEXTS), strict=True):
        assert_array_equal(batched, ids)
    copy = pickle.loads(pickle.dumps(ours))
    assert copy == ours
    assert copy.encode(TEXTS[0]) == expected[0]


def test_decoding_restores_the_text(both):
    _library, ours = both
    assert ours.keeps_white_space
    assert not ours.may_be_unknown
    for text in TEXTS:
        ids = ours.encode(text)
        assert ours.decode(ids) == text
        with_special_ids = [ours.cls_id, *ids, ours.sep_id]
        assert ours.decode(with_special_ids) == text


def test_spans_and_bytes_add_up_to_the_text(both):
    library, ours = both
    prepended = 1 if "▁" in library.get_vocab() else 0  # the blank that Llama puts before a text
    for text in TEXTS:
        ids, spans = ours.encode_with_offsets(text)
        assert ids.tolist() == ours.encode(text)
        assert (np.diff(spans, axis=0) >= 0).all()
        read = np.zeros(len(text), bool)
        for start, stop in spans:
            read[start:stop] = True
        for position, character in enumerate(text):
            assert read[position] or character.isspace(), (text, position)
        if text:
            counts = ours.byte_counts()[ids]
            assert counts.sum() == len(text.encode()) + prepended


def test_pieces_are_shown_with_their_blanks():
    library = over_bytes(["the other the other"])
    ours = Tokenizer(library.to_str().encode())
    pieces = [ours.piece(token) for token in ours.encode("the other é")]
    assert pieces[:2] == ["the", " other"]
    assert pieces[-2:] == ["<0xC3>", "<0xA9>"]


def test_a_mask_takes_the_blank_before_it(both):
    library, ours = both
    if ours.mask_id == ours.unk_id:
        return  # Llama has none
    mask = library.id_to_token(ours.mask_id)
    library.encode_special_tokens = False
    expected = library.encode(f"the other {mask} to {mask}.", add_special_tokens=False).ids
    assert ours.encode_masked("the other [MASK] to [MASK].") == expected


def test_special_pieces_are_found_by_their_names():
    roberta = Tokenizer(over_bytes(LINES).to_str().encode())
    assert roberta.cls_id == 0
    assert roberta.pad_id == 1
    assert roberta.sep_id == 2
    assert roberta.unk_id == 3
    assert roberta.mask_id == 4


def test_llama_has_no_pieces_for_padding_and_masks():
    llama = Tokenizer(over_characters(LINES).to_str().encode())
    assert llama.cls_id == 1
    assert llama.sep_id == 2
    assert llama.pad_id == 0
    assert llama.mask_id == 0
    assert llama.special_ids == (0, 1, 2)


def test_saved_files_give_the_same_tokenizer(tmp_path, both):
    _, ours = both
    ours.save(tmp_path / "tokenizer.json")
    copy = Tokenizer.load(tmp_path)
    assert copy == ours
    assert copy.same_pieces(ours)


def document(**changes):
    library = over_bytes(LINES)
    content = json.loads(library.to_str())
    content.update(changes)
    return content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "a piece for [PAD]"),
        (document(added_tokens=[{"id": 1}]), "tokenizers library"),
        (document(pre_tokenizer={"type": "no such"}), "tokenizers library"),
        (document(model={"type": "BPE", "vocab": 3, "merges": []}), "tokenizers library"),
    ],
)
def test_damaged_files_are_refused(content, words):
    message = raised(DataError, Tokenizer, json.dumps(content).encode(), "FILE")
    assert "FILE" in message
    assert words in message
    assert "\n" not in message


def test_do_lower_case_is_refused(tmp_path):
    save(over_bytes(LINES), tmp_path)
    message = raised(DataError, Tokenizer.load, tmp_path, do_lower_case="True")
    assert "config.data.do_lower_case" in message
