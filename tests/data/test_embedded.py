"""The text of Python's manual, and the digits that come with the package."""

import sys
import types

import numpy as np

from gmlp_flax.data import embedded
from gmlp_flax.data.embedded import embedded_digits, embedded_text, sentences
from tests.failures import failure


def replace_manual(monkeypatch, topics):
    """Makes `topics` the manual that Python ships."""
    module = types.ModuleType("pydoc_data.topics")
    module.topics = topics
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", module)


def test_sentences():
    found = sentences("One  two.\nThree?  Four\n\n   Five: six\n")
    assert found == ["One two.", "Three?", "Four", "Five: six"]


def test_roles_share_no_sentence():
    train = embedded_text("train")
    heldout = embedded_text("heldout")
    assert sum(map(len, heldout)) > 20_000
    assert sum(map(len, train)) > 250_000
    train_sentences = {sentence for text in train for sentence in sentences(text)}
    heldout_sentences = {sentence for text in heldout for sentence in sentences(text)}
    assert not train_sentences & heldout_sentences


def test_training_text_keeps_its_layout(monkeypatch):
    heldout = dict.fromkeys(embedded.HELDOUT_TOPICS, "Held  out.")
    replace_manual(monkeypatch, {**heldout, "a": "One.\n   Held out.  Two."})
    assert embedded_text("train") == ["One.\n     Two."]


def test_a_topic_of_nothing_but_held_out_sentences_goes(monkeypatch):
    heldout = dict.fromkeys(embedded.HELDOUT_TOPICS, "Held out.")
    replace_manual(monkeypatch, {**heldout, "a": "Held out.", "b": "Two."})
    assert embedded_text("train") == ["Two."]


def test_topics_absent_in_another_python_are_tolerated(monkeypatch):
    topics = {"import": "One.", "calls": "Two.", "execmodel": "Three.", "other": "Four."}
    replace_manual(monkeypatch, topics)
    assert embedded_text("heldout") == ["Two.", "Three.", "One."]
    assert embedded_text("train") == ["Four."]


def test_a_python_without_its_manual(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert "pydoc_data" in failure(embedded_text, "train")


def test_digits():
    train = embedded_digits("train")
    heldout = embedded_digits("heldout")
    assert len(train) == 1415
    assert len(heldout) == 382
    assert train.classes == heldout.classes == tuple("0123456789")
    assert train.path == "digits/train"
    assert heldout.path == "digits/heldout"
    first = train.examples[0]
    assert first["image"].shape == (8, 8, 1)
    assert first["image"].dtype == np.uint8
    assert first["name"] == "image 0"
    assert train.labels[:5].tolist() == [0, 1, 2, 3, 4]
    assert train.labels.dtype == np.int32
    assert train.examples.images.max() == 255
    assert min(heldout.class_counts()) > 30


def test_roles_share_no_digit():
    train = embedded_digits("train").examples.images
    heldout = embedded_digits("heldout").examples.images
    contents = {image.tobytes() for image in train}
    assert not contents & {image.tobytes() for image in heldout}
