"""Signals to one process. Several processes are in tests/runs/test_many_hosts.py."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from gmlp_flax.processes import stopping
from gmlp_flax.processes.stopping import STOPPING, StopRequest, Terminated, handle, terminable
from gmlp_flax.training.partition import Partition

STUCK = """
import ctypes, signal
from gmlp_flax.processes import stopping
stopping.SAME = {same}

def stop(number, _):
    stopping.end_on_the_next(number)
    print("asked", flush=True)

with stopping.handle(stopping.STOPPING, stop):
    print("ready", flush=True)
    signal.pause()
    ctypes.CDLL(None).sleep(60)  # holds the main thread, in which Python's handlers would run
"""
START = "import time\nfrom gmlp_flax.processes.stopping import Watchdog\nwatchdog = Watchdog({seconds})\n"


@contextlib.contextmanager
def stop_request():
    stop = StopRequest()
    with handle(STOPPING, stop.on_signal):
        yield stop


def step_result() -> jax.Array:
    """A result like those of training steps."""
    partition = Partition.make()
    return jax.device_put(jnp.zeros(()), partition.replicated)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"])
def test_signals_request_a_stop_once(name):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    with stop_request() as stop:
        stop.after_step(step_result())
        assert stop.agreed is None
        os.kill(os.getpid(), number)
        stop.after_step(step_result())
        assert stop.agreed == name
        os.kill(os.getpid(), number)
        stop.after_step(step_result())
        assert stop.agreed == name
    assert signal.getsignal(number) == before


def test_signals_before_the_loop_raise_an_exception():
    """`StopRequest` replaces this handler inside its context."""
    before = signal.getsignal(signal.SIGTERM)
    closed = []
    with pytest.raises(Terminated), terminable():
        with stop_request() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            stop.after_step(step_result())
            assert stop.agreed == "SIGTERM"
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            closed.append(True)
    assert closed
    assert signal.getsignal(signal.SIGTERM) == before


def test_votes_are_counted_a_step_later(monkeypatch):
    """With several processes, of which this one has all devices."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with stop_request() as stop:
        stop.after_step(step_result())
        os.kill(os.getpid(), signal.SIGTERM)
        found = []
        for _ in range(3):
            stop.after_step(step_result())
            found.append(stop.agreed)
    assert found == [None, "SIGTERM", "SIGTERM"]


def test_a_vote_waits_for_the_step(monkeypatch):
    """Otherwise, an error of the step would appear in another process in the vote of the next."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    result = step_result()
    with stop_request() as stop:
        result.delete()
        with pytest.raises((RuntimeError, ValueError), match="deleted"):
            stop.after_step(result)


def test_signals_ignored_by_nohup_stay_ignored():
    seen = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with handle(STOPPING, lambda number, _: seen.append(number)):
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
    assert seen == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_threads_do_not_change_signal_handlers():
    def handlers():
        return [signal.getsignal(number) for number in STOPPING]

    def handlers_inside():
        with handle(STOPPING, print):
            return handlers()

    before = handlers()
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(handlers_inside).result()
    assert inside == before


@pytest.mark.parametrize(("same", "ends"), [(600, False), (0.1, True)])
def test_repeated_signals_are_one_request_and_a_later_one_ends_the_process(same, ends):
    """Even if the process hangs."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK.format(same=same)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"
    for _ in range(2000 if ends else 4):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
    process.kill()
    assert process.communicate()[0] == ""
    assert process.returncode == -(signal.SIGTERM if ends else signal.SIGKILL)


def run(seconds: float, rest: str) -> subprocess.CompletedProcess:
    code = START.format(seconds=seconds) + rest
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_hanging_steps_dump_their_stacks_and_end():
    hanging = "def a_step_that_hangs():\n  time.sleep(50)\nwatchdog.alive()\na_step_that_hangs()"
    done = run(0.5, hanging)
    assert done.returncode == 1
    assert done.stderr.startswith("Timeout (0:00:00.500000)!\n")
    assert "in a_step_that_hangs" in done.stderr


def test_hanging_before_the_first_step_ends_too():
    rest = "import gmlp_flax.processes.stopping as w\nw.BEGINNING = 0.5\nwatchdog.begin()\ntime.sleep(50)"
    done = run(0.2, rest)
    assert done.returncode == 1
    assert done.stderr.startswith("Timeout (0:00:00.500000)!\n")


def test_the_watchdog_allows_an_hour_for_the_first_step(monkeypatch):
    timeouts = []
    handler = mock.Mock(spec=["dump_traceback_later", "cancel_dump_traceback_later"])
    handler.dump_traceback_later = lambda seconds, **_: timeouts.append(seconds)
    handler.cancel_dump_traceback_later = lambda: timeouts.append("stopped")
    clock = mock.Mock(spec=["monotonic"])
    clock.monotonic.return_value = 0.0
    monkeypatch.setattr(stopping, "faulthandler", handler)
    monkeypatch.setattr(stopping, "time", clock)
    dog = stopping.Watchdog(100.0)
    assert timeouts == []  # before the first step is compiled
    dog.begin()
    for time_of_step in (0.0, 0.5, 2.0):  # the second step is too short to set it again
        clock.monotonic.return_value = time_of_step
        dog.alive()
    dog.close()
    assert timeouts == [3600.0, 100.0, 100.0, "stopped"]
    off = stopping.Watchdog(0)
    off.begin()
    off.alive()
    off.close()
    assert len(timeouts) == 4
