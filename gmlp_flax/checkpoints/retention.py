"""Which checkpoints of a run are kept, and how the others are deleted.

Orbax's own retention (0.12.8) breaks our promises, so its manager keeps all checkpoints:
- It trusts unverified metrics: a flipped digit in one deletes the best checkpoint. So does a metric
  that is NaN, as it is sorted with the others.
- A run that is killed while it deletes leaves half a checkpoint that counts as finished: on a disk
  without `todelete_subdir`, and in every bucket, where the mark of a finished one does not go first.
- After a save or a deletion that failed, it no longer knows which checkpoints are left.
"""

import dataclasses
import math
import os
import shutil
from collections.abc import Mapping, Sequence

from gmlp_flax.io import files as io_files

Metrics = Mapping[str, float] | None  # of an evaluation; None without one

DELETED = "deleted"  # the folder, among the checkpoints, of those that are being deleted


@dataclasses.dataclass(frozen=True)
class Retention:
    """The rules by which checkpoints are kept.

    Attributes:
        keep: how many of the newest stay.
        keep_best: how many of the best stay as well.
        metric: the metric that ranks them.
        mode: whether "min" or "max" of the metric is best.
    """

    keep: int = 1
    keep_best: int = 0
    metric: str = ""
    mode: str = "min"

    def rank(self, metrics: Metrics) -> float:
        """The worth of a checkpoint, more is better: -inf without a finite value of the metric."""
        if not metrics or self.metric not in metrics:
            return -math.inf
        value = metrics[self.metric]
        if not math.isfinite(value):
            return -math.inf
        return -value if self.mode == "min" else value

    def kept(self, steps: Sequence[int], verified: Mapping[int, Metrics]) -> set[int]:
        """The steps whose checkpoints stay: the newest, the best, and those whose metrics are not
        known to be right.

        Args:
            steps: of all checkpoints, oldest first.
            verified: the metrics of each step that are known to be right.
        """
        newest = steps[-self.keep :]
        kept = set(newest)
        for step in steps:
            if not self._is_known(step, verified):
                kept.add(step)
        if self.keep_best:
            by_rank = self._by_rank(steps, verified)
            best = by_rank[-self.keep_best :]
            kept.update(best)
        return kept

    def _by_rank(self, steps: Sequence[int], verified: Mapping[int, Metrics]) -> list[int]:
        """The steps that have a rank, the best last; the newer of equally good ones is later."""
        rank_of = {}
        for step in steps:
            metrics = verified.get(step)
            rank = self.rank(metrics)
            if rank > -math.inf:
                rank_of[step] = rank
        return sorted(rank_of, key=lambda step: rank_of[step])  # stable

    def _is_known(self, step: int, verified: Mapping[int, Metrics]) -> bool:
        """Whether it is known how good a checkpoint is, or that it was not evaluated."""
        if step not in verified:
            return False
        metrics = verified[step]
        if not metrics or not self.metric:
            return True
        return self.metric in metrics


def delete(folder: str, step: int) -> None:
    """Deletes a checkpoint as a whole: half of it is never left, whenever the process is killed.

    On a disk it is first moved to the folder `DELETED` in one step. In a bucket Orbax's mark of a
    finished checkpoint goes first, and a checkpoint without the mark counts as unfinished.

    Raises:
        RunError: it cannot be moved or deleted.
    """
    name = str(step)
    checkpoint = os.path.join(folder, name)
    if io_files.is_remote(checkpoint):
        io_files.remove_all(checkpoint)
        return
    target = os.path.join(folder, DELETED, name)
    io_files.move(checkpoint, target)
    finish_deletion(folder)


def finish_deletion(folder: str) -> None:
    """Deletes what `delete` moved, in this process or one that was killed. A file that cannot be
    deleted now, as another machine has it open, is tried again next time."""
    if io_files.is_remote(folder):
        return
    deleted = os.path.join(folder, DELETED)
    shutil.rmtree(deleted, ignore_errors=True)
