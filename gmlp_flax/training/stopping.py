"""SIGTERM, a preemption notice, and SIGINT end a run after a step: the same one on all processes."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

NAMES = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Hears signals while it is entered.

    A process that stopped by itself would leave the others waiting in the next step's collectives. So every process
    votes at each step, with the number of the signal that it got or 0, and reads the greatest vote at the next step:
    the same number at the same step on all of them. The vote is a program of its own beside the training step, and is
    read when the step of its time is done: no process waits for another more than training makes it.

    Attributes:
        agreed: name of the signal that all are to stop for, or None.
    """

    def __init__(self):
        self.agreed: str | None = None
        self._received, self._cast = 0, None
        mesh = jax.make_mesh((jax.device_count(),), ("all",), axis_types=(AxisType.Auto,))
        self._one_each = NamedSharding(mesh, PartitionSpec("all"))
        self._count = jax.jit(lambda votes: votes.max(), out_shardings=NamedSharding(mesh, PartitionSpec()))

    def __enter__(self) -> StopRequest:
        self._handlers = {name: signal.signal(name, self._on_signal) for name in NAMES}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name, handler in self._handlers.items():
            signal.signal(name, handler)

    def after_step(self) -> None:
        """Settles `agreed`; all processes call this once a step. Alone, a process stops at once."""
        number = self._received
        if jax.process_count() > 1:
            votes = np.full(jax.local_device_count(), self._received, np.int32)
            before, self._cast = self._cast, self._count(jax.make_array_from_process_local_data(self._one_each, votes))
            number = 0 if before is None else int(before.addressable_data(0))
        if number:
            self.agreed = signal.Signals(number).name

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """A second signal ends the process at once."""
        self._received = number
        signal.signal(number, signal.SIG_DFL)
