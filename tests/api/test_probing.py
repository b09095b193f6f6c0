"""Simple classifiers on frozen features, against slow and obvious ones."""

import numpy as np
import pytest

import gmlp_flax as gf
from gmlp_flax.api import probing
from gmlp_flax.api.probing import Features
from gmlp_flax.data import embedded
from gmlp_flax.errors import UserError
from tests.failures import raised

CLASSES = 3


@pytest.fixture(scope="module")
def clouds():
    """Points around one center for each class, as features that separate the classes: 90 training
    examples and 30 held-out ones."""
    random = np.random.default_rng(0)
    directions = random.normal(size=(CLASSES, 5))
    centers = 4 * directions

    def draw(count):
        labels = np.arange(count) % CLASSES
        noise = random.normal(size=(count, 5))
        states = centers[labels] + noise
        return Features(states.astype(np.float32), labels)

    return draw(90), draw(30)


def test_neighbors_vote_by_similarity(clouds):
    train, heldout = clouds
    train_norms = np.linalg.norm(train.states, axis=1)
    hits = 0
    rows = zip(heldout.states, heldout.labels, strict=True)
    for row, label in rows:
        norms = train_norms * np.linalg.norm(row)
        similarity = train.states @ row / norms
        order = np.argsort(-similarity)
        nearest = order[: probing.NEIGHBOURS]
        votes = np.zeros(CLASSES)
        for index in nearest:
            neighbor = train.labels[index]
            neighbor_similarity = similarity[index] / 0.07
            votes[neighbor] += np.exp(neighbor_similarity)
        if np.argmax(votes) == label:
            hits += 1
    expected = hits / len(heldout.labels)
    scores = probing.nearest_neighbours(train, heldout)
    assert scores == {"accuracy": pytest.approx(expected)}


def test_fewer_examples_than_neighbors(clouds):
    train, heldout = clouds
    few = Features(train.states[:6], train.labels[:6])
    scores = probing.nearest_neighbours(few, heldout)
    assert scores["accuracy"] > 0.8


@pytest.mark.parametrize("kind", probing.KINDS)
def test_probes_learn_separable_classes_and_nothing_from_noise(clouds, kind):
    classifier = probing.KINDS[kind]
    train, heldout = clouds
    scores = classifier(train, heldout)
    assert max(scores.values()) > 0.9
    rng = np.random.default_rng(1)
    numbers = rng.normal(size=(120, 5))
    noise = numbers.astype(np.float32)
    train_noise = Features(noise[:90], train.labels)
    heldout_noise = Features(noise[90:], heldout.labels)
    scores = classifier(train_noise, heldout_noise)
    assert max(scores.values()) < 0.7


def test_linear_classifier_does_not_depend_on_feature_scale(clouds):
    train, heldout = clouds
    scaled_states = 100 * train.states + 7
    scaled_train = Features(scaled_states, train.labels)
    scaled_heldout_states = 100 * heldout.states + 7
    scaled_heldout = Features(scaled_heldout_states, heldout.labels)
    scores = probing.linear(scaled_train, scaled_heldout)
    assert scores == probing.linear(train, heldout)


@pytest.mark.parametrize(
    ("examples", "shots"),
    [
        (90, (1, 5, 10, 25)),
        (18, (1, 5)),
        (3, (1,)),
    ],
)
def test_few_shots_are_limited_by_the_smallest_class(clouds, examples, shots):
    train, heldout = clouds
    states = train.states[:examples]
    labels = train.labels[:examples]
    few = Features(states, labels)
    scores = probing.few_shots(few, heldout)
    names = [f"accuracy_{count}" for count in shots]
    assert list(scores) == names


def test_model_with_other_classes_is_probed(image_run):
    digits = embedded.embedded_digits("heldout")
    images = digits.examples.images
    parities = digits.labels % 2
    names = np.array(["even", "odd"])[parities]
    model = gf.load(image_run)
    train = (images[:60], names[:60])
    test = (images[60:90], names[60:90])
    data = {"train": train, "test": test}
    shots = {"accuracy_1", "accuracy_5", "accuracy_10", "accuracy_25"}
    names_of_kinds = {"knn": {"accuracy"}, "linear": {"accuracy"}, "fewshot": shots}
    for kind, expected in names_of_kinds.items():
        scores = gf.probe(model, data, kind=kind)
        assert scores.pop("examples") == 30
        assert scores.keys() == expected
        for value in scores.values():
            assert 0 <= value <= 1


def test_language_model_is_probed_on_labelled_texts(text_run):
    """There are fewer texts than channels, so that a linear classifier separates any two classes. The
    held-out texts have the same words in the same positions."""
    train = []
    heldout = []
    for number in range(4):
        for word in ("call", "name"):
            train.append((f"{word} {number}", word))
            heldout.append((f"{word}  {number}", word))
    data = {"train": train, "heldout": heldout}
    model = gf.load(text_run)
    scores = gf.probe(model, data, kind="linear", batch_size=3)
    assert scores == {"accuracy": 1.0, "examples": 8}


IMAGES = np.zeros((8, 8, 8, 1), np.uint8)
LABELLED = (IMAGES, [0, 1] * 4)


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (LABELLED, {"kind": "svm"}, "kind is 'svm'"),
        (LABELLED, {"pool": None}, "pool is None"),
        (LABELLED, {"layers": (9,)}, "layers is (9,)"),
        (LABELLED, {"batch_size": 0}, "batch_size is 0"),
        ((IMAGES, ["cat"] * 8), {}, "the class 'cat' alone"),
        ([*IMAGES], {}, "no label"),
        ({"train": IMAGES, "test": IMAGES}, {}, "no label"),
        (3, {}, "the data are 3"),
    ],
)
def test_user_errors_are_one_line(image_run, data, options, words):
    model = gf.load(image_run)
    message = raised(UserError, gf.probe, model, data, **options)
    assert words in message


def test_models_without_features_are_refused():
    assert "'digits'" in raised(UserError, gf.probe, "digits", LABELLED)
    sizes = {"layers": 1, "d_model": 8, "d_ffn": 16, "length": 16, "vocab_size": 50}
    bare = gf.create("gmlp_base", **sizes)
    message = raised(UserError, gf.probe, bare, [("A", 1)])
    assert "tokenizer" in message
