"""What a checkpoint says of itself, and which checkpoints stay."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
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
        if not isinstance(found.run, str) or type(found.step) is not int:
            raise TypeError("expected a run and a step")
        return found


class Retention:
    """Which checkpoints stay: the newest, the best, and those whose worth is not known for certain.

    Args:
        keep: how many of the newest.
        keep_best: how many of the best as well.
        best: a metric, and "min" or "max".
    """

    def __init__(self, keep: int, keep_best: int, best: tuple[str, str]):
        self.keep, self.keep_best, (self.metric, self.mode) = keep, keep_best, best
        self.known: dict[int, dict[str, float] | None] = {}  # verified metrics by step

    def rank(self, metrics: dict[str, float] | None) -> float:
        """More is better; a step without an evaluation comes last."""
        value = (metrics or {}).get(self.metric, math.nan)
        return -math.inf if not math.isfinite(value) else -value if self.mode == "min" else value

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Orbax asks this at each save."""
        del context
        steps = sorted(each.step for each in checkpoints)
        unknown = [step for step in steps if step not in self.known or self._lacks_metric(step)]
        ranked = sorted(((self.rank(self.known.get(step)), step) for step in steps), reverse=True)
        best = [step for rank, step in ranked[: self.keep_best] if rank > -math.inf]
        stays = {*steps[-self.keep:], *best, *unknown}
        return [each.step in stays for each in checkpoints]

    def _lacks_metric(self, step: int) -> bool:
        metrics = self.known[step]
        return bool(metrics) and bool(self.metric) and self.metric not in metrics
