"""Fixtures of the tests of processes."""

import signal

import pytest


@pytest.fixture(autouse=True)
def no_nohup():
    """These tests may run under it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
