"""Marks for inputs of a test."""

import pytest

from tests.selection import marked_unless


def test_inputs_keep_their_order_and_get_marks_unless_kept():
    first, kept, last = marked_unless(["b"], ["a", "b", "c"], pytest.mark.slow)
    assert first.values == ("a",)
    assert kept.values == ("b",)
    assert last.values == ("c",)
    assert list(kept.marks) == []
    for parameter in (first, last):
        [mark] = parameter.marks
        assert mark.name == "slow"


def test_unknown_inputs_cannot_be_kept():
    with pytest.raises(AssertionError, match="d"):
        marked_unless(["d"], ["a"], pytest.mark.slow)
