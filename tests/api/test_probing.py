"""Simple classifiers on frozen features, against slow and obvious ones."""

import numpy as np
import pytest

import gmlp_flax as gf
from gmlp_flax.api import runs
from gmlp_flax.data import embedded
from gmlp_flax.errors import DataError, RunError
from tests.failures import raised

CLASSES = 3


@pytest.fixture(scope="module")
def clouds():
    """Points around one centre for each class: features that tell classes apart, and those that
    tell nothing."""
    random = np.random.default_rng(0)
    centres = 4 * random.normal(size=(CLASSES, 5))

    def side(count):
        labels = np.arange(count) % CLASSES
        return np.float32(centres[labels] + random.normal(size=(count, 5))), labels

    return side(90), side(30)


def test_neighbours_vote_by_their_similarity(clouds):
    (x, y), (test, labels) = clouds
    right = 0
    for row, label in zip(test, labels, strict=True):
        similarity = x @ row / np.linalg.norm(x, axis=1) / np.linalg.norm(row)
        nearest = np.argsort(-similarity)[: runs.NEIGHBOURS]
        votes = [
            sum(np.exp(similarity[i] / 0.07) for i in nearest if y[i] == one)
            for one in range(CLASSES)
        ]
        right += np.argmax(votes) == label
    assert runs.nearest_neighbours(*clouds) == {"accuracy": pytest.approx(right / len(labels))}


def test_all_learn_what_can_be_learned_and_nothing_else(clouds):
    (x, y), (test, labels) = clouds
    noise = np.random.default_rng(1).normal(size=(120, 5)).astype(np.float32)
    for classifier in runs.KINDS.values():
        scores = classifier((x, y), (test, labels))
        assert max(scores.values()) > 0.9
        assert max(classifier((noise[:90], y), (noise[90:], labels)).values()) < 0.7


def test_the_linear_classifier_does_not_depend_on_the_scale_of_features(clouds):
    (x, y), (test, labels) = clouds
    scores = runs.linear((100 * x + 7, y), (100 * test + 7, labels))
    assert scores == runs.linear((x, y), (test, labels))


def test_few_shots_are_those_that_each_class_has(clouds):
    (x, y), heldout = clouds
    assert [*runs.few_shots((x, y), heldout)] == [
        "accuracy_1",
        "accuracy_5",
        "accuracy_10",
        "accuracy_25",
    ]
    assert [*runs.few_shots((x[:18], y[:18]), heldout)] == ["accuracy_1", "accuracy_5"]


def test_a_model_of_other_classes_is_probed(image_run):
    digits = embedded.embedded_digits("heldout")
    names = np.array(["even", "odd"])[digits.labels % 2]
    model = gf.load(image_run)
    data = {"train": (digits.images[:60], names[:60]), "test": (digits.images[60:90], names[60:90])}
    scores = {kind: gf.probe(model, data, kind=kind) for kind in ("knn", "linear", "fewshot")}
    assert all(
        one.pop("examples") == 30 and all(0 <= value <= 1 for value in one.values())
        for one in scores.values()
    )
    assert scores["fewshot"].keys() == {"accuracy_1", "accuracy_5", "accuracy_10", "accuracy_25"}
    assert "kind is 'svm'" in raised(RunError, gf.probe, model, data, kind="svm")
    assert "label None" in raised(
        DataError, gf.probe, model, {"train": digits.images[:4], "test": digits.images[:4]}
    )


def test_a_language_model_is_probed_on_labelled_texts(text_run):
    texts = [(f"{word} {i}", word) for i in range(4) for word in ("call", "name")]
    # The same texts on both sides, fewer than channels: a linear classifier separates them,
    # whatever was learned.
    scores = gf.probe(
        gf.load(text_run), {"train": texts, "heldout": texts}, kind="linear", batch_size=3
    )
    assert scores == {"accuracy": 1.0, "examples": 8}
