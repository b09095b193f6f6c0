"""Signals to one process. Several processes are tested in tests/runs/test_many_hosts.py."""

import contextlib
import os
import signal

import jax
import jax.numpy as jnp
import pytest

from gmlp_flax.processes import signals
from gmlp_flax.processes.stopping import StopRequest, Terminated, terminable
from gmlp_flax.training.partition import Partition


@contextlib.contextmanager
def stop_request():
    stop = StopRequest()
    with signals.handle(signals.STOPPING, stop.on_signal):
        yield stop


def a_result() -> jax.Array:
    """As a training step returns it."""
    return jax.device_put(jnp.zeros(()), Partition.make().replicated)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_signal_is_heard_also_if_it_comes_twice(name):
    """A later one ends the process: tests/processes/test_signals.py."""
    number = getattr(signal, name)
    before = signal.getsignal(number)
    with stop_request() as stop:
        stop.after_step(a_result())
        assert stop.agreed is None
        os.kill(os.getpid(), number)
        stop.after_step(a_result())
        assert stop.agreed == name
        os.kill(os.getpid(), number)
        stop.after_step(a_result())
        assert stop.agreed == name
    assert signal.getsignal(number) == before


def test_before_the_loop_a_signal_ends_what_runs_as_an_exception_does():
    """And `StopRequest`, inside, takes over."""
    before, closed = signal.getsignal(signal.SIGTERM), []
    with pytest.raises(Terminated), terminable():
        with stop_request() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            stop.after_step(a_result())
            assert stop.agreed == "SIGTERM"
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            closed.append(True)
    assert closed and signal.getsignal(signal.SIGTERM) == before


def test_votes_are_counted_a_step_later(monkeypatch):
    """As with several processes, of which this one has all devices."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with stop_request() as stop:
        stop.after_step(a_result())
        os.kill(os.getpid(), signal.SIGTERM)
        found = []
        for _ in range(3):
            stop.after_step(a_result())
            found.append(stop.agreed)
    assert found == [None, "SIGTERM", "SIGTERM"]


def test_a_vote_waits_for_the_step(monkeypatch):
    """What fails in the step would otherwise come to a neighbour as the vote of the next one."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    result = a_result()
    with stop_request() as stop:
        result.delete()
        with pytest.raises((RuntimeError, ValueError), match="deleted"):
            stop.after_step(result)
