"""Says on standard error what a user waits for, so that no minute passes in silence."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

EVERY = 30.0  # seconds from one line to the next


def to_standard_error(text: str) -> None:
    """Prints a line at once."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def waiting(what: str, say: Callable[[str], None] = to_standard_error) -> Iterator[None]:
    """Says what is being done and, while it goes on, how long it has taken.

    Args:
        what: such as "compiling".
        say: shows a line.
    """
    begin, done = time.monotonic(), threading.Event()

    def remind() -> None:
        while not done.wait(EVERY):
            say(f"{what}: {time.monotonic() - begin:.0f} s so far")

    say(what)
    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
