import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data.finetuning import squad_metrics
from gmlp_flax.data.finetuning.squad import Question
from tests.data.finetuning.squad_files import read


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
    assert squad_metrics.words(answer) == words


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
    assert squad_metrics.score(prediction, references) == (exact, pytest.approx(f1))


QUESTIONS = [question("a", "one two"), question("b", "three"), question("c"), question("d")]


def test_evaluate():
    found = squad_metrics.evaluate(QUESTIONS, {"a": "two", "c": "", "d": "some", "other": "x"})
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
    found = squad_metrics.best_thresholds(QUESTIONS, predicted, odds)

    def at(threshold):
        kept = {name: text if odds[name] <= threshold else "" for name, text in predicted.items()}
        return squad_metrics.evaluate(QUESTIONS, kept)

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
    found = squad_metrics.evaluate(questions, predictions)
    assert found == expected and list(found) == list(expected)
