"""What a checkpoint says of itself, which checkpoints stay, and how the others are deleted."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from gmlp_flax.io import files

DELETED = "deleted"  # the folder, among the checkpoints, of those that are being deleted


class About(NamedTuple):
    """What a checkpoint says of itself."""

    run: str  # the id of its run
    step: int
    metrics: dict[str, float] | None  # of an evaluation of its state
    files: list[str]  # their names
    leaves: str  # SHA-256 of the names, shapes and types of all leaves of its state

    @classmethod
    def from_json(cls, content: bytes) -> About:
        """Raises ValueError or TypeError if the content makes no sense."""
        about = cls(**json.loads(content))
        metrics, texts = about.metrics or {}, (about.run, about.leaves, *about.files)
        if type(about.step) is not int or not all(isinstance(text, str) for text in texts):
            raise TypeError("expected a run, a step, metrics, files and a digest")
        if not isinstance(metrics, dict) or not all(type(value) in (int, float) for value in metrics.values()):
            raise TypeError("expected metrics that are numbers")
        return about


class Retention:
    """Which checkpoints stay: the newest, the best, and those whose metrics are unknown.

    Args:
        keep: how many of the newest.
        keep_best: how many of the best as well.
        best: a metric, and "min" or "max".
    """

    def __init__(self, keep: int, keep_best: int, best: tuple[str, str]):
        self.keep, self.keep_best, (self.metric, self.mode) = keep, keep_best, best
        self.known: dict[int, dict[str, float] | None] = {}  # metrics by step

    def rank(self, metrics: dict[str, float] | None) -> float:
        """More is better; a step without an evaluation comes last."""
        value = (metrics or {}).get(self.metric, math.nan)
        return -math.inf if not math.isfinite(value) else -value if self.mode == "min" else value

    def kept(self, steps: Sequence[int]) -> set[int]:
        """Those of the steps, oldest first, whose checkpoints stay."""
        ranks = sorted(((self.rank(self.known.get(step)), step) for step in steps), reverse=True)
        best = [step for rank, step in ranks[: self.keep_best] if rank > -math.inf]
        return {*steps[-self.keep :], *best, *filter(self._is_unknown, steps)}

    def _is_unknown(self, step: int) -> bool:
        metrics = self.known.get(step)
        return step not in self.known or bool(metrics and self.metric and self.metric not in metrics)


def delete(folder: str, step: int) -> None:
    """Deletes a checkpoint, which is never half there: a process may be killed at any moment.

    On a disk it is first moved to the folder `DELETED` in one stroke. In a bucket Orbax's mark of a finished
    checkpoint goes first, and a checkpoint without the mark counts as unfinished. Raises RunError if it is not moved.
    """
    checkpoint = os.path.join(folder, str(step))
    if files.is_remote(checkpoint):
        files.remove_all(checkpoint)
    else:
        files.move(checkpoint, os.path.join(folder, DELETED, str(step)))
        finish_deletion(folder)


def finish_deletion(folder: str) -> None:
    """Deletes what `delete` moved, in this process or one that was killed. What cannot be deleted now, as it is open on
    another machine, is tried again next time."""
    if not files.is_remote(folder):
        shutil.rmtree(os.path.join(folder, DELETED), ignore_errors=True)
