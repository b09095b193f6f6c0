"""Checkpoints: Orbax for the files, a checksum of every leaf for the truth of them.

Orbax restores flipped bits without a word. So each checkpoint stores a checksum of every leaf, computed on the
devices, and a restored one is believed only if its leaves give the same.
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

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from flax import traverse_util
from orbax.checkpoint.checkpoint_managers import preservation_policy

from gmlp_flax.training import assets, distributed, partition
from gmlp_flax.training.errors import RunError
from gmlp_flax.training.state import from_dict, path_name, to_dict

DAMAGED = "damaged"  # folder beside the checkpoints where those that do not verify are put


def checksum(x: jax.Array) -> jax.Array:
    """uint32 over the bits of an array, each hashed with its place. Any changed element changes it.

    Sums modulo 2^32 in any order are equal, so the value does not depend on how the array is sharded.
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
    """The checksum of each leaf, and whether no floating leaf holds a NaN or an infinity."""
    finite = [jnp.isfinite(x).all() for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jax.tree.map(checksum, tree), jnp.all(jnp.array(finite))


class Checkpoints:
    """The checkpoints of one run, by step.

    Args:
        folder: absolute; made if need be, unless `read_only`.
        keep: newest ones that stay.
        keep_best: best ones that stay as well.
        best: metric and "min" or "max".
        files: what each checkpoint carries beside its arrays, and must agree with when it is restored.
        read_only: nothing is written or tidied.
    """

    def __init__(self, folder: str, *, keep: int = 1, keep_best: int = 0, best: tuple[str, str] = ("", "min"),
                 files: assets.Files | None = None, read_only: bool = False):
        self.folder, self.files, (metric, mode) = folder, files or {}, best

        def rank(metrics: dict[str, float]) -> float:
            """More is better; least where this step was not evaluated."""
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
        """Begins to save a state; returns before it is written. Waits for the save before, if it still runs.

        Args:
            step: the state's.
            state: any tree of arrays.
            metrics: of an evaluation of this very state, or None.

        Raises:
            RunError: the state holds a number that is not finite, or a save failed, this one or the one before.
        """
        tree = to_dict(state)
        sums, finite = examine(tree)
        if not finite:
            raise RunError(f"the state of step {step} is not finite and was not saved; {self.last_good()}")
        with self._explained(f"saving step {step}"):
            item = {"state": tree, "checksums": sums, "files": assets.pack(self.files)}
            self._manager.save(step, args=ocp.args.PyTreeSave(item), metrics=metrics or {})

    def wait(self) -> None:
        """Returns when the last save is on disk.

        Raises:
            RunError: it failed.
        """
        with self._explained("saving"):
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Ends the background threads. Call `wait` before, to hear of a failed save."""
        self._manager.close()

    def restore(self, step: int, template: Any) -> Any:
        """Reads a checkpoint into the template's structure and shardings, and verifies every leaf.

        Args:
            step: which one.
            template: tree of `jax.ShapeDtypeStruct` with shardings; a part of what was saved will do.

        Raises:
            RunError: a path is missing or has another shape or type (all are listed), or the checkpoint carries
                another version of one of `files`.
            Damaged: the files cannot be read, or a leaf's checksum differs.
        """
        wanted = to_dict(template)
        restored = self._read_whole(step, wanted)
        found, _ = examine(restored["state"])
        pairs = jax.device_get(jax.tree.map(lambda *pair: pair, found, restored["checksums"]))
        leaves = jax.tree_util.tree_leaves_with_path(pairs, is_leaf=lambda x: isinstance(x, tuple))
        wrong = [path_name(path) for path, (now, saved) in leaves if now != saved]
        if wrong:
            raise Damaged(f"{self.folder}/{step}: the checksum of {', '.join(wrong[:3])} differs ({len(wrong)} in all)")
        return from_dict(template, restored["state"])

    def _read_whole(self, step: int, wanted: dict) -> dict:
        """Parts of the state and their checksums, read on every process or refused on every one: each reads what its
        devices hold, and one that alone failed would leave the others waiting for it in the next collective."""
        problem, restored = None, {}
        try:
            self._check_shapes(step, wanted)
            if self.files:
                assets.require_same(self.read_files(step), self.files, f"{self.folder}/{step}")
            scalars = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((), jnp.uint32, sharding=partition.replicated(x.sharding.mesh)), wanted
            )
            restored = self._read(step, {"state": wanted, "checksums": scalars})
        except RunError as error:
            problem = error
        if not distributed.everywhere(problem is None):
            raise problem or Damaged(f"{self.folder}/{step} cannot be read by another process")
        return restored

    def read_files(self, step: int) -> assets.Files:
        """The files that a checkpoint carries, by name.

        Raises:
            Damaged: they cannot be read, or one's checksum differs.
        """
        with _reading(f"{self.folder}/{step}"):
            tree = self._manager.item_metadata(step).tree.get("files") or {}
        packed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
        files, wrong = assets.unpack(self._read(step, {"files": packed})["files"]) if tree else ({}, [])
        if wrong:
            raise Damaged(f"{self.folder}/{step}: the checksum of its {', '.join(wrong)} differs")
        return files

    def _read(self, step: int, item: dict) -> dict:
        """The parts of a checkpoint that a tree of shapes asks for."""
        with _reading(f"{self.folder}/{step}"):
            return self._manager.restore(
                step,
                args=ocp.args.PyTreeRestore(
                    item, restore_args=ocp.checkpoint_utils.construct_restore_args(item), partial_restore=True
                ),
            )

    def restore_newest(self, template: Any) -> tuple[int, Any] | None:
        """The newest checkpoint that verifies; the damaged ones newer than it are named and put aside.

        Returns:
            Its step and state, or None where there is no checkpoint at all.

        Raises:
            RunError: there are checkpoints, but none is good, or they are of another shape.
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
        """What a checkpoint's state holds, a nested dict of `jax.ShapeDtypeStruct`."""
        with _reading(f"{self.folder}/{step}"):
            tree = self._manager.item_metadata(step).tree["state"]
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)

    def pick(self, which: str) -> int:
        """The step that "latest", "best" or a number names.

        Raises:
            RunError: there is no such checkpoint.
        """
        steps = self.steps()
        if not steps:
            raise RunError(f"there is no checkpoint in {self.folder}")
        if which == "latest":
            return steps[-1]
        if which == "best":
            return max(steps, key=lambda step: (self._rank(self._manager.metrics(step) or {}), step))
        if which in (known := [str(step) for step in steps]):
            return int(which)
        raise RunError(f"{self.folder} has no checkpoint {which!r}: give latest, best, or one of {', '.join(known)}")

    def _check_shapes(self, step: int, wanted: dict) -> None:
        saved = traverse_util.flatten_dict(self.shapes(step), sep="/")
        require_fit(saved, traverse_util.flatten_dict(wanted, sep="/"), f"{self.folder}/{step}")

    def last_good(self) -> str:
        """Words that name the newest finished checkpoint."""
        steps = [step for step in self.steps() if os.path.isdir(os.path.join(self.folder, str(step)))]
        return f"the last good checkpoint is {self.folder}/{steps[-1]}" if steps else "there is no checkpoint yet"

    @contextlib.contextmanager
    def _explained(self, doing: str):
        """Turns what Orbax raises while it saves into one line that names the checkpoint which survives."""
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
        RunError: listing every wanted path that is missing or has another shape or type.
    """
    problems = []
    for name, leaf in wanted.items():
        if name not in saved:
            problems.append(f"{name} is missing")
        elif (saved[name].shape, saved[name].dtype) != (leaf.shape, leaf.dtype):
            old = saved[name]
            problems.append(f"{name} is {old.dtype}{list(old.shape)}, not {leaf.dtype}{list(leaf.shape)}")
    if problems:
        raise RunError(f"the checkpoint {where} does not fit this config: {'; '.join(problems)}")


class Damaged(RunError):
    """A checkpoint that cannot be read or does not verify."""


@contextlib.contextmanager
def _reading(checkpoint: str):
    """Turns what Orbax raises for damaged files into one line, and does without warnings of its abandoned coroutines.

    Raises:
        Damaged: the files cannot be read.
    """
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
    """Names what was never finished, and puts aside what Orbax cannot open a folder with: it reads the metrics of all
    checkpoints at once."""
    for name in _half_written(folder):
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


def _half_written(folder: str) -> list[str]:
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(name for name in names if ".orbax-checkpoint-tmp" in name)


def _first_line(error: BaseException) -> str:
    """What TensorStore says begins with what it did and ends with the cause, before a list of options in brackets."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].partition(" [")[0]
    return line if len(line) <= 300 else f"{line[:140]} ... {line[-140:]}"
