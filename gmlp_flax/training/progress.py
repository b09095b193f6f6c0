"""The progress line: step, loss, throughput, time left; and the time in which the devices may wait for the host."""

from __future__ import annotations

import collections
import sys
import time

import tqdm


class Progress:
    """On a terminal, one live line. Elsewhere, a plain line whenever the loss is logged.

    Throughput and time left are measured from the second step on, so that compilation does not count.

    Args:
        first: the step from which the run starts or resumes.
        steps: the last step of the run.
        per_step: units per step.
        unit: what is counted (`Task.unit`).
        silent: another process shows the progress.
    """

    def __init__(self, first: int, steps: int, per_step: int, unit: str, silent: bool = False):
        self.steps, self.per_step, self.unit, self.silent = steps, per_step, unit, silent
        self.started: tuple[int, float] | None = None
        live = sys.stderr.isatty() and not silent
        form = "{desc} {percentage:3.0f}%|{bar}| {postfix}"
        self.bar = tqdm.tqdm(total=steps, initial=first, bar_format=form, file=sys.stderr, leave=True) if live else None

    def rate(self, step: int) -> float:
        """Units per second since the second step of this process; 0 before it."""
        if self.started is None or step <= self.started[0]:
            return 0.0
        return (step - self.started[0]) * self.per_step / (time.perf_counter() - self.started[1])

    def advance(self, step: int) -> None:
        """Notes that the devices have finished a step."""
        if self.started is None:
            self.started = (step, time.perf_counter())
        if self.bar is not None:
            self.bar.update(step - self.bar.n)

    def show_loss(self, step: int, loss: float) -> None:
        """Shows the newest loss."""
        rate = self.rate(step)
        left = (self.steps - step) * self.per_step / rate if rate else 0.0
        text = f"loss {loss:.4f}  {rate:,.0f} {self.unit}/s  ETA {format_seconds(left)}"
        if self.bar is not None:
            self.bar.set_description_str(f"step {step}/{self.steps}")
            self.bar.set_postfix_str(text)
        else:
            self.say(f"step {step}/{self.steps}  {text}")

    def say(self, text: str) -> None:
        """Prints a line above the live one."""
        if self.bar is not None:
            self.bar.write(text, file=sys.stderr)
        elif not self.silent:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class HostTime:
    """The time from the end of the first step to the last, and what the host did in it.

    Attributes:
        shares: after `end`, the shares of that time, without evaluation, in which the devices may have waited for data,
            reports or checkpoints. These are upper bounds. Empty if no step was taken.
    """

    def __init__(self):
        self.shares: dict[str, float] = {}
        self._seconds: dict[str, float] = collections.defaultdict(float)
        self._begun = 0.0

    def begin(self) -> None:
        """The first step is done."""
        self._seconds.clear()
        self._begun = time.perf_counter()

    def add(self, what: str, seconds: float) -> None:
        """Adds time: of `data`, `report`, `checkpoints` or `evaluation`."""
        self._seconds[what] += seconds

    def end(self) -> None:
        """The last step is done."""
        elapsed = time.perf_counter() - self._begun - self._seconds["evaluation"]
        self.shares = {name: round(self._seconds[name] / elapsed, 5) for name in ("data", "report", "checkpoints")}


def format_seconds(seconds: float) -> str:
    """Seconds as 3:05, or 1:03:05."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
