"""Ends a run that hangs, so that a scheduler can start it again."""

import faulthandler
import threading
import time

BEGINNING = 3600.0  # seconds
STDERR = 2  # a number, because sys.stderr may not be a file, for example in notebooks


class Watchdog:
    """After a call of `begin` or `alive`, the next must come in time. If not, all stacks are printed and the process
    exits with code 1.

    The clock runs in C, so it also works while a thread holds Python's lock, for example one that hangs in a driver.

    Args:
        seconds: the longest time between two calls; 0 for no limit.
    """

    def __init__(self, seconds: float):
        self.seconds, self._heard = min(seconds, threading.TIMEOUT_MAX), float("-inf")

    def begin(self) -> None:
        """Starts the clock with an hour at least: to restore a checkpoint and to compile takes longer than a step."""
        if self.seconds:
            faulthandler.dump_traceback_later(max(self.seconds, BEGINNING), exit=True, file=STDERR)

    def alive(self) -> None:
        """Restarts the clock, unless that happened just before: it starts a thread, and steps may be short."""
        if self.seconds and time.monotonic() - self._heard > self.seconds / 100:
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=STDERR)
            self._heard = time.monotonic()

    def close(self) -> None:
        """Stops the clock."""
        if self.seconds:
            faulthandler.cancel_dump_traceback_later()
