import os
import signal
import subprocess
import sys
import time

from gmlp_flax.processes.signals import SAME, STOPPING, handle

STUCK = """
import ctypes, signal
from gmlp_flax.processes import signals

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


def test_a_request_that_comes_twice_is_one_and_a_later_one_ends_the_process():
    """A process that hangs too."""
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(SAME + 0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == "" and process.returncode == -signal.SIGTERM
