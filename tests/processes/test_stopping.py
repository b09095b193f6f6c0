"""Signals to one process. Several processes are tested in tests/runs/test_many_hosts.py."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor

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


def a_result() -> jax.Array:
    """As a training step returns it."""
    return jax.device_put(jnp.zeros(()), Partition.make().replicated)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"])
def test_signal_is_heard_also_if_it_comes_twice(name):
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
    before = signal.getsignal(signal.SIGTERM)
    closed = []
    with pytest.raises(Terminated), terminable():
        with stop_request() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            stop.after_step(a_result())
            assert stop.agreed == "SIGTERM"
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            closed.append(True)
    assert closed
    assert signal.getsignal(signal.SIGTERM) == before


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


def test_what_nohup_ignores_stays_ignored():
    seen = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with handle(STOPPING, lambda number, _: seen.append(number)):
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
    assert seen == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_in_a_thread_signals_stay_as_they_are():
    def run():
        with handle(STOPPING, print):
            return [signal.getsignal(name) for name in STOPPING]

    with ThreadPoolExecutor(1) as pool:
        expected = [signal.getsignal(name) for name in STOPPING]
        assert pool.submit(run).result() == expected


@pytest.mark.parametrize(("same", "ends"), [(600, False), (0.1, True)])
def test_a_request_that_comes_twice_is_one_and_a_later_one_ends_the_process(same, ends):
    """A process that hangs too."""
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


def test_hang_dumps_stacks_and_ends():
    done = run(
        0.5, "def a_step_that_hangs():\n  time.sleep(50)\nwatchdog.alive()\na_step_that_hangs()"
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Timeout (0:00:00.500000)!\n")
    assert "in a_step_that_hangs" in done.stderr


def test_hang_before_the_first_step_ends_too():
    rest = "import gmlp_flax.processes.stopping as w\nw.BEGINNING = 0.5\nwatchdog.begin()\ntime.sleep(50)"
    done = run(0.2, rest)
    assert done.returncode == 1
    assert done.stderr.startswith("Timeout (0:00:00.500000)!\n")


def test_the_clock_starts_with_an_hour_goes_on_and_stops(monkeypatch):
    set_to = []
    now = [0.0]
    clock = types.SimpleNamespace(
        dump_traceback_later=lambda seconds, **_: set_to.append(seconds),
        cancel_dump_traceback_later=lambda: set_to.append("stopped"),
    )
    monkeypatch.setattr(stopping, "faulthandler", clock)
    monkeypatch.setattr(stopping, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    dog = stopping.Watchdog(100.0)
    assert set_to == []  # before the first step is compiled
    dog.begin()
    for now[0] in (0.0, 0.5, 2.0):  # a step as short as the second does not set it anew
        dog.alive()
    dog.close()
    assert set_to == [3600.0, 100.0, 100.0, "stopped"]
    off = stopping.Watchdog(0)
    for call in (off.begin, off.alive, off.close):
        call()
    assert len(set_to) == 4
