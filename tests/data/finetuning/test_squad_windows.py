import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_flax.data.finetuning import squad_windows
from gmlp_flax.data.finetuning.squad import Question
from gmlp_flax.data.finetuning.squad_windows import Windows
from gmlp_flax.errors import DataError

WORDS = "the name of a class is bound to an object in its scope . , 1984's ( x ) 日本 naïve 🙂".split()


def slow_windows(tokens, room, stride):
    """(begin, number of tokens) of each window, by BERT's loop."""
    found, begin = [], 0
    while True:
        size = min(tokens - begin, room)
        found.append((begin, size))
        if begin + size == tokens:
            return found
        begin += min(size, stride)


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 30))
def test_widest_context(tokens, room, stride):
    windows = slow_windows(tokens, room, stride)
    found = squad_windows.widest_context(*map(np.array, zip(*windows, strict=True)), tokens)
    for token in range(tokens):
        best = None
        for i, (begin, size) in enumerate(windows):
            if begin <= token < begin + size:
                context = min(token - begin, begin + size - 1 - token) + 0.01 * size
                if best is None or context > best[0]:
                    best = context, i
        assert found[token] == best[1]


@st.composite
def passages(draw):
    """A passage of words and spaces, and the begin and end of an answer in it."""
    rng = random.Random(draw(st.integers(0, 10**6)))
    text = "".join(rng.choice(WORDS) + rng.choice([" ", " ", "  ", ""]) for _ in range(draw(st.integers(1, 40))))
    start = draw(st.integers(0, len(text) - 1))
    return text, start, draw(st.integers(start + 1, len(text)))


def make(text, start, stop, question="what is a class ?", name="q"):
    answers = ((text[start:stop], start),) if start < stop else ()
    return Question(name, "title", text, question, answers)


@given(passages(), st.integers(1, 8), st.integers(1, 10), st.sampled_from([1, 3, 9]))
@settings(max_examples=100, deadline=None)
def test_windows_against_a_slow_reference(tokenizer, passage, stride, spare, max_query):
    text, start, stop = passage
    # Two questions before it, one on another passage.
    questions = [make("Some other text.", 0, 4), make(text, 0, 0), make(text, start, stop)]
    length = max_query + squad_windows.SPECIALS + spare
    windows = Windows(questions, tokenizer, length=length, stride=stride, max_query=max_query)
    query = tokenizer.encode("what is a class ?")[:max_query]
    ids, spans = tokenizer.encode_with_offsets(text)
    answer = text[start:stop].strip()
    left = start + text[start:stop].find(answer)
    inside = [i for i, (a, b) in enumerate(spans) if b > left and a < left + len(answer) and answer]
    room = length - len(query) - 3
    expected = []
    for begin, size in slow_windows(len(ids), room, stride):
        tokens = [tokenizer.cls_id, *query, tokenizer.sep_id, *ids[begin : begin + size], tokenizer.sep_id]
        segments = [0] * (len(query) + 2) + [1] * (size + 1)
        whole = inside and begin <= inside[0] and inside[-1] < begin + size
        places = [place - begin + len(query) + 2 for place in (inside[0], inside[-1])] if whole else [0, 0]
        padding = [0] * (length - len(tokens))
        expected.append((tokens + padding, segments + padding, *places))
    numbers = windows.of_question(2)
    found = [windows[i] for i in numbers]
    assert [(w["tokens"].tolist(), w["segments"].tolist(), w["start"], w["end"]) for w in found] == expected
    assert [w["index"] for w in found] == list(numbers) and numbers.stop == len(windows)
    assert {w["tokens"].dtype.name for w in found} == {"int32"} == {w["start"].dtype.name for w in found}
    assert all(windows[i]["start"] == 0 == windows[i]["end"] for i in windows.of_question(1))
    assert [target.lost for target in windows.targets] == [False, False, not inside]
    np.testing.assert_array_equal(windows.spans(2), spans)
    trained = Windows(questions, tokenizer, length=length, stride=stride, max_query=max_query, training=True)
    assert trained.left_out == (not inside) and trained.questions == questions[: 3 - trained.left_out]
    for i in range(len(trained)):
        assert all(np.array_equal(trained[i][name], value) for name, value in windows[i].items())


def test_no_room(tokenizer):
    with pytest.raises(DataError, match="^length=12 has no room for a passage beside squad.max_query=9 "):
        Windows([make("text", 0, 4)], tokenizer, length=12, stride=4, max_query=9)
    assert len(Windows([make("text", 0, 4)], tokenizer, length=13, stride=4, max_query=9)) > 0


def test_a_source(tokenizer):
    windows = Windows([make("some text " * 9, 5, 9)], tokenizer, length=32, stride=8, max_query=8)
    assert len(windows) > 1
    copy = pickle.loads(pickle.dumps(windows))
    assert all((copy[i]["tokens"] == windows[i]["tokens"]).all() for i in range(len(windows)))
