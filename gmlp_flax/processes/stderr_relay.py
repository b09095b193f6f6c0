"""Passes standard error through a helper process, which reduces JAX's thirty lines about a lost process to one.

When a process dies, JAX's coordination service ends the others: its C++ code writes an error with a stack trace and
aborts. No Python code runs before that, so only another process can shorten the message.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator

LOST = (
    "error: lost a process of this run, or the connection to it: see what the others wrote; to go on from the newest "
    "checkpoint, start all of them again"
)
# JAX's coordination service, its client and gloo write this when a process is lost. Soon after, they abort.
_FATAL = (
    "Use error polling to propagate the following error",
    "Polled an error from coordination service",
    "Terminating process because the JAX distributed service",
    "gloo::EnforceNotMet",
)


def install() -> None:
    """Starts the helper and sends this process's standard error to it. The helper ends after this process."""
    out, into = os.pipe()
    command = [sys.executable, "-m", __name__]
    # subprocess would warn about a child that outlives its parent, as this one must.
    os.posix_spawn(sys.executable, command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, out, 0)])
    sys.stderr.flush()
    os.dup2(into, 2)
    os.close(out)
    os.close(into)


def shortened(lines: Iterable[str]) -> Iterator[str]:
    """The lines up to the first one about a lost process. `LOST` replaces that line and all lines after it."""
    lost = False
    for line in lines:
        is_about_loss = line.startswith(LOST) or any(words in line for words in _FATAL)
        if is_about_loss and not lost:
            yield f"{LOST}\n"
        lost = lost or is_about_loss
        if not lost:
            yield line


def main() -> None:
    """Copies standard input to standard error until it ends. Ignores signals to the whole job."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    with open(0, errors="replace") as lines:
        for line in shortened(lines):
            sys.stderr.write(line)
            sys.stderr.flush()


if __name__ == "__main__":
    main()
