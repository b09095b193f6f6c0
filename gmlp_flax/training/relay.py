"""Standard error of one process of many, passed through a helper that says in one line what JAX says in thirty.

Where a process dies, JAX's coordination service ends the others: its C++ code writes an error with a stack trace and
aborts. No exception and no signal handler comes first, so only another process can shorten what it writes.
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
# What JAX's coordination service and its client write when a process is lost; soon after, they abort.
_FATAL = (
    "Use error polling to propagate the following error", "Polled an error from coordination service",
    "Terminating process because the JAX distributed service",
)


def install() -> None:
    """Puts a helper between this process's standard error and where it went. It ends after this process does."""
    out, into = os.pipe()
    command = [sys.executable, "-m", "gmlp_flax.training.relay"]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    # Not by subprocess, which warns of children that outlive their parent, as this one must.
    os.posix_spawn(
        sys.executable, command, os.environ | {"PYTHONPATH": path}, file_actions=[(os.POSIX_SPAWN_DUP2, out, 0)]
    )
    sys.stderr.flush()
    os.dup2(into, 2)
    os.close(out)
    os.close(into)


def shortened(lines: Iterable[str]) -> Iterator[str]:
    """The lines up to the first that tells of a lost process; in place of that and all after it, `LOST` once."""
    lost = False
    for line in lines:
        tells = line.startswith(LOST) or any(words in line for words in _FATAL)
        if tells and not lost:
            yield f"{LOST}\n"
        lost = lost or tells
        if not lost:
            yield line


def main() -> None:
    """Copies standard input to standard error until it ends; signals to the whole job are not for this helper."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    with open(0, errors="replace") as lines:
        for line in shortened(lines):
            sys.stderr.write(line)
            sys.stderr.flush()


if __name__ == "__main__":
    main()
