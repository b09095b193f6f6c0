"""What ends a run before its last step: signals, after which it saves, and the watchdog of one that
hangs.

SIGTERM (a preemption notice), SIGINT, SIGHUP (a lost terminal), SIGUSR1 and SIGUSR2 (what sbatch's
--signal sends in scripts for other trainers) and SIGXCPU (a limit of CPU time) end a run after a
step, or after a batch of an evaluation, which is the same one on all processes. A service manager, SLURM and a
terminal signal all processes of a group, and a process that started another passes its signals on
to it. So one request to stop may come twice, at once: only a signal that comes later is a second
one.
"""

import contextlib
import ctypes
import faulthandler
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

# Of other programs; SIGINT is Python's own KeyboardInterrupt.
TERMINATING = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)
STOPPING = (signal.SIGINT, *TERMINATING)
SAME = 1.0  # seconds in which a signal that comes again is the same request
BEGINNING = 3600.0  # seconds that the watchdog gives to the first step
STDERR = 2  # a number, because sys.stderr may not be a file, for example in notebooks

_armed: dict[int, threading.Timer] = {}


@contextlib.contextmanager
def handle(
    names: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Inside, these signals call `handler`, but for SIGHUP if nohup has it ignored. Only the main
    thread can handle signals: another one continues without."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {name: signal.getsignal(name) for name in names}
    before = {
        name: old for name, old in before.items() if name != signal.SIGHUP or old != signal.SIG_IGN
    }
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
    """For a handler: after SAME seconds, the next of these signals ends the process, even in a call
    that hangs. SIGXCPU, which the system repeats every second, is ignored from then on: a process
    that does not stop is killed at the hard limit."""
    for name in names:
        if signal.getsignal(name) == signal.SIG_IGN:  # already, or by nohup
            continue
        signal.signal(name, signal.SIG_IGN)
        if name == signal.SIGXCPU:
            continue
        # The C function, since Python's is for the main thread alone, which may never run again.
        timer = threading.Timer(SAME, ctypes.CDLL(None).signal, (int(name), None))
        timer.daemon = True
        _armed[name] = timer
        timer.start()


class Terminated(KeyboardInterrupt):
    """One of TERMINATING came while no `StopRequest` waited for it."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Inside, the signals of TERMINATING raise Terminated, so that all that is open is closed, as after
    Ctrl-C."""

    def terminate(number: int, _frame: FrameType | None) -> None:
        end_on_the_next(number)
        raise Terminated(signal.Signals(number).name)

    with handle(TERMINATING, terminate):
        yield


class StopRequest:
    """The request to stop that a signal makes, for the time of `handle(STOPPING,
    request.on_signal)`.

    If one process stopped alone, the others would wait for it in the collectives of the next step.
    So at each step, and at each batch of an evaluation, every process votes with the number of its
    signal, or 0. At the next one it reads the greatest vote, which is the same number at the same
    step on all processes. The vote is a small program after the step. It is read a step later, so
    it makes no process wait longer. It takes a result of the step as an input. If that step fails
    because a process is gone, no vote begins. Otherwise a neighbour that still waits in the step
    would take the message of the vote for one of the step.

    Attributes:
        agreed: the name of the signal for which all processes stop, or None.
    """

    def __init__(self):
        self.agreed: str | None = None
        self._received = 0
        self._last_vote: jax.Array | None = None
        self._greatest = jax.jit(lambda votes, _: votes.max(), keep_unused=True)

    def after_step(self, result: jax.Array) -> None:
        """Sets `agreed`. All processes call this once per step, and per batch of an evaluation. A
        single process stops at once.

        Args:
            result: something that the step computes, on the devices of all processes.
        """
        number = self._received
        if jax.process_count() > 1:
            sharding = result.sharding
            assert isinstance(sharding, NamedSharding)
            one_per_device = NamedSharding(sharding.mesh, PartitionSpec(sharding.mesh.axis_names))
            votes = np.full(jax.local_device_count(), number, np.int32)
            last_vote = self._last_vote
            self._last_vote = self._greatest(
                jax.make_array_from_process_local_data(one_per_device, votes), result
            )
            number = 0 if last_vote is None else int(last_vote.addressable_data(0))
        if number:
            self.agreed = signal.Signals(number).name

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """The handler of the signals."""
        self._received = number
        end_on_the_next(number)


class Watchdog:
    """After a call of `begin` or `alive`, the next must come in time. If not, all stacks are
    printed and the process exits with code 1.

    The clock runs in C, so it also works while a thread holds Python's lock, for example one that
    hangs in a driver.

    Args:
        seconds: the longest time between two calls; 0 for no limit.
    """

    def __init__(self, seconds: float):
        self.seconds = min(seconds, threading.TIMEOUT_MAX)
        self._heard = float("-inf")

    def begin(self) -> None:
        """Starts the clock with an hour at least: to restore a checkpoint and to compile takes
        longer than a step."""
        if self.seconds:
            faulthandler.dump_traceback_later(max(self.seconds, BEGINNING), exit=True, file=STDERR)

    def alive(self) -> None:
        """Restarts the clock, unless that happened just before: it starts a thread, and steps may
        be short."""
        if self.seconds and time.monotonic() - self._heard > self.seconds / 100:
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=STDERR)
            self._heard = time.monotonic()

    def close(self) -> None:
        """Stops the clock."""
        if self.seconds:
            faulthandler.cancel_dump_traceback_later()
