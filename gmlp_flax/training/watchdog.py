"""Ends a run that hangs, so that a scheduler can start it again."""

from __future__ import annotations

import faulthandler
import time

STDERR = 2  # by number: sys.stderr may be no file, as in notebooks


class Watchdog:
    """Once told that the run is alive, wants to hear it again in time; else it dumps all stacks and exits with code 1.

    The clock is C's: it also runs out while a thread keeps Python's lock, as one that hangs in a driver may.

    Args:
        seconds: without a sign of life; 0: for ever.
    """

    def __init__(self, seconds: float):
        self.seconds, self._heard = seconds, float("-inf")

    def alive(self) -> None:
        """Starts the clock anew, unless it was so just before: that starts a thread, and steps may be short."""
        if self.seconds and time.monotonic() - self._heard > self.seconds / 100:
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=STDERR)
            self._heard = time.monotonic()

    def close(self) -> None:
        """Stops the clock."""
        if self.seconds:
            faulthandler.cancel_dump_traceback_later()
