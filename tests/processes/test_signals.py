import os
import signal

import pytest

from gmlp_flax.processes.signals import STOPPING, handled


@pytest.fixture(autouse=True)
def no_nohup():
    """These tests may run under it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", STOPPING)
def test_a_signal_is_handled_inside_alone(name):
    seen, before = [], signal.getsignal(name)
    with handled(STOPPING, lambda number, _: seen.append(number)):
        os.kill(os.getpid(), name)
    assert seen == [name] and signal.getsignal(name) == before


def test_what_nohup_ignores_stays_ignored():
    before, seen = signal.signal(signal.SIGHUP, signal.SIG_IGN), []
    try:
        with handled(STOPPING, lambda number, _: seen.append(number)):
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM] and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
