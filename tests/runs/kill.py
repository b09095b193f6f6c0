"""Kills a run at random moments until it has been killed often enough, then lets it finish."""

import random
import subprocess
import time
from collections.abc import Callable


def kill_until_done(
    start: Callable[[], subprocess.Popen],
    kills: int,
    startup: float,
    lines: int,
    rng: random.Random,
):
    """Starts a command again and again.

    Every other time it is killed while it starts, and otherwise after some lines about its steps, so
    that it makes progress.

    Args:
        start: starts the command with a pipe for stderr.
        kills: how often to kill it.
        startup: approximate seconds until its first step.
        lines: the command is killed after at most this number of lines about its steps, and at
            least half of them.
        rng: decides the moments.

    Returns:
        The number of kills, which is less than asked for if the run finished before, and stderr of
        all processes.
    """
    done = 0
    output = []
    while done < kills:
        process = start()
        if done % 2:
            time.sleep(rng.uniform(0, startup))
        else:
            wanted = rng.randint(lines // 2, lines)
            output += read_steps(process, wanted)
            time.sleep(rng.uniform(0, 0.05))
        process.kill()
        _, stderr = process.communicate()
        output.append(stderr)
        if process.returncode == 0:
            break
        done += 1
    return done, "".join(output)


def read_steps(process: subprocess.Popen, count: int) -> list[str]:
    """The next lines on stderr, up to a number of lines about steps."""
    lines = []
    steps = 0
    while steps < count:
        line = process.stderr.readline()
        if not line:
            break
        lines.append(line)
        if line.startswith("step "):
            steps += 1
    return lines
