"""The progress of a command that trains one sweep, or several one after the other."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import tqdm


class Work(NamedTuple):
    """Runs that a command trains.

    Attributes:
        runs: how many.
        steps: the steps of all of them together.
        left: the steps that have not been taken yet.
    """

    runs: int = 0
    steps: int = 0
    left: int = 0

    @classmethod
    def of(cls, runs: int, steps: int) -> "Work":
        """Runs of `steps` steps each, none of which has begun."""
        all_steps = runs * steps
        return cls(runs, all_steps, all_steps)


def total(works: Iterable[Work]) -> Work:
    """The sum of some work."""
    runs = 0
    steps = 0
    left = 0
    for work in works:
        runs += work.runs
        steps += work.steps
        left += work.left
    return Work(runs, steps, left)


class Progress:
    """Counts the runs of a command over all of its sweeps, and predicts when they end.

    Sweeps are in parts, such as the columns of a comparison. Steps of different parts take
    different times, so steps and ETA are those of one part. Its remaining steps are expected to
    take as long, on average, as those that this command has taken.

    Args:
        planned: part -> the work of each of its sweeps, in order, as far as it is known before
            anything is trained.
        clock: the time in seconds.

    Attributes:
        ended: how many runs have ended.
        taken: how many steps of the part this command has taken, or no longer has to take because
            their run ended early.
    """

    def __init__(
        self,
        planned: Mapping[str, Sequence[Work]],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.ended = 0
        self.taken = 0
        self._clock = clock
        self._began = clock()
        self._part = ""
        self._begun = Work()  # of the part: steps of the sweeps that have begun, runs not ended
        self._later: dict[str, list[Work]] = {}
        for part, sweeps in planned.items():
            self._later[part] = list(sweeps)

    def begin_part(self, name: str, sweeps: Sequence[Work]) -> None:
        """Begins a part, whose work is known better now than when it was planned."""
        self.taken = 0
        self._began = self._clock()
        self._part = name
        self._begun = Work()
        self._later[name] = list(sweeps)

    def end_part(self, name: str) -> None:
        """Ends a part. What is left of it, after an error, is not trained."""
        self._later.pop(name, None)
        self._begun = Work()

    def begin_sweep(self, work: Work) -> None:
        """Begins the next sweep of the part."""
        self.skip_sweep()
        self._begun = total([self._begun, work])

    def skip_sweep(self) -> None:
        """Leaves the next sweep of the part out."""
        later = self._later.get(self._part)
        if later:
            later.pop(0)

    def advance(self, left: int) -> None:
        """Notes how many steps of the sweep are left."""
        self.taken += self._begun.left - left
        self._begun = self._begun._replace(left=left)

    def end_run(self) -> None:
        """Notes that a run has ended, whether or not it failed."""
        self.ended += 1
        runs = self._begun.runs - 1
        self._begun = self._begun._replace(runs=runs)

    @property
    def runs(self) -> int:
        """All runs of the command."""
        runs = self.ended + self._begun.runs
        for sweeps in self._later.values():
            later = total(sweeps)
            runs += later.runs
        return runs

    def part(self) -> Work:
        """The work of the whole part, without the runs that have ended."""
        later = self._later.get(self._part, [])
        return total([self._begun, *later])

    def eta(self) -> str:
        """The time that the rest of the part will take; empty if it is not known."""
        part = self.part()
        left = part.left
        if not left or self.taken <= 0:
            return ""
        elapsed = self._clock() - self._began
        seconds = left * elapsed / self.taken
        interval = tqdm.tqdm.format_interval(seconds)
        if self._has_other_parts():
            return f"ETA of {self._part} {interval}"
        return f"ETA {interval}"

    def _has_other_parts(self) -> bool:
        """Whether sweeps of other parts are still to come."""
        for name, sweeps in self._later.items():
            is_other = name != self._part
            if is_other and sweeps:
                return True
        return False

    def __str__(self) -> str:
        """The runs that have ended and the ETA: "3 of 21 runs, ETA 02:10"."""
        runs = self.runs
        noun = "run" if runs == 1 else "runs"
        counted = f"{self.ended} of {runs} {noun}"
        eta = self.eta()
        if eta:
            return f"{counted}, {eta}"
        return counted
