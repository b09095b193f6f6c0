import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gmlp_flax.processes.signals import STOPPING, handle

STUCK = """
import ctypes, signal
from gmlp_flax.processes import signals
signals.SAME = {same}

def stop(number, _):
    signals.end_on_the_next(number)
    print("asked", flush=True)

with signals.handle(signals.STOPPING, stop):
    print("ready", flush=True)
    signal.pause()
    ctypes.CDLL(None).sleep(60)  # holds the main thread, in which Python's handlers would run
"""


def test_what_nohup_ignores_stays_ignored():
    seen = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with handle(STOPPING, lambda number, _: seen.append(number)):
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
    assert seen == [signal.SIGTERM] and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_in_a_thread_signals_stay_as_they_are():
    def run():
        with handle(STOPPING, print):
            return [signal.getsignal(name) for name in STOPPING]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run).result() == [signal.getsignal(name) for name in STOPPING]


@pytest.mark.parametrize(("same", "ends"), [(600, False), (0.1, True)])
def test_a_request_that_comes_twice_is_one_and_a_later_one_ends_the_process(same, ends):
    """A process that hangs too."""
    process = subprocess.Popen([sys.executable, "-c", STUCK.format(same=same)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"
    for _ in range(2000 if ends else 4):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
    process.kill()
    assert process.communicate()[0] == "" and process.returncode == -(signal.SIGTERM if ends else signal.SIGKILL)
