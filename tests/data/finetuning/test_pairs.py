"""Layout of texts and pairs, compared with BERT's loop."""

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from gmlp_flax.data.finetuning import pairs
from gmlp_flax.data.finetuning.pairs import Pairs
from gmlp_flax.data.text.tokenizer import Tokenizer
from tests.failures import failure
from tests.training import tiny

PAD = 0
CLS = 2
SEP = 3
TOKENIZER: Any = SimpleNamespace(pad_id=PAD, cls_id=CLS, sep_id=SEP)


def shortened(texts: list[list], length: int) -> list[list]:
    """BERT's own loop: removes the last token of the longest text until all texts fit.

    Of texts that are equally long, the last one loses a token.
    """
    texts = [list(text) for text in texts]
    specials = 1 + len(texts)
    while sum(map(len, texts)) + specials > length:
        longest = texts[0]
        for text in texts[1:]:
            if len(text) >= len(longest):
                longest = text
        longest.pop()
    return texts


def slow_layout(texts: list[list], length: int) -> tuple[list, list]:
    """The token and segment ids of an example."""
    tokens = [CLS]
    segments = [0]
    for segment, text in enumerate(shortened(texts, length)):
        tokens += [*text, SEP]
        places = len(text) + 1
        segments += [segment] * places
    padding = length - len(tokens)
    tokens += [PAD] * padding
    segments += [0] * padding
    return tokens, segments


TEXTS = st.lists(st.lists(st.integers(5, 99), max_size=20), min_size=1, max_size=2)


@pytest.mark.smoke
@given(TEXTS, st.integers(5, 50))
def test_layout_is_that_of_berts_loop(texts, length):
    ids = []
    for text in texts:
        ids.append(np.array(text, np.int32))
    tokens, segments = pairs.assemble(ids, length, TOKENIZER)
    assert tokens.dtype == np.int32
    assert segments.dtype == np.int32
    expected_tokens, expected_segments = slow_layout(texts, length)
    assert tokens.tolist() == expected_tokens
    assert segments.tolist() == expected_segments


@pytest.mark.parametrize(("texts", "least"), [(1, 3), (2, 5)])
def test_texts_have_one_token_each_at_the_least_length(texts, least):
    ids = [np.arange(4)] * texts
    assert pairs.room_for(texts, least) == texts
    tokens, _ = pairs.assemble(ids, least, TOKENIZER)
    assert tokens.shape == (least,)


@pytest.mark.parametrize(("texts", "least"), [(1, 3), (2, 5)])
def test_too_short_lengths_are_refused(texts, least):
    ids = [np.arange(4)] * texts
    too_short = least - 1
    message = failure(pairs.assemble, ids, too_short, TOKENIZER)
    assert f"length={least - 1}" in message
    assert f"give {least} or more" in message


@pytest.mark.parametrize(
    ("used", "length", "expected"),
    [
        (1, 128, 16),
        (16, 128, 16),
        (17, 128, 24),
        (97, 128, 128),
        (97, 100, 100),
        (5, 12, 12),
    ],
)
@pytest.mark.parametrize("shape", [(3,), (2, 2)])
def test_padding_is_cut_to_few_lengths(used, length, expected, shape):
    """The longest text of the batch decides; other values stay as they are."""
    full_shape = (*shape, length)
    tokens = np.full(full_shape, PAD, np.int32)
    tokens[..., 0] = CLS
    rows = tokens.reshape(-1, length)  # a view
    rows[-1, :used] = 7
    labels = np.arange(shape[0])
    segments = np.ones_like(tokens)
    batch = {"tokens": tokens, "segments": segments, "label": labels}
    cut = pairs.cut_padding(batch, PAD)
    cut_shape = (*shape, expected)
    assert cut["tokens"].shape == cut_shape
    assert cut["segments"].shape == cut_shape
    assert cut["label"] is labels
    kept = np.count_nonzero(cut["tokens"])
    assert kept == np.count_nonzero(tokens)
    assert batch["tokens"] is tokens


@pytest.fixture(scope="module")
def tokenizer():
    texts = [" ".join(tiny.WORDS[first:]) for first in range(40)]
    return Tokenizer.train(texts, 300)


# More texts than are encoded in one call.
MANY_TEXTS = ["the time", "", *tiny.WORDS] * 100


@pytest.mark.parametrize("most", [None, 1])
def test_texts_are_encoded_whole_or_truncated(tokenizer, most):
    assert len(MANY_TEXTS) > 4096
    encoded = pairs.encode(MANY_TEXTS, tokenizer, max_tokens=most)
    for text, ids in zip(MANY_TEXTS, encoded, strict=True):
        assert ids.dtype == np.int32
        expected_ids = tokenizer.encode(text)
        assert ids.tolist() == expected_ids[:most]


def source(tokenizer: Tokenizer, length: int = 10, **options) -> Pairs:
    first_texts = ["the time", "one"]
    second_texts = ["a", "the of and to in is that it"]
    columns_of_texts = (first_texts, second_texts)
    texts = [pairs.encode(column, tokenizer) for column in columns_of_texts]
    labels = np.array([1, 0], np.int32)
    columns = {"label": labels}
    return Pairs(texts, columns, length=length, tokenizer=tokenizer, **options)


def lengths_of(examples: Pairs) -> np.ndarray:
    """The tokens of both texts: int [2, examples]."""
    lengths = []
    for column in examples.texts:
        lengths.append([len(ids) for ids in column])
    return np.array(lengths)


def test_truncated_texts_do_not_keep_the_rest_in_memory(tokenizer):
    for ids in pairs.encode(MANY_TEXTS, tokenizer, max_tokens=1):
        assert ids.base is None


def test_an_empty_list_of_texts_is_encoded_as_an_empty_list(tokenizer):
    assert pairs.encode([], tokenizer) == []


def unchanged(examples):
    return examples


def pickled(examples):
    return pickle.loads(pickle.dumps(examples))


BOTH_SOURCES = pytest.mark.parametrize("copied", [unchanged, pickled])


@BOTH_SOURCES
def test_examples_have_both_texts_their_label_and_their_index(tokenizer, copied):
    examples = copied(source(tokenizer))
    assert len(examples) == 2
    example = examples[1]
    assert example["index"] == 1
    assert example["label"] == 0
    assert example["index"].dtype == np.int32
    texts = [column[1] for column in examples.texts]
    tokens, segments = pairs.assemble(texts, 10, tokenizer)
    assert_array_equal(example["tokens"], tokens)
    assert_array_equal(example["segments"], segments)


@BOTH_SOURCES
def test_truncated_examples_are_counted(tokenizer, copied):
    examples = copied(source(tokenizer))
    total_lengths = lengths_of(examples).sum(axis=0)
    is_cut = total_lengths > 10 - 3
    assert is_cut.tolist() == [False, True]
    assert examples.cut == 1
    assert copied(source(tokenizer, 64)).cut == 0


def test_sources_refuse_too_short_lengths(tokenizer):
    assert "length=4" in failure(source, tokenizer, 4)
    assert "length=2" in failure(source, tokenizer, 2, dual_encoder=True)


def test_dual_encoders_get_each_text_by_itself(tokenizer):
    """Each text is laid out as if it were the only one, and loses only its own tokens."""
    examples = source(tokenizer, 7, dual_encoder=True)
    is_cut = (lengths_of(examples) > 5).any(axis=0)
    assert is_cut.tolist() == [False, True]
    assert examples.cut == 1
    for number in range(2):
        example = examples[number]
        assert example["tokens"].shape == (2, 7)
        assert example["segments"].shape == (2, 7)
        assert not example["segments"].any()
        columns = zip(example["tokens"], examples.texts, strict=True)
        for row, column in columns:
            ids = [column[number]]
            tokens, _ = pairs.assemble(ids, 7, tokenizer)
            assert_array_equal(row, tokens)


def test_dual_encoders_lay_out_single_texts_as_usual(tokenizer):
    texts = [pairs.encode(["the time", "one"], tokenizer)]
    examples = Pairs(texts, {}, length=6, tokenizer=tokenizer, dual_encoder=True)
    assert not examples.dual_encoder
    assert examples[0]["tokens"].shape == (6,)
