"""Signals to one process. Several processes are tested in tests/runs/test_many_hosts.py."""

import os
import signal

import jax
import pytest

from gmlp_flax.processes.stopping import StopRequest


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signal_is_heard_and_a_second_one_ends_the_process(name):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    with StopRequest() as stop:
        stop.after_step()
        assert stop.agreed is None
        os.kill(os.getpid(), number)
        stop.after_step()
        assert stop.agreed == name
        assert signal.getsignal(number) == signal.SIG_DFL
        stop.after_step()
        assert stop.agreed == name
    assert signal.getsignal(number) == before


def test_votes_are_counted_a_step_later(monkeypatch):
    """As with several processes, of which this one has all devices."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with StopRequest() as stop:
        stop.after_step()
        os.kill(os.getpid(), signal.SIGTERM)
        found = []
        for _ in range(3):
            stop.after_step()
            found.append(stop.agreed)
    assert found == [None, "SIGTERM", "SIGTERM"]
