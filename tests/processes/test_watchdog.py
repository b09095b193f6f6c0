import subprocess
import sys
import types

from gmlp_flax.processes import watchdog

START = "import time\nfrom gmlp_flax.processes.watchdog import Watchdog\nwatchdog = Watchdog({seconds})\n"


def run(seconds: float, rest: str) -> subprocess.CompletedProcess:
    code = START.format(seconds=seconds) + rest
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_hang_dumps_stacks_and_ends():
    done = run(0.5, "def a_step_that_hangs():\n  time.sleep(50)\nwatchdog.alive()\na_step_that_hangs()")
    assert done.returncode == 1
    assert done.stderr.startswith("Timeout (0:00:00.500000)!\n") and "in a_step_that_hangs" in done.stderr


def test_hang_before_the_first_step_ends_too():
    rest = "import gmlp_flax.processes.watchdog as w\nw.BEGINNING = 0.5\nwatchdog.begin()\ntime.sleep(50)"
    done = run(0.2, rest)
    assert done.returncode == 1 and done.stderr.startswith("Timeout (0:00:00.500000)!\n")


def test_the_clock_starts_with_an_hour_goes_on_and_stops(monkeypatch):
    set_to, now = [], [0.0]
    clock = types.SimpleNamespace(
        dump_traceback_later=lambda seconds, **_: set_to.append(seconds),
        cancel_dump_traceback_later=lambda: set_to.append("stopped"),
    )
    monkeypatch.setattr(watchdog, "faulthandler", clock)
    monkeypatch.setattr(watchdog, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    dog = watchdog.Watchdog(100.0)
    assert set_to == []  # before the first step is compiled
    dog.begin()
    for now[0] in (0.0, 0.5, 2.0):  # a step as short as the second does not set it anew
        dog.alive()
    dog.close()
    assert set_to == [3600.0, 100.0, 100.0, "stopped"]
    off = watchdog.Watchdog(0)
    for call in (off.begin, off.alive, off.close):
        call()
    assert len(set_to) == 4
