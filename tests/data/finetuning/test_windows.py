"""Windows on passages, compared with BERT's loops."""

import pickle
import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data.finetuning import windows
from gmlp_flax.data.finetuning.questions import Question
from gmlp_flax.data.finetuning.windows import NO_TARGET, SPECIALS, Windows
from gmlp_flax.data.text.tokenizer import Tokenizer
from tests.data.finetuning import slow_windows
from tests.failures import failure

WORDS = (
    "the name of a class is bound to an object in its scope . , 1984's ( x ) 日本 naïve 🙂".split()
)
QUERY = "what is a class ?"


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=5),
    st.integers(1, 30),
)
def test_bounds_of_windows(passages, stride):
    expected = []
    for number, (tokens, room) in enumerate(passages):
        for bounds in slow_windows.bounds(tokens, room, stride):
            expected.append([number, *bounds])
    lengths, rooms = np.array(passages).T
    found = windows.window_bounds(lengths, rooms, stride)
    assert np.stack(found, axis=1).tolist() == expected


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 30))
def test_the_widest_context(tokens, room, stride):
    bounds = slow_windows.bounds(tokens, room, stride)
    begin, size = np.array(bounds).T
    owners = windows.widest_context(begin, size, tokens)
    for token, owner in enumerate(owners.tolist()):
        assert owner == slow_windows.owner(bounds, token)
    assert len(owners) == tokens


@st.composite
def passages(draw) -> tuple[str, int, int]:
    """A passage of words and spaces, and the begin and end of an answer in it."""
    rng = random.Random(draw(st.integers(0, 10**6)))
    text = ""
    for _ in range(draw(st.integers(1, 40))):
        text += rng.choice(WORDS) + rng.choice([" ", " ", "  ", ""])
    start = draw(st.integers(0, len(text) - 1))
    stop = draw(st.integers(start + 1, len(text)))
    return text, start, stop


def make(text: str, start: int, stop: int) -> Question:
    """A question on a passage; without an answer if it is empty."""
    answers = ((text[start:stop], start),) if start < stop else ()
    return Question("q", "title", text, QUERY, answers)


def slow_target(spans: np.ndarray, text: str, start: int, stop: int) -> list[int]:
    """The tokens that overlap an answer, without the white space around it."""
    given = text[start:stop]
    answer = given.strip()
    if not answer:
        return []
    left = start + given.find(answer)
    right = left + len(answer)
    return [token for token, (first, last) in enumerate(spans) if last > left and first < right]


@given(passages())
def test_targets(tokenizer, passage):
    text, start, stop = passage
    _, spans = tokenizer.encode_with_offsets(text)
    tokens = slow_target(spans, text, start, stop)
    expected = (tokens[0], tokens[-1]) if tokens else NO_TARGET
    assert windows.find_target(make(text, start, stop), spans) == expected
    assert windows.find_target(make(text, 0, 0), spans) == NO_TARGET


def slow_items(
    tokenizer: Tokenizer, passage: tuple[str, int, int], length: int, stride: int, max_query: int
) -> list[dict]:
    """The windows of a question, token by token."""
    text, start, stop = passage
    query = tokenizer.encode(QUERY)[:max_query]
    ids, spans = tokenizer.encode_with_offsets(text)
    answer = slow_target(spans, text, start, stop)
    first_token = len(query) + 2
    items = []
    for begin, size in slow_windows.bounds(len(ids), length - len(query) - 3, stride):
        part = ids[begin : begin + size]
        tokens = [tokenizer.cls_id, *query, tokenizer.sep_id, *part, tokenizer.sep_id]
        segments = [0] * first_token + [1] * (size + 1)
        padding = [0] * (length - len(tokens))
        is_whole = answer and begin <= answer[0] and answer[-1] < begin + size
        items.append(
            {
                "tokens": tokens + padding,
                "segments": segments + padding,
                "start": answer[0] - begin + first_token if is_whole else 0,
                "end": answer[-1] - begin + first_token if is_whole else 0,
            }
        )
    return items


def as_lists(window: dict[str, np.ndarray]) -> dict[str, list]:
    """The values of a window, which are int32, but for its number."""
    values = dict(window)
    del values["index"]
    for value in values.values():
        assert value.dtype == np.int32
    return {name: value.tolist() for name, value in values.items()}


@given(passages(), st.integers(1, 8), st.integers(1, 10), st.sampled_from([1, 3, 9]))
def test_windows_against_a_slow_reference(tokenizer, passage, stride, spare, max_query):
    """Of the last of three questions: the first is on another passage, the second has no answer."""
    text, start, stop = passage
    questions = [make("Some other text.", 0, 4), make(text, 0, 0), make(text, start, stop)]
    length = max_query + SPECIALS + spare
    made = Windows(questions, tokenizer, length=length, stride=stride, max_query=max_query)
    numbers = made.of_question(2)
    assert numbers.stop == len(made)
    expected = slow_items(tokenizer, passage, length, stride, max_query)
    for number, item in zip(numbers, expected, strict=True):
        window = made[number]
        assert window["index"] == number
        assert as_lists(window) == item
    for number in made.of_question(1):
        window = made[number]
        assert window["start"] == 0
        assert window["end"] == 0
    _, spans = tokenizer.encode_with_offsets(text)
    np.testing.assert_array_equal(made.spans(2), spans)


LOST_TEXT = "some text  and more"


# The second answer is white space, which no token holds; the third question has none.
LOST = [
    make(LOST_TEXT, 0, 4),
    make(LOST_TEXT, 9, 11),
    make(LOST_TEXT, 0, 0),
    make(LOST_TEXT, 5, 9),
]


SIZES = {"length": 24, "stride": 4, "max_query": 8}


def test_questions_whose_answer_is_lost_have_no_target(tokenizer):
    made = Windows(LOST, tokenizer, **SIZES)
    assert made.left_out == 0
    assert [target == NO_TARGET for target in made.targets] == [False, True, True, False]


def test_questions_whose_answer_is_lost_are_left_out_of_training(tokenizer):
    """But not one without an answer."""
    trained = Windows(LOST, tokenizer, training=True, **SIZES)
    assert trained.left_out == 1
    assert trained.questions == [LOST[0], *LOST[2:]]
    made = Windows(LOST, tokenizer, **SIZES)
    expected = made[len(made) - 1]
    assert as_lists(trained[len(trained) - 1]) == as_lists(expected)


def test_no_room(tokenizer):
    options = {"stride": 4, "max_query": 9}
    message = failure(Windows, [make("text", 0, 4)], tokenizer, length=12, **options)
    assert "length=12" in message
    assert "max_query=9" in message
    assert len(Windows([make("text", 0, 4)], tokenizer, length=13, **options)) > 0


def test_a_passage_without_tokens(tokenizer):
    made = Windows([make("\x01", 0, 1)], tokenizer, length=32, stride=8, max_query=8)
    assert len(made) == 1
    assert made.targets == [NO_TARGET]
    assert made[0]["segments"].sum() == 1


def test_a_source(tokenizer):
    question = make("some text " * 9, 5, 9)
    made = Windows([question], tokenizer, length=32, stride=8, max_query=8)
    assert len(made) > 1
    copy = pickle.loads(pickle.dumps(made))
    for number in range(len(made)):
        np.testing.assert_array_equal(copy[number]["tokens"], made[number]["tokens"])
