"""Kills a run at random moments until it has been killed often enough, then lets it finish."""

import itertools
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

    Every other time it is killed while it starts, else after some lines about its steps: so it gets
    on.

    Args:
        start: starts the command with a pipe for standard error.
        kills: how often to kill it.
        startup: seconds until its first step, about.
        lines: at most so many lines about its steps before it is killed, at least half of them.
        rng: decides the moments.

    Returns:
        The number of kills, which is less than asked for where the run finished before, and
        standard error of all.
    """
    done = 0
    output = []
    while done < kills:
        process = start()
        if done % 2:
            time.sleep(rng.uniform(0, startup))
        else:
            steps = (
                line for line in process.stderr if output.append(line) or line.startswith("step ")
            )
            list(itertools.islice(steps, rng.randint(lines // 2, lines)))
            time.sleep(rng.uniform(0, 0.05))
        process.kill()
        output += process.communicate()[1]
        finished = process.returncode == 0
        if finished:
            break
        done += 1
    return done, "".join(output)
