import sys
import types

import numpy as np

from gmlp_flax.data import embedded
from gmlp_flax.data.embedded import embedded_digits, embedded_text, sentences
from gmlp_flax.errors import DataError
from tests.failures import raised


def replace_manual(monkeypatch, topics):
    module = types.ModuleType("pydoc_data.topics")
    module.topics = topics
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", module)


def test_sentences():
    assert sentences("One  two.\nThree?  Four\n\n   Five: six\n") == [
        "One two.",
        "Three?",
        "Four",
        "Five: six",
    ]


def test_splits_share_no_sentence():
    train, heldout = embedded_text("train"), embedded_text("heldout")
    assert sum(map(len, heldout)) > 20_000
    assert sum(map(len, train)) > 250_000
    shared = {s for text in train for s in sentences(text)} & {
        s for text in heldout for s in sentences(text)
    }
    assert not shared


def test_training_text_keeps_its_layout(monkeypatch):
    heldout = dict.fromkeys(embedded.HELDOUT_TOPICS, "Held  out.")
    replace_manual(monkeypatch, {**heldout, "a": "One.\n   Held out.  Two."})
    assert embedded_text("train") == ["One.\n     Two."]


def test_topics_absent_in_another_python_are_tolerated(monkeypatch):
    replace_manual(
        monkeypatch, {"import": "One.", "calls": "Two.", "execmodel": "Three.", "other": "Four."}
    )
    assert embedded_text("heldout") == ["Two.", "Three.", "One."]
    assert embedded_text("train") == ["Four."]


def test_stripped_python(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert "comes without its manual" in raised(DataError, embedded_text, "train")


def test_digits():
    train, heldout = embedded_digits("train"), embedded_digits("heldout")
    assert (len(train), len(heldout)) == (1415, 382)
    assert train.classes == heldout.classes == tuple("0123456789")
    assert train[0]["image"].shape == (8, 8, 1) and train[0]["image"].dtype == np.uint8
    assert train[3]["label"] == 3 and train[3]["label"].dtype == np.int32
    assert train.images.max() == 255
    assert np.bincount(heldout.labels).min() > 30
    assert (train.path, len(train), len(train.classes)) == ("digits/train", 1415, 10)
