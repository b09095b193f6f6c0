"""Handlers of signals for the time of a block, and what a second signal does.

A service manager, SLURM and a terminal signal all processes of a group, and a process that started another passes its
signals on to it. So one request to stop may come twice, at once: only a signal that comes later is a second one.
"""

import contextlib
import ctypes
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # a preemption notice, Ctrl-C, a lost terminal
SAME = 1.0  # seconds in which a signal that comes again is the same request

_armed: dict[int, threading.Timer] = {}


@contextlib.contextmanager
def handle(names: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Inside, these signals call `handler`, but for SIGHUP if nohup has it ignored. Only the main thread can handle
    signals: another one goes on without."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {name: signal.getsignal(name) for name in names}
    before = {name: old for name, old in before.items() if name != signal.SIGHUP or old != signal.SIG_IGN}
    for name in before:
        signal.signal(name, handler)
    try:
        yield
    finally:
        for name, old in before.items():
            if name in _armed:
                _armed.pop(name).cancel()
            signal.signal(name, old)


def end_on_the_next(*names: int) -> None:
    """For a handler: after SAME seconds, the next of these signals ends the process, even in a call that hangs."""
    for name in names:
        if signal.getsignal(name) == signal.SIG_IGN:  # already, or by nohup
            continue
        signal.signal(name, signal.SIG_IGN)
        # The C function, since Python's is for the main thread alone, which may never run again.
        timer = threading.Timer(SAME, ctypes.CDLL(None).signal, (int(name), None))
        timer.daemon = True
        _armed[name] = timer
        timer.start()
