"""Windows on passages, compared with BERT's loops."""

import pickle
import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal, assert_equal

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


TOKENS_AND_ROOM = st.tuples(st.integers(0, 60), st.integers(1, 20))


@given(st.lists(TOKENS_AND_ROOM, min_size=1, max_size=5), st.integers(1, 30))
def test_bounds_are_those_of_the_slow_reference(passages, stride):
    expected = []
    for number, (tokens, room) in enumerate(passages):
        slow = slow_windows.bounds(tokens, room, stride)
        for begin, size in slow:
            expected.append((number, begin, size))
    lengths, rooms = np.array(passages).T
    numbers, begins, sizes = windows.window_bounds(lengths, rooms, stride)
    found = zip(numbers, begins, sizes, strict=True)
    assert list(found) == expected


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 30))
def test_each_token_belongs_to_the_window_with_the_widest_context(tokens, room, stride):
    bounds = slow_windows.bounds(tokens, room, stride)
    begin, size = np.array(bounds).T
    owners = windows.widest_context(begin, size, tokens)
    for token, owner in enumerate(owners.tolist()):
        assert owner == slow_windows.owner(bounds, token)
    assert len(owners) == tokens


@st.composite
def passages(draw) -> tuple[str, int, int]:
    """A passage of words and spaces, and the begin and end of an answer in it."""
    seed = draw(st.integers(0, 10**6))
    rng = random.Random(seed)
    words = draw(st.integers(1, 40))
    text = ""
    for _ in range(words):
        text += rng.choice(WORDS)
        text += rng.choice([" ", " ", "  ", ""])
    last = len(text) - 1
    start = draw(st.integers(0, last))
    stops = st.integers(start + 1, len(text))
    stop = draw(stops)
    return text, start, stop


def make(text: str, start: int, stop: int) -> Question:
    """A question on a passage; without an answer if the span is empty."""
    answers = ()
    if start < stop:
        answer = (text[start:stop], start)
        answers = (answer,)
    return Question("q", "title", text, QUERY, answers)


def slow_target(spans: np.ndarray, text: str, start: int, stop: int) -> list[int]:
    """The tokens that overlap an answer, without the white space around it."""
    span = text[start:stop]
    answer = span.strip()
    if not answer:
        return []
    left = start + span.find(answer)
    right = left + len(answer)
    tokens = []
    for token, (first, last) in enumerate(spans):
        if last > left and first < right:
            tokens.append(token)
    return tokens


@given(passages())
def test_targets_are_the_tokens_that_overlap_the_answer(tokenizer, passage):
    text, start, stop = passage
    answered = make(text, start, stop)
    unanswered = make(text, 0, 0)
    _, spans = tokenizer.encode_with_offsets(text)
    tokens = slow_target(spans, text, start, stop)
    expected = (tokens[0], tokens[-1]) if tokens else NO_TARGET
    assert windows.find_target(answered, spans) == expected
    assert windows.find_target(unanswered, spans) == NO_TARGET


def slow_items(
    tokenizer: Tokenizer, passage: tuple[str, int, int], length: int, stride: int, max_query: int
) -> list[dict]:
    """The windows of a question, token by token."""
    text, start, stop = passage
    query = tokenizer.encode(QUERY)[:max_query]
    ids, spans = tokenizer.encode_with_offsets(text)
    answer = slow_target(spans, text, start, stop)
    first_token = len(query) + 2
    room = length - len(query) - 3
    items = []
    slow_bounds = slow_windows.bounds(len(ids), room, stride)
    for begin, size in slow_bounds:
        part = ids[begin : begin + size]
        tokens = [tokenizer.cls_id, *query, tokenizer.sep_id, *part, tokenizer.sep_id]
        segments = [0] * first_token
        segments += [1] * (size + 1)
        missing = length - len(tokens)
        padding = [0] * missing
        first_target = 0
        last_target = 0
        if answer:
            first = answer[0]
            last = answer[-1]
            if begin <= first and last < begin + size:
                first_target = first - begin + first_token
                last_target = last - begin + first_token
        items.append(
            {
                "tokens": tokens + padding,
                "segments": segments + padding,
                "start": first_target,
                "end": last_target,
            }
        )
    return items


def as_lists(window: dict[str, np.ndarray]) -> dict[str, list]:
    """The values of a window except for its number, all of which must be int32."""
    lists = {}
    for name, value in window.items():
        if name != "index":
            assert value.dtype == np.int32
            lists[name] = value.tolist()
    return lists


@given(passages(), st.integers(1, 8), st.integers(1, 10), st.sampled_from([1, 3, 9]))
def test_windows_are_those_of_the_slow_reference(tokenizer, passage, stride, spare, max_query):
    """Of three questions, the first is about another passage, and the second has no answer."""
    text, start, stop = passage
    other = make("Some other text.", 0, 4)
    unanswered = make(text, 0, 0)
    answered = make(text, start, stop)
    questions = [other, unanswered, answered]
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
    assert_array_equal(made.spans(2), spans)


TEXT = "some text  and more"
ANSWERED = make(TEXT, 0, 4)
ANSWERED_BY_WHITE_SPACE = make(TEXT, 9, 11)  # no token holds it
UNANSWERED = make(TEXT, 0, 0)
LAST_ANSWERED = make(TEXT, 5, 9)
QUESTIONS = [ANSWERED, ANSWERED_BY_WHITE_SPACE, UNANSWERED, LAST_ANSWERED]
SIZES = {"length": 24, "stride": 4, "max_query": 8}


def test_answers_without_a_token_have_no_target(tokenizer):
    made = Windows(QUESTIONS, tokenizer, **SIZES)
    assert made.left_out == 0
    has_target = [target != NO_TARGET for target in made.targets]
    assert has_target == [True, False, False, True]


def test_training_omits_questions_whose_answer_has_no_token(tokenizer):
    """It keeps unanswered questions."""
    trained = Windows(QUESTIONS, tokenizer, training=True, **SIZES)
    assert trained.left_out == 1
    assert trained.questions == [ANSWERED, UNANSWERED, LAST_ANSWERED]
    made = Windows(QUESTIONS, tokenizer, **SIZES)
    last = made[len(made) - 1]
    last_trained = trained[len(trained) - 1]
    assert as_lists(last_trained) == as_lists(last)


def test_lengths_without_room_for_the_passage_are_refused(tokenizer):
    questions = [make("text", 0, 4)]
    options = {"stride": 4, "max_query": 9}
    message = failure(Windows, questions, tokenizer, length=12, **options)
    assert "length=12" in message
    assert "max_query=9" in message
    assert len(Windows(questions, tokenizer, length=13, **options)) > 0


def test_a_passage_without_tokens_has_one_empty_window(tokenizer):
    made = Windows([make("\x01", 0, 1)], tokenizer, length=32, stride=8, max_query=8)
    assert len(made) == 1
    assert made.targets == [NO_TARGET]
    assert made[0]["segments"].sum() == 1


def test_windows_survive_pickle(tokenizer):
    text = "some text " * 9
    question = make(text, 5, 9)
    made = Windows([question], tokenizer, length=32, stride=8, max_query=8)
    copy = pickle.loads(pickle.dumps(made))
    assert len(made) > 1
    assert len(copy) == len(made)
    for number in range(len(made)):
        assert_equal(copy[number], made[number])
