"""Handlers of signals for the time of a block."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # a preemption notice, Ctrl-C, a lost terminal


@contextlib.contextmanager
def handled(names: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Inside, these signals call `handler`, but for SIGHUP if nohup has it ignored."""
    before = {name: signal.getsignal(name) for name in names}
    before = {name: old for name, old in before.items() if name != signal.SIGHUP or old != signal.SIG_IGN}
    for name in before:
        signal.signal(name, handler)
    try:
        yield
    finally:
        for name, old in before.items():
            signal.signal(name, old)
