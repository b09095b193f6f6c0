"""Hidden: Orbax's reports of errors that it also raises. Shown: everything of ours."""

import logging as std_logging
import sys
import types

import pytest
from absl import logging

from gmlp_flax.processes import log_filter


@pytest.fixture
def shown(monkeypatch):
    """The exceptions that the hook passes on."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    filtered = logging.get_absl_handler(), logging.get_absl_logger()
    before = [list(each.filters) for each in filtered]
    for each in filtered:
        each.filters.clear()
    log_filter.install()
    yield found
    for each, filters in zip(filtered, before, strict=True):
        each.filters[:] = filters


@pytest.mark.parametrize(
    ("name", "path", "kept"),
    [
        ("absl", "/env/site-packages/orbax/checkpoint/handlers.py", False),
        ("asyncio", "/usr/lib/python3/asyncio/base_events.py", False),
        ("absl", "/home/orbax/gmlp_flax/training/checkpoint.py", True),
    ],
)
@pytest.mark.usefixtures("shown")
def test_records(name, path, kept):
    record = std_logging.LogRecord(name, std_logging.ERROR, path, 1, "words", (), None)
    assert bool(logging.get_absl_handler().filter(record)) == kept
    assert bool(logging.get_absl_logger().filter(record)) == kept  # where there is no handler, as in a notebook


def unraisable(path: str, error: Exception) -> types.SimpleNamespace:
    code = types.SimpleNamespace(co_filename=path)
    return types.SimpleNamespace(object=types.SimpleNamespace(cr_code=code), exc_value=error)


def test_exceptions_that_no_one_can_catch(shown):
    orbax = unraisable("/env/orbax/checkpoint/async.py", ValueError("flipped"))
    late = unraisable("/ours.py", RuntimeError("Event loop is closed"))
    ours = unraisable("/ours.py", ValueError("flipped"))
    for each in (orbax, late, ours):
        sys.unraisablehook(each)
    assert shown == [ours]
