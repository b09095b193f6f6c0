"""Checkpoints: Orbax writes and reads the files, and checksums verify all that they hold.

A checkpoint is a folder of three items of Orbax: `state`, the arrays; `manifest`, a JSON file that
describes the checkpoint; and `files`, the other files of the run, unchanged. Orbax restores
flipped bits without an error, so a checkpoint is accepted only if every array that is restored and
every file have the checksums of the manifest.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint._src.serialization import tensorstore_utils

from gmlp_flax.checkpoints import DAMAGED, ENVIRONMENT_FILE, METRICS_FILE, assets, reading
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.checkpoints.files_handler import FilesHandler, SaveFiles
from gmlp_flax.checkpoints.manifest import MANIFEST_FILE, Manifest, describe_leaves
from gmlp_flax.checkpoints.metrics_file import MetricsFile, evaluations
from gmlp_flax.checkpoints.pytree import examine, from_dict, leaves_by_path, require_fit, to_dict
from gmlp_flax.checkpoints.reading import Damaged
from gmlp_flax.checkpoints.retention import Metrics, Retention, delete, finish_deletion
from gmlp_flax.errors import RunError, listed
from gmlp_flax.io import files as io_files
from gmlp_flax.io import json_files, storage
from gmlp_flax.processes import distributed

STATE = "state"
MANIFEST = "manifest"
ASSETS = "files"
UNNAMED = "default"  # what Orbax calls the only item of a checkpoint of gmlp_flax 0.2.0
# TensorStore's own 32 attempts, with up to 32 s between them, would take a quarter of an hour
# without a word.
RETRIES = {"max_retries": 8, "initial_delay": "500ms", "max_delay": "16s"}


def limit_retries() -> None:
    """Makes TensorStore report within about a minute that a bucket does not answer; Orbax has no
    option for it."""
    contexts = (
        tensorstore_utils._BASE_TS_CONTEXT,
        tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT,
    )
    for context in contexts:
        context["gcs_request_retries"] = RETRIES


class Checkpoints:
    """The checkpoints of one run, by step.

    Args:
        folder: an absolute path. It is made if it does not exist, unless `read_only`.
        run: the id of the run; a checkpoint of another run is refused. If empty, any is accepted.
        retention: which checkpoints stay.
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
        retention: Retention | None = None,
        files: Files | None = None,
        read_only: bool = False,
    ):
        self.folder = folder
        self.run = run
        self.retention = retention or Retention()
        self.files = files or {}
        assets.check_names(self.files, "the task")
        self._verified: dict[int, Metrics] = {}  # metrics by step
        self._manifests: dict[int, Manifest] = {}
        self._saved = False  # whether this object saved a step
        self._deleted: set[int] = set()
        if io_files.is_remote(folder):
            limit_retries()
        if distributed.is_first():
            self._clean_up(read_only)
        distributed.wait_for_all(f"looked into {folder}")
        self._manager = self._open_manager(read_only)

    def _clean_up(self, read_only: bool) -> None:
        """Names saves that were never finished, which Orbax deletes, and finishes deletions."""
        for name in io_files.listdir(self.folder):
            if ".orbax-checkpoint-tmp" in name:
                logging.error("%s/%s was never finished and is ignored", self.folder, name)
        if not read_only:
            finish_deletion(self.folder)

    def _open_manager(self, read_only: bool) -> ocp.CheckpointManager:
        """Orbax's manager, which keeps all checkpoints: see retention.py."""
        options = ocp.CheckpointManagerOptions(
            create=not read_only, read_only=read_only, cleanup_tmp_directories=not read_only
        )
        handlers = {
            STATE: ocp.PyTreeCheckpointHandler(),
            MANIFEST: ocp.JsonCheckpointHandler(MANIFEST_FILE),
            ASSETS: FilesHandler(),
        }
        try:
            return ocp.CheckpointManager(self.folder, item_handlers=handlers, options=options)
        except Exception as error:
            raise self._failure(f"opening {self.folder}", error) from error

    def steps(self) -> list[int]:
        """Steps of all finished checkpoints, oldest first."""
        return sorted({*self._manager.all_steps()} - self._deleted)

    def save(self, step: int, state: Any, metrics: dict[str, float] | None) -> None:
        """Starts to save a state and returns before it is written. Waits for the previous save.

        Args:
            step: the step of the state.
            state: any tree of arrays.
            metrics: from an evaluation of this state; None without one.

        Raises:
            RunError: a number in the state is not finite, or this save or the previous one failed.
        """
        self.wait()
        tree = to_dict(state)
        checksums, is_finite = examine(tree)
        if not is_finite:
            raise RunError(
                f"the state of step {step} is not finite: {self.last_good()}; "
                "lower learning_rate or clip"
            )
        checksum_by_path = leaves_by_path(jax.device_get(checksums))
        digests = {name: assets.sha256(content) for name, content in self.files.items()}
        manifest = Manifest(
            run=self.run,
            step=step,
            metrics=metrics,
            leaves=describe_leaves(tree, checksum_by_path),
            files=digests,
        )
        items = {
            STATE: ocp.args.PyTreeSave(tree),
            MANIFEST: ocp.args.JsonSave(manifest.to_json()),
            ASSETS: SaveFiles(self.files),
        }
        self._verified[step] = metrics

        def start() -> bool:
            return self._manager.save(step, args=ocp.args.Composite(**items))

        self._saving(f"saving step {step}", start)
        self._saved = True

    def set_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Sets the metrics of a state that may have been saved without them, because a signal ended
        its evaluation.

        Its checkpoint then competes for the best. Runs that resume read these metrics from
        metrics.jsonl.
        """
        self._verified[step] = metrics

    def wait(self) -> None:
        """Returns when the last save is complete, and the checkpoints that need not stay after it
        are deleted. Raises RunError if the save failed."""
        self._saving("saving", self._manager.wait_until_finished)
        if not self._saved:
            return
        steps = self.steps()
        kept = self.retention.kept(steps, self._verified)
        for step in steps:
            if step not in kept:
                self._delete(step)

    def _delete(self, step: int) -> None:
        self._deleted.add(step)
        if distributed.is_first():
            self._saving(f"deleting step {step}", lambda: delete(self.folder, step))

    def close(self) -> None:
        """Ends the background threads. Only `wait` reports a failed save."""
        self._manager.close()

    def restore(self, step: int, template: Any) -> Any:
        """Reads a checkpoint and verifies every array.

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
        path = self._path(step)
        restored = reading.on_all_processes(path, lambda: self._read_state(step, wanted))
        checksums, _ = examine(restored)
        saved = self._manifest(step).leaves
        checksum_by_path = leaves_by_path(jax.device_get(checksums))
        wrong = []
        for name, checksum in checksum_by_path.items():
            leaf = saved[name]
            if int(checksum) != leaf.checksum:
                wrong.append(name)
        if wrong:
            raise Damaged(f"{path}: the checksum of {listed(wrong)} differs")
        return from_dict(template, restored)

    def _read_state(self, step: int, wanted: dict) -> dict:
        """The wanted part of the state; its checksums are not compared yet."""
        path = self._path(step)
        saved = leaves_by_path(self.shapes(step))
        require_fit(saved, leaves_by_path(wanted), path)
        files = self.read_files(step)
        assets.require_same(files, self.files, path)
        item = ocp.args.PyTreeRestore(
            wanted,
            restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
            partial_restore=True,
        )
        arguments = ocp.args.Composite(**{STATE: item})
        restored = reading.read(path, lambda: self._manager.restore(step, args=arguments))
        return restored[STATE]

    def read_files(self, step: int) -> Files:
        """The files stored in a checkpoint, by name; raises as `restore` does, or RunError at a
        name of no run."""
        path = self._path(step)
        inside = os.path.join(path, ASSETS)
        digests = self._manifest(step).files
        assets.check_names(digests, path)
        files = reading.read(path, lambda: assets.read(inside, digests))
        wrong = []
        for name, content in files.items():
            if assets.sha256(content) != digests[name]:
                wrong.append(name)
        if wrong:
            raise Damaged(f"{path}: the checksum of its {', '.join(wrong)} differs")
        return files

    def shapes(self, step: int) -> dict:
        """The state of a checkpoint, as a nested dict of `jax.ShapeDtypeStruct`."""
        return self._manifest(step).shapes()

    def _manifest(self, step: int) -> Manifest:
        """The manifest of a checkpoint; read once."""
        if step not in self._manifests:
            self._manifests[step] = self._read_manifest(step)
        return self._manifests[step]

    def _read_manifest(self, step: int) -> Manifest:
        path = self._path(step)
        inside = os.path.join(path, MANIFEST)
        if io_files.exists(os.path.join(path, UNNAMED)):
            raise RunError(
                f"{path} has the format of gmlp_flax 0.2.0: open the run with that version, or with "
                f"the commit that its {ENVIRONMENT_FILE} names"
            )

        def parse() -> Manifest:
            files = assets.read(inside, [MANIFEST_FILE])
            content = files[MANIFEST_FILE]
            value = json_files.parse(content, MANIFEST_FILE, dict)
            return Manifest.from_json(value)

        manifest = reading.read(path, parse)
        if manifest.step != step:
            raise RunError(
                f"{path} is the checkpoint of step {manifest.step}: rename it back, or move it away"
            )
        if self.run and manifest.run != self.run:
            raise RunError(
                f"{path} is of another run ({manifest.run}) than its folder ({self.run}): "
                "move it away"
            )
        return manifest

    def restore_newest(self, template: Any) -> tuple[int, Any] | None:
        """The step and state of the newest good checkpoint, or None if there are no checkpoints.
        Damaged ones are named in the log and moved to DAMAGED.

        Raises:
            Unfit: their shapes differ from the template's.
            RunError: no checkpoint is good, one is of another run, or storage does not let one be
                read.
        """
        steps = self.steps()
        newest = None
        for step in reversed(steps):
            try:
                if newest is None:
                    newest = step, self.restore(step, template)
                self._verify_metrics(step)
            except Damaged as error:
                self._move_damaged(step, error)
        if steps and newest is None:
            tried = ", ".join(str(step) for step in steps)
            raise RunError(
                f"no checkpoint in {self.folder} is good (tried {tried}); "
                "start in a new folder, or --restart"
            )
        return newest

    def _verify_metrics(self, step: int) -> None:
        """Reads the metrics of a checkpoint, which then count when others are deleted."""
        path = self._path(step)
        self._verified[step] = reading.on_all_processes(path, lambda: self._metrics(step))

    def _move_damaged(self, step: int, error: Damaged) -> None:
        path = self._path(step)
        if distributed.is_first():
            workdir = os.path.dirname(self.folder)
            damaged = os.path.join(workdir, DAMAGED, str(step))
            moved = io_files.move(path, damaged)
            logging.error("%s; it is moved to %s", error, moved)
        distributed.wait_for_all(f"put {path} aside")
        self._manifests.pop(step, None)
        self._manager.reload()

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
        known = [str(step) for step in steps]
        if which in known:
            return int(which)
        raise RunError(
            f"{self.folder} has no checkpoint {which!r}: give latest, best, "
            f"or one of {', '.join(known)}"
        )

    def _worth(self, step: int) -> tuple[bool, float]:
        """The rank of a checkpoint by its metrics. A damaged one, which is named in the log, ranks
        below all others."""
        try:
            return True, self.retention.rank(self._metrics(step))
        except Damaged as error:
            logging.error("%s", error)
            return False, 0.0

    def _metrics(self, step: int) -> Metrics:
        """The metrics of a checkpoint: its own, or else those of a later evaluation."""
        manifest = self._manifest(step)
        if manifest.metrics is not None:
            return manifest.metrics
        return self._evaluated_later.get(step)

    @functools.cached_property
    def _evaluated_later(self) -> dict[int, dict[str, float]]:
        """The evaluations in metrics.jsonl, by step. A checkpoint may have none: see
        `set_metrics`."""
        workdir = os.path.dirname(self.folder)
        path = os.path.join(workdir, METRICS_FILE)
        lines = MetricsFile.read(path)
        return evaluations(lines)

    def last_good(self) -> str:
        """A phrase, for messages, that names the newest finished checkpoint."""
        paths = [self._path(step) for step in self.steps()]
        finished = [path for path in paths if io_files.exists(path)]
        if not finished:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is {finished[-1]}"

    def _path(self, step: int) -> str:
        return os.path.join(self.folder, str(step))

    def _saving(self, doing: str, action: Callable[[], object]) -> None:
        """Turns an error of Orbax while saving into one line that names the newest good
        checkpoint."""
        try:
            is_done = action()
        except Exception as error:
            failure = self._failure(doing, error)
            line = f"{self.last_good()}; {failure} ({reading.first_line(error)})"
            raise type(failure)(line) from error
        if is_done is False:
            raise RunError(
                f"{doing} in {self.folder} failed: there is one of that step already; move it away"
            )

    def _failure(self, doing: str, error: Exception) -> RunError:
        """The error to raise for an error of Orbax: on a disk, for the system's error behind it,
        if any."""
        if not io_files.is_remote(self.folder):
            for cause in reading.chain(error):
                if storage.errno_of(cause):
                    return storage.storage_error(doing, cause)
        return storage.storage_error(doing, error)
