"""Answers from scores, and SQuAD's metrics, compared with slow references and published scores."""

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
    """The results of the device for scores, float [2, windows, tokens]."""
    positions = np.argsort(-logits, axis=-1, kind="stable")[..., :n_best]
    scores = np.take_along_axis(logits, positions, -1)
    null = logits[0, :, 0] + logits[1, :, 0]
    return SpanScores(scores[0], positions[0], scores[1], positions[1], null)


def questions(*texts: str) -> list[Question]:
    made = []
    for number, text in enumerate(texts):
        answers = ((text[:1], 0),)
        made.append(Question(f"q{number}", "title", text, "what is a class ?", answers))
    return made


class Span(NamedTuple):
    """Tokens of a passage, and the score of the answer that they give."""

    first: int
    last: int
    score: float


def spans_of_window(
    windows: Windows, logits: np.ndarray, number: int, n_best: int
) -> Iterator[Span]:
    """The spans of the best starts and ends that lie in the passage of a window."""
    begin = windows.begin[number]
    end_of_window = begin + windows.size[number]
    first_position = int(np.flatnonzero(windows[number]["segments"])[0])
    start_logits, end_logits = logits[:, number]
    for start in np.argsort(-start_logits, kind="stable")[:n_best]:
        for end in np.argsort(-end_logits, kind="stable")[:n_best]:
            first = start - first_position + begin
            last = end - first_position + begin
            if begin <= first <= last < end_of_window:
                yield Span(first, last, float(start_logits[start]) + float(end_logits[end]))


def slow_spans(
    windows: Windows, logits: np.ndarray, number: int, n_best: int, max_answer: int
) -> list[tuple[float, str]]:
    """The score and the text of each span of a question that the rules allow, one after another."""
    context = windows.questions[number].context
    places = windows.spans(number)
    members = windows.of_question(number)
    bounds = [(windows.begin[member], windows.size[member]) for member in members]
    answers = []
    for row, member in enumerate(members):
        for span in spans_of_window(windows, logits, member, n_best):
            is_short = span.last - span.first < max_answer
            if is_short and slow_windows.owner(bounds, span.first) == row:
                text = context[places[span.first, 0] : places[span.last, 1]]
                answers.append((span.score, text))
    return answers


def slow_answers(answers: list[tuple[float, str]], n_best: int) -> list[tuple[str, float]]:
    """The best texts, each once."""
    best: dict[str, float] = {}
    for score, text in sorted(answers, key=lambda pair: -pair[0]):
        if text and text not in best and len(best) < n_best:
            best[text] = score
    return list(best.items())


def random_logits(seed: int, windows: Windows) -> np.ndarray:
    """Whole numbers, so that there are ties."""
    rng = np.random.default_rng(seed)
    return rng.integers(-6, 6, (2, len(windows), windows.length)).astype(np.float32)


@given(
    st.integers(0, 10**6),
    st.sampled_from([14, 20, 60]),
    st.integers(2, 6),
    st.integers(1, 9),
    st.integers(1, 12),
)
@settings(max_examples=60)
def test_against_a_slow_reference(tokenizer, seed, length, stride, n_best, max_answer):
    asked = questions(PASSAGE, "class", PASSAGE[:40])
    windows = Windows(asked, tokenizer, length=length, stride=stride, max_query=8)
    logits = random_logits(seed, windows)
    scores = top(logits, n_best)
    found = squad_answers.find_answers(windows, scores, n_best=n_best, max_answer=max_answer)
    for number, answers in enumerate(found):
        spans = slow_spans(windows, logits, number, n_best, max_answer)
        assert [tuple(answer) for answer in answers] == slow_answers(spans, n_best)
    assert len(found) == len(asked)
    nulls = squad_answers.null_scores(windows, scores.null)
    assert nulls.dtype == np.float64
    null_logits = logits[0, :, 0] + logits[1, :, 0]
    for number in range(len(asked)):
        members = list(windows.of_question(number))
        assert nulls[number] == null_logits[members].min()


def test_a_passage_without_tokens(tokenizer):
    windows = Windows(questions("\x01", PASSAGE), tokenizer, length=64, stride=8, max_query=8)
    logits = np.zeros((2, len(windows), 64), np.float32)
    found = squad_answers.find_answers(windows, top(logits, 20), n_best=20, max_answer=30)
    assert len(windows.spans(0)) == 0
    assert found[0] == []
    assert found[1]


NULLS = np.array([1.0, 5.0, 0.0])
ASKED = questions("a", "b", "c")
FOUND = [[Answer("one", 3.0), Answer("two", 2.0)], [Answer("three", 4.5)], []]


def test_odds():
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
def test_predictions(threshold, expected):
    """An answer is given up where its odds exceed the threshold."""
    if threshold is None:
        found = squad_answers.predictions(ASKED, FOUND)
    else:
        odds = squad_answers.null_odds(ASKED, FOUND, NULLS)
        found = squad_answers.predictions(ASKED, FOUND, odds, threshold)
    assert found == dict(zip(("q0", "q1", "q2"), expected, strict=True))


def test_n_best_lists():
    lists = squad_answers.n_best_lists(ASKED, FOUND)
    first, second = lists["q0"]
    assert first["text"] == "one"
    assert second["text"] == "two"
    assert first["probability"] == pytest.approx(np.e / (np.e + 1))
    assert second["score"] == 2.0
    assert lists["q2"] == [{"text": "", "probability": 1.0, "score": 0.0}]


def texts_of(entries: list[dict]) -> list[str]:
    return [entry["text"] for entry in entries]


def test_n_best_lists_with_no_answer():
    lists = squad_answers.n_best_lists(ASKED, FOUND, NULLS)
    assert texts_of(lists["q0"]) == ["one", "two", ""]
    assert texts_of(lists["q1"]) == ["", "three"]
    assert lists["q1"][0]["score"] == 5.0
    assert lists["q2"] == [{"text": "", "probability": 1.0, "score": 0.0}]
    assert json.loads(json.dumps(lists)) == lists


def question(name: str, *answers: str) -> Question:
    return Question(name, "title", "context", "question", tuple((text, 0) for text in answers))


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
def test_words(answer, words):
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
def test_score(prediction, references, exact, f1):
    assert squad_answers.score(prediction, references) == (exact, pytest.approx(f1))


QUESTIONS = [question("a", "one two"), question("b", "three"), question("c"), question("d")]


def test_evaluate():
    found = squad_answers.evaluate(QUESTIONS, {"a": "two", "c": "", "d": "some", "other": "x"})
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


def test_questions_of_one_kind():
    """As in v1.1: there is no score of the other kind."""
    found = squad_answers.evaluate(QUESTIONS[:2], {"a": "one two", "b": "three"})
    assert found["HasAns_total"] == found["total"] == 2
    for name in found:
        assert not name.startswith("NoAns")
    assert squad_answers.scores([], {}).shape == (0, 2)


ODDS = st.lists(st.integers(-3, 3), min_size=4, max_size=4, unique=True)
ANSWERS = st.lists(st.sampled_from(["", "one", "one two", "three"]), min_size=4, max_size=4)


def at_threshold(answers: dict, odds: dict, threshold: float) -> dict[str, float]:
    """The scores if a question is answered where its odds do not exceed the threshold."""
    kept = {}
    for name, text in answers.items():
        kept[name] = text if odds[name] <= threshold else ""
    return squad_answers.evaluate(QUESTIONS, kept)


def test_probabilities_of_n_best_lists_add_up_to_1():
    lists = squad_answers.n_best_lists(ASKED, FOUND, NULLS)
    for entries in lists.values():
        total = sum(entry["probability"] for entry in entries)
        assert total == pytest.approx(1)


@pytest.mark.parametrize("name", ["exact", "f1"])
@given(ODDS, ANSWERS)
def test_best_thresholds_against_every_threshold(name, odds, predicted):
    names = [question.id for question in QUESTIONS]
    odds = dict(zip(names, odds, strict=True))
    predicted = dict(zip(names, predicted, strict=True))
    found = squad_answers.best_thresholds(QUESTIONS, predicted, odds)
    tried = []
    for threshold in (-4, *odds.values()):
        metrics = at_threshold(predicted, odds, threshold)
        tried.append(metrics[name])
    best = max(tried)
    assert found[f"best_{name}"] == pytest.approx(best)
    threshold = found[f"best_{name}_thresh"]
    # The script starts from no answers at all, and calls this a threshold of 0.
    is_none_answered = threshold == 0 and tried[0] == pytest.approx(best)
    reached = at_threshold(predicted, odds, threshold)[name]
    assert is_none_answered or reached == pytest.approx(best)


def test_questions_without_odds_are_not_answered():
    found = squad_answers.best_thresholds(QUESTIONS, {"a": "one two", "b": "three"}, {"a": 0.5})
    assert found == {
        "best_exact": 75.0,
        "best_exact_thresh": 0.5,
        "best_f1": 75.0,
        "best_f1_thresh": 0.5,
    }
    found = squad_answers.best_thresholds(QUESTIONS, {}, {})
    assert found["best_exact"] == found["best_f1"] == 50.0
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
    asked = read(shared_data(f"squad/squad_{version}_dev.json.xz"), version)
    with lzma.open(shared_data(f"squad/{name}")) as file:
        predictions = json.load(file)
    with open(shared_data(f"squad/expected_{version}.json")) as file:
        expected = json.load(file)[name]
    metrics = squad_answers.evaluate(asked, predictions)
    assert metrics == expected
    assert list(metrics) == list(expected)
