"""Answers from scores, and SQuAD's metrics, compared with slow versions and published scores."""

import json
import lzma
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_flax.data.finetuning import squad_answers
from gmlp_flax.data.finetuning.questions import Question
from gmlp_flax.data.finetuning.squad_answers import CERTAIN, Answer, SpanScores
from gmlp_flax.data.finetuning.windows import Windows
from tests.data.finetuning import slow_windows
from tests.data.finetuning.squad_files import read

PASSAGE = (
    "A class is an object , and an object is  a class ; the name of a class is bound in the scope "
    "日本 of it ."
)


def top(logits: np.ndarray, n_best: int) -> SpanScores:
    """What the device computes from logits, float [2, windows, tokens]."""
    order = np.argsort(-logits, axis=-1, kind="stable")
    positions = order[..., :n_best]
    scores = np.take_along_axis(logits, positions, -1)
    start_scores, end_scores = scores
    starts, ends = positions
    null = null_logits(logits)
    return SpanScores(start_scores, starts, end_scores, ends, null)


def null_logits(logits: np.ndarray) -> np.ndarray:
    """The score of no answer, float [windows]: the sum of the logits of [CLS]."""
    start_logits, end_logits = logits
    return start_logits[:, 0] + end_logits[:, 0]


def questions(*texts: str) -> list[Question]:
    made = []
    for number, text in enumerate(texts):
        answer = (text[:1], 0)
        made.append(Question(f"q{number}", "title", text, "what is a class ?", (answer,)))
    return made


class Span(NamedTuple):
    """Tokens of a passage, and the score of the answer that they give."""

    first: int
    last: int
    score: float


def best_positions(logits: np.ndarray, n_best: int) -> np.ndarray:
    """The positions of the highest logits; of equal ones, the first."""
    return np.argsort(-logits, kind="stable")[:n_best]


def spans_of_window(
    windows: Windows, logits: np.ndarray, number: int, n_best: int
) -> Iterator[Span]:
    """The spans of the best starts and ends that are in the passage of a window."""
    begin = windows.begin[number]
    end_of_window = begin + windows.size[number]
    is_passage = windows[number]["segments"] > 0
    first_token = begin - int(is_passage.argmax())
    start_logits, end_logits = logits[:, number]
    for start in best_positions(start_logits, n_best):
        for end in best_positions(end_logits, n_best):
            first = start + first_token
            last = end + first_token
            if begin <= first <= last < end_of_window:
                start_score = float(start_logits[start])
                end_score = float(end_logits[end])
                score = start_score + end_score
                yield Span(first, last, score)


def slow_spans(
    windows: Windows, logits: np.ndarray, number: int, n_best: int, max_answer: int
) -> list[tuple[float, str]]:
    """The score and the text of each allowed span of a question, one after another."""
    context = windows.questions[number].context
    offsets = windows.spans(number)
    members = windows.of_question(number)
    bounds = []
    for member in members:
        bounds.append((windows.begin[member], windows.size[member]))
    answers = []
    for row, member in enumerate(members):
        for span in spans_of_window(windows, logits, member, n_best):
            length = span.last - span.first
            is_short = length < max_answer
            if is_short and slow_windows.owner(bounds, span.first) == row:
                start = offsets[span.first, 0]
                stop = offsets[span.last, 1]
                text = context[start:stop].strip()
                answers.append((span.score, text))
    return answers


def slow_answers(answers: list[tuple[float, str]], n_best: int) -> list[tuple[str, float]]:
    """The best texts, each once."""
    by_score = sorted(answers, key=lambda answer: answer[0], reverse=True)
    best: dict[str, float] = {}
    for score, text in by_score:
        if text:
            best.setdefault(text, score)
    pairs = list(best.items())
    return pairs[:n_best]


def random_logits(seed: int, windows: Windows) -> np.ndarray:
    """Whole numbers, so that there are ties."""
    rng = np.random.default_rng(seed)
    shape = (2, len(windows), windows.length)
    numbers = rng.integers(-6, 6, shape)
    return numbers.astype(np.float32)


@given(
    st.integers(0, 10**6),
    st.sampled_from([14, 20, 60]),
    st.integers(2, 6),
    st.integers(1, 9),
    st.integers(1, 12),
)
@settings(max_examples=60)
def test_answers_are_those_of_the_slow_reference(
    tokenizer, seed, length, stride, n_best, max_answer
):
    asked = questions(PASSAGE, "class", PASSAGE[:40])
    windows = Windows(asked, tokenizer, length=length, stride=stride, max_query=8)
    logits = random_logits(seed, windows)
    scores = top(logits, n_best)
    found = squad_answers.find_answers(windows, scores, n_best=n_best, max_answer=max_answer)
    assert len(found) == len(asked)
    for number, answers in enumerate(found):
        spans = slow_spans(windows, logits, number, n_best, max_answer)
        pairs = [tuple(answer) for answer in answers]
        assert pairs == slow_answers(spans, n_best)
    nulls = squad_answers.null_scores(windows, scores.null)
    assert nulls.dtype == np.float64
    for number in range(len(asked)):
        members = list(windows.of_question(number))
        of_windows = null_logits(logits)[members]
        assert nulls[number] == of_windows.min()


def test_a_passage_without_tokens_has_no_answers(tokenizer):
    asked = questions("\x01", PASSAGE)
    windows = Windows(asked, tokenizer, length=64, stride=8, max_query=8)
    size = (2, len(windows), 64)
    logits = np.zeros(size, np.float32)
    scores = top(logits, 20)
    found = squad_answers.find_answers(windows, scores, n_best=20, max_answer=30)
    assert len(windows.spans(0)) == 0
    assert found[0] == []
    assert found[1]


NULLS = np.array([1.0, 5.0, 0.0])
ASKED = questions("a", "b", "c")
FOUND = [
    [Answer("one", 3.0), Answer("two", 2.0)],
    [Answer("three", 4.5)],
    [],
]


def test_odds_of_no_answer_by_hand():
    odds = squad_answers.null_odds(ASKED, FOUND, NULLS)
    assert odds == {"q0": -2.0, "q1": 0.5, "q2": CERTAIN}
    assert json.loads(json.dumps(odds)) == odds


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (None, ["one", "three", ""]),
        (0.0, ["one", "", ""]),
        (0.5, ["one", "three", ""]),
        (-2.0, ["one", "", ""]),
        (-2.5, ["", "", ""]),
    ],
)
def test_predictions_at_a_threshold(threshold, expected):
    """A question is not answered if its odds of no answer exceed the threshold."""
    if threshold is None:
        found = squad_answers.predictions(ASKED, FOUND)
    else:
        odds = squad_answers.null_odds(ASKED, FOUND, NULLS)
        found = squad_answers.predictions(ASKED, FOUND, odds, threshold)
    pairs = zip(("q0", "q1", "q2"), expected, strict=True)
    assert found == dict(pairs)


def test_n_best_lists_have_scores_and_probabilities():
    lists = squad_answers.n_best_lists(ASKED, FOUND)
    first, second = lists["q0"]
    assert first["text"] == "one"
    assert second["text"] == "two"
    probability = np.e / (np.e + 1)
    assert first["probability"] == pytest.approx(probability)
    assert second["score"] == 2.0
    no_answer = {"text": "", "probability": 1.0, "score": 0.0}
    assert lists["q2"] == [no_answer]


def texts_of(entries: list[dict]) -> list[str]:
    return [entry["text"] for entry in entries]


def test_n_best_lists_rank_no_answer_by_its_score():
    lists = squad_answers.n_best_lists(ASKED, FOUND, NULLS)
    first = lists["q0"]
    second = lists["q1"]
    assert texts_of(first) == ["one", "two", ""]
    assert texts_of(second) == ["", "three"]
    assert second[0]["score"] == 5.0
    no_answer = {"text": "", "probability": 1.0, "score": 0.0}
    assert lists["q2"] == [no_answer]
    written = json.dumps(lists)
    assert json.loads(written) == lists


def question(name: str, *answers: str) -> Question:
    located = tuple((text, 0) for text in answers)
    return Question(name, "title", "context", "question", located)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("The  Cat, sat.", ["cat", "sat"]),
        ("a theory of the an", ["theory", "of"]),
        ("Ä–Ö “the”", ["ä–ö", "“", "”"]),  # noqa: RUF001 - other marks are words
        ("U.S. dollar's", ["us", "dollars"]),
        ("the-rapist", ["therapist"]),
        (" ,. The ", []),
    ],
)
def test_words_are_lower_case_without_articles_and_punctuation(answer, words):
    assert squad_answers.words(answer) == words


@pytest.mark.parametrize(
    ("prediction", "references", "exact", "f1"),
    [
        ("The cat.", ["cat", "dog"], 1, 1),
        ("black cat", ["the cat"], 0, 2 / 3),
        ("cat cat dog", ["cat dog dog"], 0, 2 / 3),  # multisets: one cat and one dog are common
        ("big black cat", ["cat", "black dog"], 0, 1 / 2),
        ("big cat", ["small cat", "big cat now"], 0, 4 / 5),  # the best reference of each score
        ("cat", ["dog"], 0, 0),
        ("", [], 1, 1),
        ("the", [], 1, 1),
        ("cat", [], 0, 0),
        ("a", ["the", ""], 1, 1),  # no reference has a word
        ("", ["the", "cat"], 0, 0),  # "the" does not count
    ],
)
def test_exact_match_and_f1_by_hand(prediction, references, exact, f1):
    found_exact, found_f1 = squad_answers.score(prediction, references)
    assert found_exact == exact
    assert found_f1 == pytest.approx(f1)


QUESTIONS = [
    question("a", "one two"),
    question("b", "three"),
    question("c"),
    question("d"),
]


def test_metrics_by_hand():
    predictions = {"a": "two", "c": "", "d": "some", "other": "x"}
    found = squad_answers.evaluate(QUESTIONS, predictions)
    first = 100 * (2 / 3)
    assert found == {
        "exact": 25.0,
        "f1": pytest.approx((first + 100) / 4),
        "total": 4,
        "HasAns_exact": 0.0,
        "HasAns_f1": pytest.approx(first / 2),
        "HasAns_total": 2,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
        "missing_filled_with_empty": 1,
    }


def test_metrics_without_unanswered_questions():
    """As in v1.1, all questions have answers."""
    found = squad_answers.evaluate(QUESTIONS[:2], {"a": "one two", "b": "three"})
    assert found["total"] == 2
    assert found["HasAns_total"] == 2
    for name in found:
        assert not name.startswith("NoAns")
    assert squad_answers.scores([], {}).shape == (0, 2)


ODDS = st.lists(st.integers(-3, 3), min_size=4, max_size=4, unique=True)
ANSWERS = st.lists(st.sampled_from(["", "one", "one two", "three"]), min_size=4, max_size=4)


def metrics_at_threshold(answers: dict, odds: dict, threshold: float) -> dict[str, float]:
    """The metrics if only questions whose odds do not exceed the threshold are answered."""
    kept = {}
    for name, text in answers.items():
        is_answered = odds[name] <= threshold
        kept[name] = text if is_answered else ""
    return squad_answers.evaluate(QUESTIONS, kept)


def test_probabilities_of_n_best_lists_add_up_to_1():
    lists = squad_answers.n_best_lists(ASKED, FOUND, NULLS)
    for entries in lists.values():
        total = sum(entry["probability"] for entry in entries)
        assert total == pytest.approx(1)


@pytest.mark.parametrize("name", ["exact", "f1"])
@given(ODDS, ANSWERS)
def test_best_thresholds_are_the_best_of_all_thresholds(name, odds, predicted):
    names = [question.id for question in QUESTIONS]
    odds = dict(zip(names, odds, strict=True))
    predicted = dict(zip(names, predicted, strict=True))
    found = squad_answers.best_thresholds(QUESTIONS, predicted, odds)
    tried = []
    for threshold in (-4, *odds.values()):
        metrics = metrics_at_threshold(predicted, odds, threshold)
        tried.append(metrics[name])
    unanswered = tried[0]
    best = max(tried)
    found_metric = found[f"best_{name}"]
    assert found_metric == pytest.approx(best)
    threshold = found[f"best_{name}_thresh"]
    # The script starts from no answers at all, and calls this a threshold of 0.
    is_none_answered = threshold == 0 and unanswered == pytest.approx(best)
    reached = metrics_at_threshold(predicted, odds, threshold)
    reached_metric = reached[name]
    assert is_none_answered or reached_metric == pytest.approx(best)


def test_questions_without_odds_are_not_answered():
    predictions = {"a": "one two", "b": "three"}
    found = squad_answers.best_thresholds(QUESTIONS, predictions, {"a": 0.5})
    assert found == {
        "best_exact": 75.0,
        "best_exact_thresh": 0.5,
        "best_f1": 75.0,
        "best_f1_thresh": 0.5,
    }


def test_best_thresholds_without_predictions():
    found = squad_answers.best_thresholds(QUESTIONS, {}, {})
    assert found["best_exact"] == 50.0
    assert found["best_f1"] == 50.0
    assert found["best_f1_thresh"] == 0.0


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("v1.1", "pred_logreg_baseline_v1.1.json.xz"),
        ("v1.1", "pred_match_lstm_ensemble_v1.1.json.xz"),
        ("v2.0", "pred_bert_single_v2.0.json.xz"),
    ],
)
def test_published_predictions_to_the_last_digit(shared_data, version, name):
    path = shared_data(f"squad/squad_{version}_dev.json.xz")
    asked = read(path, version)
    predictions_path = shared_data(f"squad/{name}")
    with lzma.open(predictions_path) as file:
        predictions = json.load(file)
    with open(shared_data(f"squad/expected_{version}.json")) as file:
        expected = json.load(file)[name]
    metrics = squad_answers.evaluate(asked, predictions)
    assert metrics == expected
    assert list(metrics) == list(expected)
