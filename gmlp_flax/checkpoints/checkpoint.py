"""Checkpoints: Orbax writes and reads the files, and checksums verify all that they hold.

Orbax restores flipped bits without an error. So each checkpoint stores a checksum of every leaf,
computed on the devices, and a restored checkpoint is accepted only if its leaves have the same
checksums. It also says of itself, under a SHA-256, which run it is of, its step, the metrics that
decide how long it is kept, and what else it holds.
"""

import functools
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint._src.serialization import tensorstore_utils

from gmlp_flax.checkpoints import DAMAGED, METRICS_FILE, assets, reading
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.checkpoints.pytree import (
    digest,
    examine,
    from_dict,
    leaves_by_path,
    require_fit,
    to_dict,
)
from gmlp_flax.checkpoints.reading import Damaged
from gmlp_flax.errors import RunError, listed
from gmlp_flax.io import files as io_files
from gmlp_flax.io import storage
from gmlp_flax.processes import distributed

ABOUT = "about"
DELETED = "deleted"  # the folder, among the checkpoints, of those that are being deleted
# TensorStore's own 32 attempts, with up to 32 s between them, would be a quarter of an hour of
# silence.
RETRIES = {"max_retries": 8, "initial_delay": "500ms", "max_delay": "16s"}


def limit_retries() -> None:
    """Makes TensorStore tell within about a minute that a bucket does not answer; Orbax has no
    option for it."""
    for context in (
        tensorstore_utils._BASE_TS_CONTEXT,
        tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT,
    ):
        context["gcs_request_retries"] = RETRIES


class About(NamedTuple):
    """What a checkpoint says of itself."""

    run: str  # the id of its run
    step: int
    metrics: dict[str, float] | None  # of an evaluation of its state
    files: list[str]  # their names
    leaves: str  # SHA-256 of the names, shapes and types of all leaves of its state


class Checkpoints:
    """The checkpoints of one run, by step.

    Args:
        folder: an absolute path. It is made if it does not exist, unless `read_only`.
        run: the id of the run; a checkpoint of another one is refused. If empty, that is not
            checked.
        keep: how many of the newest checkpoints stay.
        keep_best: how many of the best ones stay as well.
        best: a metric, and "min" or "max".
        files: stored in each checkpoint; a checkpoint with other files is not restored.
        read_only: nothing is written, moved or deleted.

    Raises:
        RunError: the folder cannot be read.
    """

    def __init__(
        self,
        folder: str,
        *,
        run: str = "",
        keep: int = 1,
        keep_best: int = 0,
        best: tuple[str, str] = ("", "min"),
        files: assets.Files | None = None,
        read_only: bool = False,
    ):
        self.folder, self.run, self.files = folder, run, files or {}
        assets.check_names(self.files, "the task")
        self._keep, self._metrics_by_step, self._contents = (keep, keep_best, best), {}, {}
        # whether this object saved a step; those that it deleted
        self._saved, self._deleted = False, set()
        if io_files.is_remote(folder):
            limit_retries()
        if distributed.is_first():
            for name in io_files.listdir(folder):
                if ".orbax-checkpoint-tmp" in name:
                    logging.error("%s/%s was never finished and is ignored", folder, name)
            if not read_only:
                finish_deletion(folder)
        distributed.wait_for_all(f"looked into {folder}")
        options = ocp.CheckpointManagerOptions(  # which keep all checkpoints: see `wait`
            create=not read_only, read_only=read_only, cleanup_tmp_directories=not read_only
        )
        try:
            self._manager = ocp.CheckpointManager(
                folder, item_handlers=ocp.PyTreeCheckpointHandler(), options=options
            )
        except Exception as error:
            raise self._failure(f"opening {folder}", error) from error

    def steps(self) -> list[int]:
        """Steps of all finished checkpoints, oldest first."""
        return sorted({*self._manager.all_steps()} - self._deleted)

    def save(self, step: int, state: Any, metrics: dict[str, float] | None) -> None:
        """Starts to save a state, any tree of arrays, and returns before it is written. Waits for
        the previous save.

        Args:
            step: the step of the state.
            state: any tree of arrays.
            metrics: from an evaluation of this state; None without one.

        Raises:
            RunError: a number in the state is not finite, or this save or the previous one failed.
        """
        self.wait()
        tree = to_dict(state)
        checksums, finite = examine(tree)
        if not finite:
            raise RunError(
                f"the state of step {step} is not finite: {self.last_good()}; lower learning_rate or clip"
            )
        about = About(self.run, step, metrics, sorted(self.files), digest(tree))
        item = {"state": tree, "checksums": checksums, "files": assets.pack(self.files)}
        item |= assets.pack({ABOUT: json.dumps(about._asdict()).encode()})
        self._metrics_by_step[step] = metrics
        self._saving(
            f"saving step {step}", lambda: self._manager.save(step, args=ocp.args.PyTreeSave(item))
        )
        self._saved = True

    def set_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Sets the metrics of a state that may have been saved without them, because a signal ended
        its evaluation.

        Its checkpoint then competes for the best. Runs that resume read these metrics from
        metrics.jsonl.
        """
        self._metrics_by_step[step] = metrics

    def wait(self) -> None:
        """Returns when the last save is complete, and the checkpoints that need not stay after it
        are deleted. Raises RunError if the save failed."""
        self._saving("saving", self._manager.wait_until_finished)
        steps = self.steps()
        for step in (
            sorted({*steps} - kept(steps, self._metrics_by_step, *self._keep))
            if self._saved
            else ()
        ):
            self._deleted.add(step)
            if distributed.is_first():
                self._saving(f"deleting step {step}", lambda step=step: delete(self.folder, step))

    def close(self) -> None:
        """Ends the background threads. Only `wait` tells of a failed save."""
        self._manager.close()

    def restore(self, step: int, template: Any) -> Any:
        """Reads a checkpoint and verifies every leaf.

        Args:
            step: the step of the checkpoint.
            template: tree of `jax.ShapeDtypeStruct` with shardings. It may be a part of the saved
                state.

        Returns:
            Arrays in the structure, shapes and shardings of the template.

        Raises:
            RunError: the checkpoint is of another run or step; a path is missing or has another
                shape or type (all are listed); one of `files` differs; or storage does not let it
                be read.
            Damaged: its content is wrong.
        """
        wanted = to_dict(template)
        restored = reading.on_all_processes(
            self._path(step), lambda: self._read_verifiable(step, wanted)
        )
        checksums, _ = examine(restored["state"])
        now, saved = map(leaves_by_path, jax.device_get((checksums, restored["checksums"])))
        if wrong := [name for name in now if now[name] != saved[name]]:
            raise Damaged(f"{self._path(step)}: the checksum of {listed(wrong)} differs")
        return from_dict(template, restored["state"])

    def _read_verifiable(self, step: int, wanted: dict) -> dict:
        """The wanted parts of the state and their checksums."""
        about, files = self._content(step)
        saved, needed = (
            traverse_util.flatten_dict(tree, sep="/") for tree in (self.shapes(step), wanted)
        )
        if digest(saved) != about.leaves:
            raise Damaged(f"{self._path(step)}: its list of leaves is not the one that was saved")
        require_fit(saved, needed, self._path(step))
        assets.require_same(files, self.files, self._path(step))
        on_all = jax.tree.map(lambda x: NamedSharding(x.sharding.mesh, PartitionSpec()), wanted)
        scalars = jax.tree.map(
            lambda sharding: jax.ShapeDtypeStruct((), jnp.uint32, sharding=sharding), on_all
        )
        return self._read(step, {"state": wanted, "checksums": scalars})

    def read_files(self, step: int) -> assets.Files:
        """The files stored in a checkpoint, by name; raises as `restore` does, or RunError at a
        name of no run."""
        return self._content(step)[1]

    def _content(self, step: int) -> tuple[About, assets.Files]:
        """What a checkpoint says of itself, and its files; read once."""
        if step not in self._contents:
            path, tree = self._path(step), self._tree(step)
            if ABOUT not in tree:
                raise RunError(
                    f"{path} does not say of which run it is, as of an older version: train anew"
                )
            names = tree.get("files") or {}
            if not isinstance(names, dict):
                raise Damaged(f"{path}: its files have no names")
            assets.check_names(names, path)
            parts = ({"files": names} if names else {}) | {ABOUT: tree[ABOUT]}
            shapes = reading.read(path, lambda: _shapes(parts))
            if any(math.prod(leaf.shape) > io_files.SMALL for leaf in jax.tree.leaves(shapes)):
                raise RunError(
                    f"{path} claims a file of more than {io_files.SMALL:,} bytes: do not use it"
                )
            content = self._read(step, shapes)
            packed = {**content.get("files", {}), ABOUT: content[ABOUT]}
            files, wrong = reading.read(path, lambda: assets.unpack(packed))
            if wrong:
                raise Damaged(f"{path}: the checksum of its {', '.join(wrong)} differs")
            about = reading.read(path, lambda: About(**json.loads(files.pop(ABOUT))))
            if sorted(files) != about.files:
                raise Damaged(
                    f"{path}: it has other files than were saved: {', '.join(about.files)}"
                )
            if about.step != step:
                raise RunError(
                    f"{path} is the checkpoint of step {about.step}: rename it back, or move it away"
                )
            if self.run and about.run != self.run:
                raise RunError(
                    f"{path} is of another run ({about.run}) than its folder ({self.run}): move it away"
                )
            self._contents[step] = about, files
        return self._contents[step]

    def _read(self, step: int, item: dict) -> Any:
        """The parts of a checkpoint that are named in `item`, a tree of shapes."""
        arguments = ocp.args.PyTreeRestore(
            item,
            restore_args=ocp.checkpoint_utils.construct_restore_args(item),
            partial_restore=True,
        )
        return reading.read(self._path(step), lambda: self._manager.restore(step, args=arguments))

    def _tree(self, step: int) -> Any:
        """The names of all that a checkpoint holds, with shapes and types."""

        def tree() -> Any:
            names = self._manager.item_metadata(step).tree
            if not {"state", "checksums"} <= set(names):
                raise ValueError("it has no state")
            return names

        return reading.read(self._path(step), tree)

    def restore_newest(self, template: Any) -> tuple[int, Any] | None:
        """The step and state of the newest good checkpoint, or None if there are no checkpoints.
        Damaged ones are named in the log and put aside.

        Raises:
            Unfit: their shapes differ from the template's.
            RunError: no checkpoint is good, one is of another run, or storage does not let one be
                read.
        """
        steps, newest = self.steps(), None
        for step in reversed(steps):
            try:
                if newest is None:
                    newest = step, self.restore(step, template)
                metrics = reading.on_all_processes(
                    self._path(step), lambda step=step: self._metrics(step)
                )
                self._metrics_by_step[step] = metrics
            except Damaged as error:
                self._put_aside(step, error)
        if steps and newest is None:
            tried = f"{self.folder} is good (tried {', '.join(map(str, steps))})"
            raise RunError(f"no checkpoint in {tried}; start in a new folder, or --restart")
        return newest

    def _put_aside(self, step: int, error: Damaged) -> None:
        if distributed.is_first():
            damaged = os.path.join(os.path.dirname(self.folder), DAMAGED, str(step))
            logging.error(
                "%s; it is put aside in %s", error, io_files.move(self._path(step), damaged)
            )
        distributed.wait_for_all(f"put {self._path(step)} aside")
        self._contents.pop(step, None)
        self._manager.reload()

    def shapes(self, step: int) -> dict:
        """The state of a checkpoint, as a nested dict of `jax.ShapeDtypeStruct`."""
        return _shapes(self._tree(step)["state"])

    def pick(self, which: str) -> int:
        """The step that `which` names: "latest", "best" or a number; raises RunError if there is no
        such checkpoint."""
        steps = self.steps()
        if not steps:
            raise RunError(
                f"there is no checkpoint in {self.folder}: train first, or give another folder"
            )
        if which == "latest":
            return steps[-1]
        if which == "best":
            return max(steps, key=lambda step: (self._worth(step), step))
        if which in (known := [str(step) for step in steps]):
            return int(which)
        raise RunError(
            f"{self.folder} has no checkpoint {which!r}: give latest, best, or one of {', '.join(known)}"
        )

    def _worth(self, step: int) -> tuple[bool, float]:
        """The rank of a checkpoint: by its metrics; a damaged one, which is named in the log,
        behind all others."""
        try:
            return True, rank(self._metrics(step), self._keep[2])
        except Damaged as error:
            logging.error("%s", error)
            return False, 0.0

    def _metrics(self, step: int) -> dict[str, float] | None:
        """The metrics of a checkpoint: its own, or else those of a later evaluation."""
        own = self._content(step)[0].metrics
        return self._evaluated_later.get(step) if own is None else own

    @functools.cached_property
    def _evaluated_later(self) -> dict[int, dict[str, float]]:
        """The evaluations in metrics.jsonl, by step. A checkpoint may lack its own: see
        `set_metrics`."""
        lines = MetricsFile.read(os.path.join(os.path.dirname(self.folder), METRICS_FILE))
        return {line["step"]: line["eval"] for line in lines if "eval" in line}

    def last_good(self) -> str:
        """A phrase, for messages, that names the newest finished checkpoint."""
        steps = [step for step in self.steps() if io_files.exists(self._path(step))]
        return (
            f"the last good checkpoint is {self._path(steps[-1])}"
            if steps
            else "there is no checkpoint yet"
        )

    def _failure(self, doing: str, error: Exception) -> RunError:
        """The error to raise for one of Orbax."""
        causes = () if io_files.is_remote(self.folder) else reading.chain(error)
        return storage.storage_error(doing, next(filter(storage.errno_of, causes), error))

    def _path(self, step: int) -> str:
        return os.path.join(self.folder, str(step))

    def _saving(self, doing: str, action: Callable[[], object]) -> None:
        """Turns an error of Orbax while saving into one line that names the newest good
        checkpoint."""
        try:
            done = action()
        except Exception as error:
            kind = self._failure(doing, error)
            raise type(kind)(f"{self.last_good()}; {kind} ({reading.first_line(error)})") from error
        if done is False:
            raise RunError(
                f"{doing} in {self.folder} failed: there is one of that step already; move it away"
            )


def _shapes(tree: Any) -> Any:
    """The shape and type of each leaf."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def rank(metrics: dict[str, float] | None, best: tuple[str, str]) -> float:
    """The worth of a checkpoint by the metric and the mode `best`, more is better; without an
    evaluation it is last."""
    value = (metrics or {}).get(best[0], math.nan)
    return -math.inf if not math.isfinite(value) else -value if best[1] == "min" else value


def kept(
    steps: Sequence[int],
    known: Mapping[int, dict[str, float] | None],
    keep: int,
    keep_best: int,
    best: tuple[str, str],
) -> set[int]:
    """Those of the steps, oldest first, whose checkpoints stay: the newest, the best, and those
    whose metrics are unknown.

    Args:
        known: the metrics of each step, None without an evaluation.
        keep, keep_best, best: as in Checkpoints.
    """

    def is_unknown(step: int) -> bool:
        metrics = known.get(step)
        return step not in known or bool(metrics and best[0] and best[0] not in metrics)

    ranks = sorted(((rank(known.get(step), best), step) for step in steps), reverse=True)
    first = [step for value, step in ranks[:keep_best] if value > -math.inf]
    return {*steps[-keep:], *first, *filter(is_unknown, steps)}


def delete(folder: str, step: int) -> None:
    """Deletes a checkpoint, which is never half there: a process may be killed at any moment.

    On a disk it is first moved to the folder `DELETED` in one stroke. In a bucket Orbax's mark of a
    finished checkpoint goes first, and a checkpoint without the mark counts as unfinished. Raises
    RunError if it is not moved.
    """
    checkpoint = os.path.join(folder, str(step))
    if io_files.is_remote(checkpoint):
        io_files.remove_all(checkpoint)
    else:
        io_files.move(checkpoint, os.path.join(folder, DELETED, str(step)))
        finish_deletion(folder)


def finish_deletion(folder: str) -> None:
    """Deletes what `delete` moved, in this process or one that was killed. What cannot be deleted
    now, as it is open on another machine, is tried again next time."""
    if not io_files.is_remote(folder):
        shutil.rmtree(os.path.join(folder, DELETED), ignore_errors=True)
