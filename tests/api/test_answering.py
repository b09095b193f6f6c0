"""Answers of a model to a stream of inputs."""

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
    bad_line = DataError("line 3 is not text")
    inputs = ["A [MASK] b.", "nothing", bad_line, "The [MASK]."]
    answers = list(answering.answers(model, inputs, Settings(top=2)))
    first, unmasked, unread, last = answers
    assert not first.error
    assert unmasked.error
    assert unread.error is bad_line
    assert not last.error
    [[expected]] = model.predict(inputs[0], top=2)
    [found] = first.predictions
    assert dict(found) == pytest.approx(dict(expected), rel=1e-5)
    for answer in answers:
        assert answer.text is None


def test_texts_are_continued_one_by_one(causal_model):
    """Each has a line about its speed, in windows of 16 tokens; a prompt that is too long has a note."""
    bad_line = DataError("line 3 is not text")
    inputs = ["It", PAUSE, "a [MASK]", bad_line, "x" * 50]
    lines = []
    answers = list(answering.answers(causal_model, inputs, Settings(), SAMPLING, lines.append))
    first, masked, unread, long = answers
    [expected] = causal_model.generate("It", tokens=20, temperature=0.0)
    assert first.text == expected
    assert first.error is None
    assert first.note == ""
    assert masked.text is None
    assert "[MASK]" in str(masked.error)
    assert unread.error is bad_line
    assert "50 tokens" in long.note
    assert len(lines) == 2
    for line in lines:
        assert re.match(r"20 tokens in [\d.]+ s \([\d,]+ a second\); windows of 16 ", line)


def test_inputs_are_read_lazily(causal_model):
    """As from a pipe that stays open: an answer comes before the next line is available."""
    read = []

    def lines():
        for line in ("one", "two"):
            read.append(line)
            yield line

    answers = answering.answers(causal_model, lines(), sampling=SAMPLING)
    assert read == []
    next(answers)
    assert read == ["one"]
