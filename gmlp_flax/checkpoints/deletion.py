"""Deletion of old checkpoints, after which none is ever half there: a process may be killed at any moment of it.

On a disk a checkpoint is first moved, in one stroke, to the folder `checkpoints/deleted`. In a bucket, which has no such stroke,
Orbax's mark of a finished checkpoint goes first, and what has no mark counts as unfinished.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from gmlp_flax.checkpoints import places
from gmlp_flax.io import buckets, run_files
from gmlp_flax.processes import distributed

DELETED = "deleted"


class Deleter:
    """What Orbax calls, in its own thread, to delete checkpoints.

    Args:
        folder: of the checkpoints.
    """

    def __init__(self, folder: str):
        self._folder, self._deleted = folder, os.path.join(folder, DELETED)
        self._bucket = places.is_bucket(folder)

    def delete_steps(self, steps: Sequence[int]) -> None:
        """Deletes the checkpoints of some steps.

        Raises:
            RunError: storage does not let one be moved, which is then still there.
        """
        for step in steps:
            self.delete(step)

    def delete(self, step: int) -> None:
        """Deletes the checkpoint of a step."""
        path = os.path.join(self._folder, str(step))
        if not distributed.is_first() or not run_files.exists(path):
            return
        if run_files.is_remote(path):
            buckets.remove_all(path)
        elif self._bucket:
            run_files.remove(os.path.join(path, buckets.FINISHED))
            shutil.rmtree(path, ignore_errors=True)
        else:
            run_files.move(path, os.path.join(self._deleted, str(step)))
            self.finish()

    def finish(self) -> None:
        """Deletes what was moved, also by a process that was killed before it got to this; what cannot be deleted now is
        tried again next time."""
        if distributed.is_first() and not run_files.is_remote(self._folder) and run_files.exists(self._deleted):
            shutil.rmtree(self._deleted, ignore_errors=True)

    def close(self) -> None:
        """Nothing is held open."""
