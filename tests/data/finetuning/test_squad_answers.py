import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_flax.data.finetuning import squad_answers, squad_windows
from gmlp_flax.data.finetuning.squad import Question
from gmlp_flax.data.finetuning.squad_answers import CERTAIN, Answer, SpanScores
from gmlp_flax.data.finetuning.squad_windows import Windows

PASSAGE = "A class is an object , and an object is  a class ; the name of a class is bound in the scope 日本 of it ."


def top(logits, n_best):
    """The results of the device for scores, float [2, windows, tokens]."""
    places = np.argsort(-logits, axis=-1, kind="stable")[..., :n_best]
    scores = np.take_along_axis(logits, places, -1)
    return SpanScores(scores[0], places[0], scores[1], places[1], logits[0, :, 0] + logits[1, :, 0])


def questions(*texts):
    return [Question(f"q{i}", "title", text, "what is a class ?", ((text[:1], 0),)) for i, text in enumerate(texts)]


def slow_answers(windows, logits, tokenizer, number, n_best, max_answer):
    """By the rules, one span after another."""
    context = windows.questions[number].context
    spans = tokenizer.encode_with_offsets(context)[1]
    members = list(windows.of_question(number))
    owner = squad_windows.widest_context(windows.begin[members], windows.size[members], len(spans))
    found = []
    for row, i in enumerate(members):
        tokens, segments = (windows[i][name] for name in ("tokens", "segments"))
        passage = [place for place in np.flatnonzero(segments) if place < max(np.flatnonzero(segments))]
        assert [*tokens[passage]] == tokenizer.encode(context)[windows.begin[i] : windows.begin[i] + windows.size[i]]
        starts, ends = (np.argsort(-side[i], kind="stable")[:n_best] for side in logits)
        for start in starts:
            for end in ends:
                if start not in passage or end not in passage or end < start or end - start >= max_answer:
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


@given(st.integers(0, 10**6), st.sampled_from([14, 20, 60]), st.integers(2, 6), st.integers(1, 9), st.integers(1, 12))
@settings(max_examples=60)
def test_against_a_slow_reference(tokenizer, seed, length, stride, n_best, max_answer):
    asked = questions(PASSAGE, "class", PASSAGE[:40])
    windows = Windows(asked, tokenizer, length=length, stride=stride, max_query=8)
    # Integers, so that there are ties.
    logits = np.random.default_rng(seed).integers(-6, 6, (2, len(windows), length)).astype(np.float32)
    found = squad_answers.find_answers(windows, top(logits, n_best), n_best=n_best, max_answer=max_answer)
    for number in range(len(asked)):
        expected = slow_answers(windows, logits, tokenizer, number, n_best, max_answer)
        assert [tuple(answer) for answer in found[number]] == expected
    nulls = squad_answers.null_scores(windows, logits[:, :, 0].sum(0))
    assert nulls.tolist() == [min(logits[:, list(windows.of_question(i)), 0].sum(0)) for i in range(3)]


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
    assert squad_answers.predictions(ASKED, FOUND, odds, 0.5) == {"q0": "one", "q1": "three", "q2": ""}
    assert squad_answers.predictions(ASKED, FOUND, odds, -2.5) == {"q0": "", "q1": "", "q2": ""}


def test_n_best_lists():
    lists = squad_answers.n_best_lists(ASKED, FOUND)
    assert [entry["text"] for entry in lists["q0"]] == ["one", "two"] and lists["q2"] == [
        {"text": "", "probability": 1.0, "score": 0.0}
    ]
    assert lists["q0"][0]["probability"] == pytest.approx(np.e / (np.e + 1)) and lists["q0"][1]["score"] == 2.0
    lists = squad_answers.n_best_lists(ASKED, FOUND, NULLS)
    assert [entry["text"] for entry in lists["q1"]] == ["", "three"]
    assert sum(entry["probability"] for entry in lists["q0"]) == pytest.approx(1)
