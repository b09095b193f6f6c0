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
from tests.failures import raised
from tests.training import tiny

TOKENIZER = SimpleNamespace(pad_id=0, cls_id=2, sep_id=3)
PAD, CLS, SEP = 0, 2, 3


def slowly(texts: list[list], length: int) -> tuple[list, list]:
    """BERT's own loop: the longer text loses its last token until both fit."""
    first, second = list(texts[0]), list(texts[1]) if len(texts) == 2 else None
    while len(first) + len(second or []) + (2 if second is None else 3) > length:
        (first if second is None or len(first) > len(second) else second).pop()
    tokens, segments = [CLS, *first, SEP], [0] * (len(first) + 2)
    if second is not None:
        tokens, segments = [*tokens, *second, SEP], [*segments, *[1] * (len(second) + 1)]
    padding = length - len(tokens)
    return tokens + [PAD] * padding, segments + [0] * padding


TEXTS = st.lists(st.lists(st.integers(5, 99), max_size=20), min_size=1, max_size=2)


@pytest.mark.smoke
@given(TEXTS, st.integers(5, 50))
def test_as_berts_loop(texts, length):
    tokens, segments = pairs.assemble(
        [np.array(text, np.int32) for text in texts], length, TOKENIZER
    )
    assert tokens.dtype == segments.dtype == np.int32
    assert (tokens.tolist(), segments.tolist()) == slowly(texts, length)


@pytest.mark.parametrize("texts", [1, 2])
def test_too_short_a_length(texts):
    least, given_texts = 1 + 2 * texts, [np.arange(4)] * texts
    assert pairs.assemble(given_texts, least, TOKENIZER)[0].shape == (least,)
    with pytest.raises(
        DataError, match=f"length={least - 1} has no room for .*: give {least} or more$"
    ):
        pairs.assemble(given_texts, least - 1, TOKENIZER)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([" ".join(tiny.WORDS[i:]) for i in range(40)], 300)


def ids_of(encoded):
    return [ids.tolist() for ids in map(encoded.__getitem__, range(len(encoded)))]


def test_encoding(tokenizer):
    """More texts than are encoded in one call, whole and cut."""
    texts = ["the time", "", *tiny.WORDS] * 100
    expected = [*map(tokenizer.encode, texts)]
    encoded = pairs.encode(texts, tokenizer)
    assert {ids.dtype for ids in encoded} == {np.dtype(np.int32)} and ids_of(encoded) == expected
    assert ids_of(pairs.encode([], tokenizer)) == []
    assert ids_of(pairs.encode(texts, tokenizer, max_tokens=1)) == [ids[:1] for ids in expected]


def source(tokenizer, length=8, **options):
    texts = [
        pairs.encode(texts, tokenizer)
        for texts in (["the time", "one"], ["a", "the of and to in is that it"])
    ]
    columns = {"label": np.array([1, 0], np.int32)}
    return pairs.Pairs(texts, columns, length=length, tokenizer=tokenizer, **options)


def test_a_source_of_examples(tokenizer):
    lengths = np.array([[*map(len, tokens)] for tokens in source(tokenizer).texts])
    for examples in (source(tokenizer), pickle.loads(pickle.dumps(source(tokenizer)))):
        assert len(examples) == 2 and examples.cut == (lengths.sum(0) > 8 - 3).sum() > 0
        example = examples[1]
        assert (example["index"], example["label"]) == (1, 0) and example["index"].dtype == np.int32
        tokens, segments = pairs.assemble([tokens[1] for tokens in examples.texts], 8, tokenizer)
        np.testing.assert_array_equal(example["tokens"], tokens)
        np.testing.assert_array_equal(example["segments"], segments)
    assert source(tokenizer, 64).cut == 0
    assert "length=4 has no room for two texts" in raised(DataError, source, tokenizer, 4)


def test_texts_that_are_encoded_alone(tokenizer):
    """Each text is laid out as if it were alone, and loses only its own tokens."""
    examples = source(tokenizer, 6, dual_encoder=True)
    assert (
        examples.cut
        == (np.array([[*map(len, tokens)] for tokens in examples.texts]) > 4).any(0).sum()
        > 0
    )
    for i in range(2):
        expected = [slowly([[int(token) for token in tokens[i]]], 6) for tokens in examples.texts]
        rows = [
            [{CLS: tokenizer.cls_id, SEP: tokenizer.sep_id}.get(t, t) for t in row]
            for row, _ in expected
        ]
        assert (
            tokenizer.pad_id == PAD
            and examples[i]["tokens"].tolist() == rows
            and not examples[i]["segments"].any()
        )
