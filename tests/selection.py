"""Marks for inputs of a test that run only with the slow or nightly tests."""

from collections.abc import Collection, Iterable

import pytest


def marked_unless(kept: Collection[str], inputs: Iterable[str], mark: pytest.MarkDecorator) -> list:
    """The inputs of a parametrized test in their order. Those that are not kept have the mark `slow`
    or `nightly`, because they repeat a long test."""
    inputs = list(inputs)
    unknown = set(kept).difference(inputs)
    assert not unknown, unknown
    parameters = []
    for name in inputs:
        marks = () if name in kept else mark
        parameters.append(pytest.param(name, marks=marks))
    return parameters
