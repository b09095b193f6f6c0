"""The embedded data: Python's manual, and handwritten digits."""

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


def all_sentences(texts) -> set[str]:
    found = set()
    for text in texts:
        found.update(sentences(text))
    return found


def test_sentences_end_at_punctuation_and_blank_lines():
    found = sentences("One  two.\nThree?  Four\n\n   Five: six\n")
    assert found == ["One two.", "Three?", "Four", "Five: six"]


def test_roles_share_no_sentence():
    train = embedded_text("train")
    heldout = embedded_text("heldout")
    assert sum(map(len, heldout)) > 20_000
    assert sum(map(len, train)) > 250_000
    train_sentences = all_sentences(train)
    heldout_sentences = all_sentences(heldout)
    assert not train_sentences & heldout_sentences


def test_training_text_keeps_its_layout(monkeypatch):
    heldout = dict.fromkeys(embedded.HELDOUT_TOPICS, "Held  out.")
    replace_manual(monkeypatch, {**heldout, "a": "One.\n   Held out.  Two."})
    assert embedded_text("train") == ["One.\n     Two."]


def test_topics_with_only_held_out_sentences_are_dropped(monkeypatch):
    heldout = dict.fromkeys(embedded.HELDOUT_TOPICS, "Held out.")
    replace_manual(monkeypatch, {**heldout, "a": "Held out.", "b": "Two."})
    assert embedded_text("train") == ["Two."]


def test_topics_missing_from_another_python_are_tolerated(monkeypatch):
    topics = {"import": "One.", "calls": "Two.", "execmodel": "Three.", "other": "Four."}
    replace_manual(monkeypatch, topics)
    assert embedded_text("heldout") == ["Two.", "Three.", "One."]
    assert embedded_text("train") == ["Four."]


def test_a_missing_manual_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert "pydoc_data" in failure(embedded_text, "train")


def test_digits_have_published_sizes_and_ten_classes():
    train = embedded_digits("train")
    heldout = embedded_digits("heldout")
    assert len(train) == 1415
    assert len(heldout) == 382
    assert train.path == "digits/train"
    assert heldout.path == "digits/heldout"
    for digits in (train, heldout):
        assert digits.classes == tuple("0123456789")
    assert train.labels[:5].tolist() == [0, 1, 2, 3, 4]
    assert train.labels.dtype == np.int32
    assert min(heldout.class_counts()) > 30


def test_digits_are_images_of_bytes():
    train = embedded_digits("train")
    first = train.examples[0]
    assert first["name"] == "image 0"
    assert first["image"].shape == (8, 8, 1)
    assert first["image"].dtype == np.uint8
    assert train.examples.images.max() == 255


def test_roles_share_no_digit():
    train = embedded_digits("train").examples.images
    heldout = embedded_digits("heldout").examples.images
    train_contents = {image.tobytes() for image in train}
    heldout_contents = {image.tobytes() for image in heldout}
    assert not train_contents & heldout_contents
