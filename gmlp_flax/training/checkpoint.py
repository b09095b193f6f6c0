"""Checkpoints: Orbax writes and reads the files, and a checksum of every leaf verifies them.

Orbax restores flipped bits without an error. So each checkpoint stores a checksum of every leaf, computed on the
devices, and a restored checkpoint is accepted only if its leaves have the same checksums.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import shutil
import traceback
import warnings
from typing import Any

import chex
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint.checkpoint_managers import preservation_policy

from gmlp_flax.errors import RunError
from gmlp_flax.processes import distributed
from gmlp_flax.training import assets
from gmlp_flax.training.state import from_dict, path_name, to_dict

SHOWN = 3  # leaves that a message names
DAMAGED = "damaged"  # the folder for checkpoints that cannot be verified, beside the folder of the good ones


def checksum(x: jax.Array) -> jax.Array:
    """A uint32 that differs if any one element differs: the sum of all elements' bits, each hashed with its place.

    A sum modulo 2^32 does not depend on its order, so the checksum does not depend on how the array is sharded.
    """
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{min(x.dtype.itemsize, 4) * 8}"))
    bits = x.astype(jnp.uint32)
    place = jnp.zeros(bits.shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(bits.ndim)):
        place += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(stride % 2**32)
        stride *= bits.shape[axis]
    mixed = bits ^ (place * jnp.uint32(0x9E3779B9))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):  # MurmurHash3's finalizer, a bijection
        mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
    return (mixed ^ (mixed >> 16)).sum(dtype=jnp.uint32)


@jax.jit
def examine(tree: Any) -> tuple[Any, jax.Array]:
    """The checksum of each leaf, and whether all floating-point numbers are finite."""
    finite = [jnp.isfinite(x).all() for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jax.tree.map(checksum, tree), jnp.all(jnp.array(finite))


class Checkpoints:
    """The checkpoints of one run, by step.

    Args:
        folder: an absolute path. It is made if it does not exist, unless `read_only`.
        keep: how many of the newest checkpoints stay.
        keep_best: how many of the best ones stay as well.
        best: a metric, and "min" or "max".
        files: stored in each checkpoint; a checkpoint with other files is not restored.
        read_only: nothing is written, moved or deleted.
    """

    def __init__(self, folder: str, *, keep: int = 1, keep_best: int = 0, best: tuple[str, str] = ("", "min"),
                 files: assets.Files | None = None, read_only: bool = False):
        self.folder, self.files, (metric, mode) = folder, files or {}, best

        def rank(metrics: dict[str, float]) -> float:
            """More is better; a step without an evaluation comes last."""
            value = metrics.get(metric, math.nan)
            return -math.inf if not math.isfinite(value) else -value if mode == "min" else value

        self._rank = rank
        options = ocp.CheckpointManagerOptions(
            create=not read_only, read_only=read_only, cleanup_tmp_directories=not read_only,
            preservation_policy=preservation_policy.AnyPreservationPolicy([
                preservation_policy.LatestN(keep),
                preservation_policy.BestN(
                    get_metric_fn=rank, n=keep_best, keep_checkpoints_without_metrics=False
                ),
            ]),
            best_fn=rank, best_mode="max",
        )
        if distributed.is_first():
            _tidy(folder, read_only)
        distributed.wait_for_all(f"tidied {folder}")
        self._manager = ocp.CheckpointManager(folder, item_handlers=ocp.PyTreeCheckpointHandler(), options=options)

    def steps(self) -> list[int]:
        """Steps of all finished checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Any, metrics: dict[str, float] | None) -> None:
        """Starts to save a state and returns before it is written. Waits for the previous save to end.

        Args:
            step: the step of the state.
            state: any tree of arrays.
            metrics: from an evaluation of this state; None without one.

        Raises:
            RunError: a number in the state is not finite, or this save or the previous one failed.
        """
        tree = to_dict(state)
        checksums, finite = examine(tree)
        if not finite:
            raise RunError(
                f"the state of step {step} is not finite and was not saved; {self.last_good()}; lower "
                "config.optimizer.learning_rate or clip, and start from there"
            )
        with self._explained(f"saving step {step}"):
            item = {"state": tree, "checksums": checksums, "files": assets.pack(self.files)}
            self._manager.save(step, args=ocp.args.PyTreeSave(item), metrics=metrics or {})

    def wait(self) -> None:
        """Returns when the last save is complete.

        Raises:
            RunError: the save failed.
        """
        with self._explained("saving"):
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Ends the background threads. Only `wait` tells of a failed save."""
        self._manager.close()

    def restore(self, step: int, template: Any) -> Any:
        """Reads a checkpoint and verifies every leaf.

        Args:
            step: the step of the checkpoint.
            template: tree of `jax.ShapeDtypeStruct` with shardings. It may be a part of the saved state.

        Returns:
            Arrays in the structure, shapes and shardings of the template.

        Raises:
            RunError: a path is missing or has another shape or type (all are listed), or one of `files` differs.
            Damaged: the checkpoint cannot be read, or the checksum of a leaf differs.
        """
        wanted = to_dict(template)
        restored = self._read_verifiable(step, wanted)
        found, _ = examine(restored["state"])
        pairs = jax.device_get(jax.tree.map(lambda *pair: pair, found, restored["checksums"]))
        leaves = jax.tree_util.tree_leaves_with_path(pairs, is_leaf=lambda x: isinstance(x, tuple))
        wrong = [path_name(path) for path, (now, saved) in leaves if now != saved]
        if wrong:
            raise Damaged(f"{self.folder}/{step}: the checksum of {', '.join(wrong[:3])} differs ({len(wrong)} in all)")
        state = from_dict(template, restored["state"])
        chex.assert_trees_all_equal_shapes_and_dtypes(state, template)
        return state

    def _read_verifiable(self, step: int, wanted: dict) -> dict:
        """The wanted parts of the state and their checksums. All processes succeed or all fail: each reads the share of
        its devices, and if only one failed, the others would wait for it in the next collective."""
        problem, restored = None, {}
        try:
            saved, needed = (traverse_util.flatten_dict(tree, sep="/") for tree in (self.shapes(step), wanted))
            require_fit(saved, needed, f"{self.folder}/{step}")
            if self.files:
                assets.require_same(self.read_files(step), self.files, f"{self.folder}/{step}")
            on_all = jax.tree.map(lambda x: NamedSharding(x.sharding.mesh, PartitionSpec()), wanted)
            scalars = jax.tree.map(lambda sharding: jax.ShapeDtypeStruct((), jnp.uint32, sharding=sharding), on_all)
            restored = self._read(step, {"state": wanted, "checksums": scalars})
        except RunError as error:
            problem = error
        if not distributed.everywhere(problem is None):
            raise problem or Damaged(f"{self.folder}/{step} cannot be read by another process")
        return restored

    def read_files(self, step: int) -> assets.Files:
        """The files stored in a checkpoint, by name.

        Raises:
            Damaged: they cannot be read, or the checksum of one differs.
        """
        with _reading(f"{self.folder}/{step}"):
            tree = self._manager.item_metadata(step).tree.get("files") or {}
        packed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
        files, wrong = assets.unpack(self._read(step, {"files": packed})["files"]) if tree else ({}, [])
        if wrong:
            raise Damaged(f"{self.folder}/{step}: the checksum of its {', '.join(wrong)} differs")
        return files

    def _read(self, step: int, item: dict) -> Any:
        """The parts of a checkpoint that are named in `item`, a tree of shapes."""
        with _reading(f"{self.folder}/{step}"):
            return self._manager.restore(
                step,
                args=ocp.args.PyTreeRestore(
                    item, restore_args=ocp.checkpoint_utils.construct_restore_args(item), partial_restore=True
                ),
            )

    def restore_newest(self, template: Any) -> tuple[int, Any] | None:
        """Restores the newest good checkpoint. Damaged ones that are newer are named in the log and put aside.

        Returns:
            Its step and state, or None if there are no checkpoints.

        Raises:
            Unfit: their shapes differ from the template's.
            RunError: no checkpoint is good.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return step, self.restore(step, template)
            except Damaged as error:
                if distributed.is_first():
                    logging.error("%s; it is put aside in %s", error, _put_aside(self.folder, step))
                distributed.wait_for_all(f"put {self.folder}/{step} aside")
                self._manager.reload()
        if steps:
            tried = ", ".join(map(str, steps))
            raise RunError(f"no checkpoint in {self.folder} is good (tried {tried}); start in a new folder")
        return None

    def shapes(self, step: int) -> dict:
        """The state of a checkpoint, as a nested dict of `jax.ShapeDtypeStruct`."""
        with _reading(f"{self.folder}/{step}"):
            tree: Any = self._manager.item_metadata(step).tree["state"]
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)

    def pick(self, which: str) -> int:
        """The step that `which` names: "latest", "best" or a number.

        Raises:
            RunError: there is no such checkpoint.
        """
        steps = self.steps()
        if not steps:
            raise RunError(f"there is no checkpoint in {self.folder}: train first, or give another folder")
        if which == "latest":
            return steps[-1]
        if which == "best":
            return max(steps, key=lambda step: (self._rank(self._manager.metrics(step) or {}), step))
        if which in (known := [str(step) for step in steps]):
            return int(which)
        raise RunError(f"{self.folder} has no checkpoint {which!r}: give latest, best, or one of {', '.join(known)}")

    def last_good(self) -> str:
        """A phrase, for messages, that names the newest finished checkpoint."""
        steps = [step for step in self.steps() if os.path.isdir(os.path.join(self.folder, str(step)))]
        return f"the last good checkpoint is {self.folder}/{steps[-1]}" if steps else "there is no checkpoint yet"

    @contextlib.contextmanager
    def _explained(self, doing: str):
        """Turns an error of Orbax while saving into one line that names the newest good checkpoint."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - see _reading
            raise RunError(
                f"{doing} in {self.folder} failed ({_first_line(error)}); {self.last_good()}; free space and run the "
                "same command again"
            ) from error


def require_fit(saved: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    """Compares flat dicts of arrays or shapes.

    Raises:
        Unfit: a wanted path is missing or has another shape or type; it names the first three.
    """
    problems = []
    for name, leaf in wanted.items():
        if name not in saved:
            problems.append(f"{name} is missing")
        elif (saved[name].shape, saved[name].dtype) != (leaf.shape, leaf.dtype):
            old = saved[name]
            problems.append(f"{name} is {old.dtype}{list(old.shape)}, not {leaf.dtype}{list(leaf.shape)}")
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise Unfit(f"the checkpoint {where} does not fit this config: {'; '.join(problems[:SHOWN])}{more}")


class Unfit(RunError):
    """A checkpoint of another model or optimizer."""


class Damaged(RunError):
    """A checkpoint that cannot be read, or whose checksums differ."""


@contextlib.contextmanager
def _reading(checkpoint: str):
    """Turns an error of Orbax while reading into `Damaged`, without warnings about the coroutines it abandons."""
    problem = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except Exception as error:  # noqa: BLE001 - Orbax and TensorStore raise bare exceptions for damaged files
            problem = _first_line(error)
            traceback.clear_frames(error.__traceback__)
        if problem is not None:
            gc.collect()
    if problem is not None:
        raise Damaged(f"{checkpoint} cannot be read ({problem})")


def _tidy(folder: str, read_only: bool) -> None:
    """Names unfinished checkpoints, and puts aside those with unreadable metrics.

    Orbax reads the metrics of all checkpoints when it opens a folder, and fails if one cannot be read.
    """
    for name in sorted(os.listdir(folder) if os.path.isdir(folder) else []):
        if ".orbax-checkpoint-tmp" in name:
            logging.error("%s/%s was never finished and is ignored", folder, name)
    for step in _unreadable_metrics(folder):
        problem = f"{folder}/{step}/metrics cannot be read"
        if read_only:
            raise Damaged(f"{problem}: move {folder}/{step} away, or run the training command again, which does")
        logging.error("%s; the checkpoint is put aside in %s", problem, _put_aside(folder, step))


def _put_aside(folder: str, step: int) -> str:
    target = os.path.join(os.path.dirname(folder), DAMAGED, str(step))
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.move(os.path.join(folder, str(step)), target)
    return target


def _unreadable_metrics(folder: str) -> list[int]:
    steps = [int(name) for name in os.listdir(folder) if name.isdigit()] if os.path.isdir(folder) else []
    return [step for step in sorted(steps) if not _is_json(os.path.join(folder, str(step), "metrics", "metrics"))]


def _is_json(path: str) -> bool:
    if not os.path.exists(path):
        return True
    try:
        with open(path, "rb") as file:
            json.load(file)
    except ValueError:
        return False
    return True


def _first_line(error: BaseException) -> str:
    """A message of TensorStore begins with its action and ends with the cause; then options follow in brackets."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].partition(" [")[0]
    return line if len(line) <= 300 else f"{line[:140]} ... {line[-140:]}"
