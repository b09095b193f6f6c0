"""Documents on both sides of a run are counted."""

import pytest

from gmlp_flax.data.text import overlap
from gmlp_flax.data.text.prepare import prepare
from tests.data.text.preparing import corpus, tokenizer

TEXTS = [f"Text {i} of {i * i} words." for i in range(200)]


def prepared(folder, texts, parts=3):
    return prepare(corpus(parts, texts), tokenizer(), folder, workers=1, shard_bytes=1)


@pytest.mark.parametrize("equal", [0, 1, 2, 100])
def test_equal_documents_are_counted(tmp_path, equal):
    train, heldout = prepared(tmp_path / "a", TEXTS[:100]), prepared(tmp_path / "b", TEXTS[100 - equal : 200 - equal])
    note = overlap.note(train, heldout)
    assert bool(note) == (equal > 1), "one per cent is not worth a line"
    if note:
        assert f"{equal} of 100 held-out documents ({equal:.1f}%)" in note and "at 100 of the 100 training" in note


def test_repeated_documents_count_each_time(tmp_path):
    train, heldout = prepared(tmp_path / "a", TEXTS[:50]), prepared(tmp_path / "b", TEXTS[49:52] * 2)
    assert "2 of 6 held-out documents" in overlap.note(train, heldout)


def test_the_work_is_bounded(tmp_path, monkeypatch):
    train, heldout = prepared(tmp_path / "a", TEXTS, 20), prepared(tmp_path / "b", TEXTS, 20)
    monkeypatch.setattr(overlap, "COMPARED", 16)
    monkeypatch.setattr(overlap, "SEARCHED", 32)
    assert "16 of 16 held-out documents (100.0%)" in (note := overlap.note(train, heldout))
    assert "at 32 of the 200 training" in note
    monkeypatch.setattr(overlap, "TOKENS", 16)  # one a shard: no document is so short
    assert overlap.note(train, heldout) == ""
