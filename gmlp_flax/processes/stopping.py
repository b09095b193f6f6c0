"""SIGTERM (a preemption notice), SIGINT and SIGHUP (a lost terminal) end a run after a step, or after a batch of an
evaluation, which is the same one on all processes."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from gmlp_flax.processes import signals


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came while no `StopRequest` waited for it."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise Terminated, so that all that is open is closed, as after Ctrl-C."""

    def terminate(number: int, _frame: FrameType | None) -> None:
        signals.end_on_the_next(number)
        raise Terminated(signal.Signals(number).name)

    with signals.handle((signal.SIGTERM, signal.SIGHUP), terminate):
        yield


class StopRequest:
    """The request to stop that a signal makes, for the time of `signals.handle(signals.STOPPING, request.on_signal)`.

    If one process stopped alone, the others would wait for it in the next step's collectives. So at each step, and at
    each batch of an evaluation, every process votes with the number of its signal, or 0, and at the next one reads the
    greatest vote: the same number at the same step on all processes. The vote is a small program after the step. It is
    read a step later, so it makes no process wait longer. It takes a result of the step as an input: if that step fails
    because a process is gone, no vote begins, whose message a neighbour that still waits in the step would take for the
    step's own.

    Attributes:
        agreed: the name of the signal for which all processes stop, or None.
    """

    def __init__(self):
        self.agreed: str | None = None
        self._received = 0
        self._last_vote: jax.Array | None = None
        self._greatest = jax.jit(lambda votes, _: votes.max(), keep_unused=True)

    def after_step(self, result: jax.Array) -> None:
        """Sets `agreed`. All processes call this once per step, and per batch of an evaluation. A single process stops
        at once.

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
            self._last_vote = self._greatest(jax.make_array_from_process_local_data(one_per_device, votes), result)
            number = 0 if last_vote is None else int(last_vote.addressable_data(0))
        if number:
            self.agreed = signal.Signals(number).name

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """The handler of the signals."""
        self._received = number
        signals.end_on_the_next(number)
