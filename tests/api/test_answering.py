"""Answers of a model to inputs as they come."""

import re

import pytest

import gmlp_flax as gf
from gmlp_flax.api import answering
from gmlp_flax.errors import DataError
from gmlp_flax.tasks.inference.prediction import PAUSE, Settings
from gmlp_flax.tasks.inference.sampling import Sampling

SAMPLING = Sampling(tokens=20, temperature=0.0)


def test_ranking(text_run):
    model = gf.load(text_run)
    given = ["A [MASK] b.", "nothing", DataError("line 3 is no text"), "The [MASK]."]
    answers = list(answering.answers(model, given, Settings(top=2)))
    first, unmasked, unread, last = answers
    assert not first.error
    assert unmasked.error
    assert unread.error is given[2]
    assert not last.error
    [[expected]] = model.predict(given[0], top=2)
    [found] = first.predictions
    assert dict(found) == pytest.approx(dict(expected), rel=1e-5)
    for answer in answers:
        assert answer.text is None


def test_texts_are_continued_one_by_one(causal_model):
    """With a line on each, in windows of 16 tokens, and a note on a prompt that is too long."""
    given = ["It", PAUSE, "a [MASK]", DataError("line 3 is no text"), "x" * 50]
    lines = []
    answers = list(answering.answers(causal_model, given, Settings(), SAMPLING, lines.append))
    first, masked, unread, long = answers
    [expected] = causal_model.generate("It", tokens=20, temperature=0.0)
    assert first.text == expected
    assert first.error is None
    assert first.note == ""
    assert masked.text is None
    assert "[MASK]" in str(masked.error)
    assert unread.error is given[3]
    assert "50 tokens" in long.note
    assert len(lines) == 2
    for line in lines:
        assert re.match(r"20 tokens in [\d.]+ s \([\d,]+ a second\); windows of 16 ", line)


def test_inputs_are_read_lazily(causal_model):
    """Into a pipe that nobody closes: an answer comes before the next line is there."""
    asked = []

    def lines():
        for line in ("one", "two"):
            asked.append(line)
            yield line

    found = answering.answers(causal_model, lines(), sampling=SAMPLING)
    assert asked == []
    next(found)
    assert asked == ["one"]
