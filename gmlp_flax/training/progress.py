"""The progress line: step, loss, throughput, time left."""

import sys
import time

import tqdm

from gmlp_flax.processes import distributed


class Progress:
    """On a terminal, one live line. Elsewhere, a plain line whenever the loss is logged. The first process shows them.

    Times are measured from the end of the first step of this process, so that compilation does not count.

    Args:
        first: the step from which the run starts or resumes.
        steps: the last step of the run.
        per_step: units per step.
        unit: what is counted (`Task.unit`).
    """

    def __init__(self, first: int, steps: int, per_step: int, unit: str):
        self.steps, self.per_step, self.unit = steps, per_step, unit
        self._started: tuple[int, float] | None = None
        live = sys.stderr.isatty() and distributed.is_first()
        form = "{desc} {percentage:3.0f}%|{bar}| {postfix}"
        self._bar: tqdm.tqdm | None = (
            tqdm.tqdm(total=steps, initial=first, bar_format=form, file=sys.stderr) if live else None
        )

    def rate(self, step: int) -> float:
        """Units per second since the first step of this process; 0 before its end."""
        if self._started is None or step <= self._started[0]:
            return 0.0
        return (step - self._started[0]) * self.per_step / (time.perf_counter() - self._started[1])

    def advance(self, step: int) -> None:
        """Notes that the devices have finished a step."""
        if self._started is None:
            self._started = (step, time.perf_counter())
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def show_loss(self, step: int, loss: float) -> None:
        """Shows the newest loss."""
        rate = self.rate(step)
        left = (self.steps - step) * self.per_step / rate if rate else 0.0
        text = f"loss {loss:.4f}  {rate:,.0f} {self.unit}/s  ETA {tqdm.tqdm.format_interval(left)}"
        if self._bar is not None:
            self._bar.set_description_str(f"step {step}/{self.steps}")
            self._bar.set_postfix_str(text)
        else:
            distributed.say(f"step {step}/{self.steps}  {text}")

    def show(self, text: str) -> None:
        """Prints a line above the live one."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            distributed.say(text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
