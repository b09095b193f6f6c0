"""Layout of texts and pairs, compared with BERT's loop."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data.finetuning import pairs
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError
from tests.training import tiny

TOKENIZER = SimpleNamespace(pad_id=0, cls_id=2, sep_id=3)
PAD, CLS, SEP = 0, 2, 3


def slowly(first: list, second: list | None, length: int) -> tuple[list, list]:
    """BERT's own loop: the longer text loses its last token until both fit."""
    first, second = list(first), None if second is None else list(second)
    while len(first) + len(second or []) + (2 if second is None else 3) > length:
        (first if second is None or len(first) > len(second) else second).pop()
    tokens, segments = [CLS, *first, SEP], [0] * (len(first) + 2)
    if second is not None:
        tokens, segments = [*tokens, *second, SEP], [*segments, *[1] * (len(second) + 1)]
    padding = length - len(tokens)
    return tokens + [PAD] * padding, segments + [0] * padding


texts = st.lists(st.integers(5, 99), max_size=20)


@pytest.mark.smoke
@given(texts, st.none() | texts, st.integers(5, 50))
def test_as_berts_loop(first, second, length):
    arrays = (None if text is None else np.array(text, np.int32) for text in (first, second))
    tokens, segments = pairs.assemble(*arrays, length, TOKENIZER)
    assert tokens.dtype == segments.dtype == np.int32
    assert (tokens.tolist(), segments.tolist()) == slowly(first, second, length)


@given(texts, texts, st.integers(5, 50))
def test_no_token_is_lost_where_all_fit(first, second, length):
    of_first, of_second = pairs.kept_lengths(len(first), len(second), length)
    assert 0 <= of_first <= len(first) and 0 <= of_second <= len(second)
    fits = len(first) + len(second) + 3 <= length
    assert (of_first + of_second == len(first) + len(second)) == fits
    assert fits or of_first + of_second + 3 == length  # no room is left unused


def test_an_odd_room_and_a_tie():
    first, second = np.arange(10, 16), np.arange(20, 26)
    tokens, segments = pairs.assemble(first, second, 10, TOKENIZER)
    assert tokens.tolist() == [CLS, 10, 11, 12, 13, SEP, 20, 21, 22, SEP]
    assert segments.tolist() == [0] * 6 + [1] * 4
    tokens, _ = pairs.assemble(first[:1], second, 9, TOKENIZER)
    assert tokens.tolist() == [CLS, 10, SEP, 20, 21, 22, 23, 24, SEP]


@pytest.mark.parametrize(("second", "least"), [(None, 3), (np.arange(4), 5)])
def test_too_short_a_length(second, least):
    assert pairs.assemble(np.arange(4), second, least, TOKENIZER)[0].shape == (least,)
    with pytest.raises(DataError, match=f"length={least - 1} has no room for .*: give {least} or more$"):
        pairs.assemble(np.arange(4), second, least - 1, TOKENIZER)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([" ".join(tiny.WORDS[i:]) for i in range(40)], 300)


@pytest.mark.parametrize("threads", [1, 2])
def test_encoding_keeps_texts_apart(tokenizer, threads, monkeypatch):
    monkeypatch.setattr(pairs, "_TEXTS", 4)  # several calls of the tokenizer
    first = ["the time", "", *tiny.WORDS]
    encoded, none = pairs.encode_pairs(first, None, tokenizer, threads)
    assert none is None and len(encoded) == len(first) and encoded.ids.dtype == np.int32
    assert [ids.tolist() for ids in map(encoded.__getitem__, range(len(encoded)))] == [*map(tokenizer.encode, first)]
    assert encoded.lengths.tolist() == [len(tokenizer.encode(text)) for text in first]


def source(tokenizer, length=8):
    first, second = pairs.encode_pairs(["the time", "one"], ["a", "the of and to in is that it"], tokenizer)
    columns = {"label": np.array([1, 0], np.int32)}
    return pairs.Pairs(first, second, columns, length=length, tokenizer=tokenizer, name="x.tsv")


def test_a_source_of_examples(tokenizer):
    expected = sum(
        len(tokenizer.encode(first)) + len(tokenizer.encode(second)) > 8 - 3
        for first, second in (("the time", "a"), ("one", "the of and to in is that it"))
    )
    for examples in (source(tokenizer), pickle.loads(pickle.dumps(source(tokenizer)))):
        assert len(examples) == 2 and examples.cut == expected and "x.tsv" in repr(examples)
        example = examples[1]
        assert (example["index"], example["label"]) == (1, 0) and example["index"].dtype == np.int32
        tokens, segments = pairs.assemble(examples.first[1], examples.second[1], 8, tokenizer)
        np.testing.assert_array_equal(example["tokens"], tokens)
        np.testing.assert_array_equal(example["segments"], segments)
        assert tokens[0] == tokenizer.cls_id and tokens[-1] == tokenizer.sep_id
    assert source(tokenizer, 64).cut == 0 < expected


def test_a_source_refuses_too_short_a_length(tokenizer):
    with pytest.raises(DataError, match="length=4 has no room for two texts"):
        source(tokenizer, 4)
