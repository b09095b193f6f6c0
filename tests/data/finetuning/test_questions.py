import pickle

import numpy as np
import pytest

from gmlp_flax.data.finetuning import questions
from gmlp_flax.data.finetuning.questions import Question, Questions
from gmlp_flax.io.records import BadRecord
from tests.failures import raised

PARIS = Question("q1", "Capitals", "Paris is.", "What is?", (("Paris", 0), ("is", 6)))
NOWHERE = PARIS._replace(id="q2", answers=())


@pytest.mark.parametrize(
    ("change", "version"),
    [
        ({}, "v1.1"),
        ({}, "v2.0"),
        ({"answers": ()}, "v2.0"),
        ({"title": ""}, "v1.1"),
        ({"id": ""}, "v1.1"),
        ({"context": " \ud83d ü", "answers": (("ü", 3), ("\ud83d", 1), (" \ud83d ", 0))}, "v1.1"),
    ],
)
def test_valid_questions_are_accepted(change, version):
    questions.check(PARIS._replace(**change), version)


@pytest.mark.parametrize(
    ("change", "version", "key"),
    [
        ({"context": "\n\u2003"}, "v1.1", "context"),
        ({"question": ""}, "v2.0", "question"),
        ({"answers": ()}, "v1.1", "v2.0"),
        ({"answers": ((" ", 5),)}, "v1.1", "empty answer"),
        ({"answers": (("", 0),)}, "v1.1", "empty answer"),
        ({"answers": (("Paris", 0), ("is", 7))}, "v1.1", "'is'"),
        ({"answers": (("is.", -3),)}, "v1.1", "-3"),
        ({"answers": (("Paris", 9),)}, "v1.1", "9"),
    ],
)
def test_invalid_questions_are_refused(change, version, key):
    question = PARIS._replace(**change)
    message = raised(BadRecord, questions.check, question, version)
    assert key in message


def test_questions_without_an_answer_are_impossible():
    assert NOWHERE.impossible
    assert not PARIS.impossible


def test_passages_are_held_out_by_title():
    """A passage with two titles is held out by the first, one without a title by its text."""
    second_title = PARIS._replace(id="q3", title="Towns")
    untitled = PARIS._replace(id="q4", title="", context="\ud83d")
    questions_of_source = [PARIS, NOWHERE, second_title, untitled]
    source = pickle.loads(pickle.dumps(Questions(questions_of_source)))
    assert len(source) == 4
    assert source[2] == second_title
    keys = [source.key(index) for index in range(4)]
    assert keys == ["Capitals", "Capitals", "Capitals", "\ud83d"]
    assert source.content(0) == f"Paris is.\n{PARIS.question}".encode()
    assert source.content(3).startswith(b"\xed\xa0\xbd\n")
    assert source.size(0) == 9 + len(PARIS.question)
    part = source.take(np.array([3, 0]))
    assert part.questions == [untitled, PARIS]


def test_fingerprints_depend_on_every_field_and_the_order():
    original = Questions([PARIS, NOWHERE]).fingerprint((), None)
    assert original == Questions([PARIS, NOWHERE]).fingerprint(("a",), np.zeros(2))
    assert original["questions"] == 2
    changes = [
        {"id": "q5"},
        {"title": "Towns"},
        {"context": "Paris is"},
        {"question": "What?"},
        {"answers": PARIS.answers[:1]},
    ]
    for change in changes:
        changed = Questions([PARIS._replace(**change), NOWHERE])
        assert changed.fingerprint((), None) != original
    assert Questions([NOWHERE, PARIS]).fingerprint((), None) != original
