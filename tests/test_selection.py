import pytest

from tests.selection import marked_unless


def test_inputs_keep_their_order_and_the_others_are_marked():
    parameters = marked_unless(["b"], ["a", "b", "c"], pytest.mark.slow)
    assert [parameter.values for parameter in parameters] == [("a",), ("b",), ("c",)]
    names = [[mark.name for mark in parameter.marks] for parameter in parameters]
    assert names == [["slow"], [], ["slow"]]


def test_an_input_that_is_not_there_cannot_be_kept():
    with pytest.raises(AssertionError, match="d"):
        marked_unless(["d"], ["a"], pytest.mark.slow)
