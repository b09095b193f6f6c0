"""A task whose evaluations are interrupted, by a signal or by unreadable data."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any, ClassVar

from gmlp_flax import config as gmlp_config
from gmlp_flax.errors import DataError
from gmlp_flax.options import AT_LEAST_0, Option
from gmlp_flax.tasks.data.language import LanguageData
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from tests.training import tiny


class InterruptedData(LanguageData):
    """Counts the held-out batches that all evaluations of a run read.

    Attributes:
        batches_read: the number of batches for each run that was started.
    """

    batches_read: ClassVar[list[int]] = []

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.run = len(self.batches_read)
        self.batches_read.append(0)

    @contextlib.contextmanager
    def evaluation_batches(self, host: int, hosts: int, shares: int = 1):
        with super().evaluation_batches(host, hosts, shares) as batches:
            yield self._counted(batches)

    def _counted(self, batches) -> Iterator[Any]:
        for batch in batches:
            self.batches_read[self.run] += 1
            number = self.batches_read[self.run]
            if number == self.config.data.stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            if number == self.config.data.unreadable:
                raise DataError("a held-out text cannot be read")
            yield batch


def optional(default: float, comment: str) -> Option:
    """An option that may change from one start of a run to the next."""
    return Option(default, comment, AT_LEAST_0, may_change=True)


class Interrupted(MaskedLanguageModeling):
    """Masked language modeling that stops where the config says.

    Attributes:
        times_traced: how often a training step was compiled in this process.
    """

    options = MaskedLanguageModeling.options | {
        "data.stop_at": optional(0, "the held-out batch at which the run is stopped"),
        "data.unreadable": optional(0, "the held-out batch that cannot be read"),
        "data.compile_seconds": optional(0.0, "how much longer compiling a step takes"),
    }
    Data = InterruptedData
    times_traced: ClassVar[int] = 0

    def loss(self, params, batch):
        Interrupted.times_traced += 1
        time.sleep(self.config.data.compile_seconds)
        return super().loss(params, batch)


def config(folder):
    """A config of six steps, with evaluations after the third and the last."""
    options = gmlp_config.changed(tiny.text_config(folder), f"{__name__}:Interrupted")
    options.steps = 6
    options.checkpoint.every = 6
    options.log.every = 3
    options.eval.every = 3
    options.eval.batch_size = 8
    return options
