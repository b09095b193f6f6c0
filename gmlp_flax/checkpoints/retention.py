"""What a checkpoint says of itself, and which checkpoints stay."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class About(NamedTuple):
    """What a checkpoint says of itself.

    Attributes:
        run: the id of its run.
        step: its step.
        metrics: of an evaluation of its state; None without one.
        files: the names of its files.
        leaves: the SHA-256 of the names, shapes and types of all leaves of its state.
    """

    run: str
    step: int
    metrics: dict[str, float] | None
    files: list[str]
    leaves: str

    @classmethod
    def of(cls, content: bytes) -> About:
        """Raises ValueError or TypeError if the content makes no sense."""
        found = cls(**json.loads(content))
        metrics, texts = found.metrics or {}, (found.run, found.leaves, *found.files)
        if (
            type(found.step) is not int
            or not isinstance(metrics, dict)
            or not all(isinstance(text, str) for text in texts)
        ):
            raise TypeError("expected a run, a step, metrics, files and a digest")
        if not all(type(value) in (int, float) for value in metrics.values()):
            raise TypeError("expected metrics that are numbers")
        return found


class Retention:
    """Which checkpoints stay: the newest, the best, and those of which nothing is known.

    Args:
        keep: how many of the newest.
        keep_best: how many of the best as well: of those whose metrics are certain, and as many of the others.
        best: a metric, and "min" or "max".
    """

    def __init__(self, keep: int, keep_best: int, best: tuple[str, str]):
        self.keep, self.keep_best, (self.metric, self.mode) = keep, keep_best, best
        self.known: dict[int, dict[str, float] | None] = {}  # verified metrics by step
        self.unverified: dict[int, dict[str, float]] = {}  # of steps that have no verified ones

    def rank(self, metrics: dict[str, float] | None) -> float:
        """More is better; a step without an evaluation comes last."""
        value = (metrics or {}).get(self.metric, math.nan)
        return -math.inf if not math.isfinite(value) else -value if self.mode == "min" else value

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Orbax asks this at each save."""
        del context
        steps = sorted(each.step for each in checkpoints)
        unknown = [step for step in steps if self._is_unknown(step)]
        stays = {*steps[-self.keep :], *self._best(steps, self.known), *self._best(steps, self.unverified), *unknown}
        return [each.step in stays for each in checkpoints]

    def _best(self, steps: list[int], among: Mapping[int, dict[str, float] | None]) -> list[int]:
        ranked = sorted(((self.rank(among.get(step)), step) for step in steps), reverse=True)
        return [step for rank, step in ranked[: self.keep_best] if rank > -math.inf]

    def _is_unknown(self, step: int) -> bool:
        if step not in self.known:
            return step not in self.unverified
        metrics = self.known[step]
        return bool(metrics) and bool(self.metric) and self.metric not in metrics
