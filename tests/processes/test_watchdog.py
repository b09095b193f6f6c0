import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(
    ("seconds", "rest"),
    [
        (0.2, "time.sleep(1)"),  # before the first sign of life: compilation
        (2, "for _ in range(30):\n  watchdog.alive()\n  time.sleep(0.1)"),
        (0.2, "watchdog.begin()\ntime.sleep(1)\nwatchdog.close()"),
        (0.2, "watchdog.alive()\nwatchdog.close()\ntime.sleep(1)"),
        (0, "watchdog.alive()\ntime.sleep(0.2)\nwatchdog.close()"),
    ],
    ids=["not yet begun", "alive", "begins", "closed", "off"],
)
def test_no_hang(seconds, rest):
    done = run(seconds, rest)
    assert (done.returncode, done.stderr) == (0, "")
