"""Which inputs of a test run for each change, and which only when all tests are asked for."""

from collections.abc import Collection, Iterable

import pytest


def marked_unless(kept: Collection[str], inputs: Iterable[str], mark: pytest.MarkDecorator) -> list:
    """The inputs of a parametrized test, in their order. Those that are not kept have the mark
    `slow` or `nightly`, because they repeat a test that takes long."""
    inputs = list(inputs)
    unknown = set(kept).difference(inputs)
    assert not unknown, unknown
    return [
        pytest.param(name) if name in kept else pytest.param(name, marks=mark) for name in inputs
    ]
