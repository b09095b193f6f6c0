"""Fixtures of the tests of processes."""

import signal

import pytest


@pytest.fixture(autouse=True)
def no_nohup():
    """Handles SIGHUP by default, because the tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
