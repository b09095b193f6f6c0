import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_flax.data.finetuning import squad, squad_answers
from gmlp_flax.data.finetuning.squad import Question, Windows
from gmlp_flax.data.finetuning.squad_answers import CERTAIN, Answer, SpanScores
from tests.data.finetuning.squad_files import read

PASSAGE = "A class is an object , and an object is  a class ; the name of a class is bound in the scope 日本 of it ."


def top(logits, n_best):
    """The results of the device for scores, float [2, windows, tokens]."""
    places = np.argsort(-logits, axis=-1, kind="stable")[..., :n_best]
    scores = np.take_along_axis(logits, places, -1)
    return SpanScores(scores[0], places[0], scores[1], places[1], logits[0, :, 0] + logits[1, :, 0])


def questions(*texts):
    return [
        Question(f"q{i}", "title", text, "what is a class ?", ((text[:1], 0),))
        for i, text in enumerate(texts)
    ]


def slow_answers(windows, logits, tokenizer, number, n_best, max_answer):
    """By the rules, one span after another."""
    context = windows.questions[number].context
    spans = tokenizer.encode_with_offsets(context)[1]
    members = list(windows.of_question(number))
    owner = squad.widest_context(windows.begin[members], windows.size[members], len(spans))
    found = []
    for row, i in enumerate(members):
        tokens, segments = (windows[i][name] for name in ("tokens", "segments"))
        passage = [
            place for place in np.flatnonzero(segments) if place < max(np.flatnonzero(segments))
        ]
        assert [*tokens[passage]] == tokenizer.encode(context)[
            windows.begin[i] : windows.begin[i] + windows.size[i]
        ]
        starts, ends = (np.argsort(-side[i], kind="stable")[:n_best] for side in logits)
        for start in starts:
            for end in ends:
                if (
                    start not in passage
                    or end not in passage
                    or end < start
                    or end - start >= max_answer
                ):
                    continue
                first, last = (place - passage[0] + windows.begin[i] for place in (start, end))
                if owner[first] == row:
                    text = context[spans[first, 0] : spans[last, 1]]
                    found.append((float(logits[0][i, start]) + float(logits[1][i, end]), text))
    found.sort(key=lambda pair: -pair[0])
    best = {}
    for score, text in found:
        if text and text not in best and len(best) < n_best:
            best[text] = score
    return list(best.items())


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
    # Integers, so that there are ties.
    logits = (
        np.random.default_rng(seed).integers(-6, 6, (2, len(windows), length)).astype(np.float32)
    )
    found = squad_answers.find_answers(
        windows, top(logits, n_best), n_best=n_best, max_answer=max_answer
    )
    for number in range(len(asked)):
        expected = slow_answers(windows, logits, tokenizer, number, n_best, max_answer)
        assert [tuple(answer) for answer in found[number]] == expected
    nulls = squad_answers.null_scores(windows, logits[:, :, 0].sum(0))
    assert nulls.tolist() == [
        min(logits[:, list(windows.of_question(i)), 0].sum(0)) for i in range(3)
    ]


def test_a_passage_without_tokens(tokenizer):
    windows = Windows(questions("\x01", PASSAGE), tokenizer, length=64, stride=8, max_query=8)
    logits = np.zeros((2, len(windows), 64), np.float32)
    found = squad_answers.find_answers(windows, top(logits, 20), n_best=20, max_answer=30)
    assert len(windows.spans(0)) == 0 and found[0] == [] and found[1]


NULLS = np.array([1.0, 5.0, 0.0])
ASKED = questions("a", "b", "c")
FOUND = [[Answer("one", 3.0), Answer("two", 2.0)], [Answer("three", 4.5)], []]


def test_odds_and_predictions():
    odds = squad_answers.null_odds(ASKED, FOUND, NULLS)
    assert odds == {"q0": -2.0, "q1": 0.5, "q2": CERTAIN} and json.loads(json.dumps(odds)) == odds
    assert squad_answers.predictions(ASKED, FOUND) == {"q0": "one", "q1": "three", "q2": ""}
    assert squad_answers.predictions(ASKED, FOUND, odds) == {"q0": "one", "q1": "", "q2": ""}
    assert squad_answers.predictions(ASKED, FOUND, odds, 0.5) == {
        "q0": "one",
        "q1": "three",
        "q2": "",
    }
    assert squad_answers.predictions(ASKED, FOUND, odds, -2.5) == {"q0": "", "q1": "", "q2": ""}


def test_n_best_lists():
    lists = squad_answers.n_best_lists(ASKED, FOUND)
    assert [entry["text"] for entry in lists["q0"]] == ["one", "two"] and lists["q2"] == [
        {"text": "", "probability": 1.0, "score": 0.0}
    ]
    assert (
        lists["q0"][0]["probability"] == pytest.approx(np.e / (np.e + 1))
        and lists["q0"][1]["score"] == 2.0
    )
    lists = squad_answers.n_best_lists(ASKED, FOUND, NULLS)
    assert [entry["text"] for entry in lists["q1"]] == ["", "three"]
    assert sum(entry["probability"] for entry in lists["q0"]) == pytest.approx(1)


def question(name, *answers):
    return Question(name, "title", "context", "question", tuple((text, 0) for text in answers))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("The  Cat, sat.", ["cat", "sat"]),
        ("a theory of the an", ["theory", "of"]),
        ("Ä–Ö “the”", ["ä–ö", "“", "”"]),  # noqa: RUF001 - only ASCII punctuation, but any word boundary
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
        ("", [], 1, 1),
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
    third = 100 * (2 / 3)
    assert found == {
        "exact": 25.0,
        "f1": pytest.approx((third + 100) / 4),
        "total": 4,
        "HasAns_exact": 0.0,
        "HasAns_f1": pytest.approx(third / 2),
        "HasAns_total": 2,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
        "missing_filled_with_empty": 1,
    }


odds_values = st.lists(st.integers(-3, 3), min_size=4, max_size=4, unique=True)
answers = st.lists(st.sampled_from(["", "one", "one two", "three"]), min_size=4, max_size=4)


@given(odds_values, answers)
def test_best_thresholds_against_every_threshold(odds, predicted):
    names = [q.id for q in QUESTIONS]
    odds, predicted = (dict(zip(names, values, strict=True)) for values in (odds, predicted))
    found = squad_answers.best_thresholds(QUESTIONS, predicted, odds)

    def at(threshold):
        kept = {name: text if odds[name] <= threshold else "" for name, text in predicted.items()}
        return squad_answers.evaluate(QUESTIONS, kept)

    tried = [at(threshold) for threshold in (-4, *odds.values())]
    for name in ("exact", "f1"):
        # The script starts from no answers at all, and calls this a threshold of 0.
        nothing = at(-4)[name]
        assert found[f"best_{name}"] == pytest.approx(max(metrics[name] for metrics in tried))
        threshold = found[f"best_{name}_thresh"]
        assert at(threshold)[name] == pytest.approx(found[f"best_{name}"]) or (
            threshold == 0 and found[f"best_{name}"] == pytest.approx(nothing)
        )


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("v1.1", "pred_logreg_baseline_v1.1.json.xz"),
        ("v1.1", "pred_match_lstm_ensemble_v1.1.json.xz"),
        ("v2.0", "pred_bert_single_v2.0.json.xz"),
    ],
)
def test_published_predictions_to_the_last_digit(shared_data, version, name):
    questions = read(shared_data(f"squad/squad_{version}_dev.json.xz"), version)
    predictions = json.loads(lzma.decompress(Path(shared_data(f"squad/{name}")).read_bytes()))
    with open(shared_data(f"squad/expected_{version}.json")) as file:
        expected = json.load(file)[name]
    found = squad_answers.evaluate(questions, predictions)
    assert found == expected and list(found) == list(expected)
