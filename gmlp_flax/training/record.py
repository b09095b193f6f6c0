"""The record of the settings of a run.

config.json is written when a step is taken under it, and each change of it is a line of
metrics.jsonl.
"""

import importlib.metadata
import importlib.resources
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints import CONFIG_FILE, ENVIRONMENT_FILE, run_folder
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.checkpoints.reading import on_all_processes
from gmlp_flax.checkpoints.run_folder import RunFolder, checkpoint_steps
from gmlp_flax.config import named_overrides, schema
from gmlp_flax.data.splits import SIDES
from gmlp_flax.errors import RunError, listed
from gmlp_flax.io import files as io_files
from gmlp_flax.io import json_files, tfds_folders
from gmlp_flax.processes import distributed
from gmlp_flax.tasks import sides as data_sides
from gmlp_flax.tasks.base import Task

DATA_KEYS = (  # that say which data are read
    *(
        "data.train",
        "data.heldout",
        "data.split",
        "data.heldout_split",
        "data.heldout_share",
        "data.search",
    ),
    *("glue.task", "own.text", "own.second", "own.label", "squad.version"),
)
PACKAGES = (
    "gmlp_flax",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "numpy",
    "sentencepiece",
)


def changes(
    workdir: str, config: ConfigDict, dropped: dict[str, Any] | None = None
) -> dict[str, tuple[Any, Any]]:
    """The keys in which the config of the steps to come differs from that of a run, with the old
    and the new value.

    `dropped` are the values before changes whose steps are lost (`MetricsFile.dropped_changes`).
    Raises ConfigError if config.json is damaged.
    """
    path = os.path.join(workdir, CONFIG_FILE)
    if not io_files.exists(path):
        return {}
    new = config_lib.flat(config)
    pairs = config_lib.differences(config_lib.load(path), config)
    for name, old in (dropped or {}).items():
        pairs[name] = (old, new.get(name))
    return {name: (old, new) for name, (old, new) in pairs.items() if _plain(old) != _plain(new)}


def refuse_changes(workdir: str, config: ConfigDict) -> None:
    """Raises RunError, with the keys, if a config contradicts the steps that the run has already
    taken; or ConfigError if config.json is damaged."""
    changed, kind = changes(workdir, config), (config.model.block, config.optimizer.name)
    # see `check_data`
    moved = ("data.train", "data.heldout") if run_folder.read_identity(workdir).get("data") else ()
    fixed = [
        f"config.{name} was {old!r}"
        for name, (old, new) in changed.items()
        if not schema.may_change(name, *kind) and not (name in moved and old and new)
    ]
    if fixed and checkpoint_steps(workdir):
        raise RunError(f"{listed(fixed)}: use another --workdir, or set it back: it has steps")


def check_data(
    workdir: str, task: Task, advice: str, chosen: bool = False, sides: Sequence[str] = SIDES
) -> Any:
    """Compares the data that a task reads with those that the run in a folder was trained on, by
    their fingerprints.

    Args:
        workdir: the run folder.
        task: reads the data.
        advice: how to go on over other data, for the message.
        chosen: whether the user wants these data, even if they are others: that is only said.
        sides: which to compare.

    Returns:
        By side, the absolute path of the data, and their fingerprint; {} on other processes than
        the first.

    Raises:
        RunError: the data are others; it names the key, the paths and what differs. On all
            processes.
    """

    def compare() -> dict[str, Any]:
        """On the first process alone, whose error the others learn of."""
        before, now = run_folder.read_identity(workdir).get("data") or {}, {}
        for side in sides if distributed.is_first() else ():
            if not (fingerprint := task.fingerprint(side)):
                continue
            path = data_sides.path_of(task.config, side)
            absolute = (
                path if path == data_sides.EMBEDDED else io_files.absolute(tfds_folders.find(path))
            )
            now[side] = {"path": absolute, **fingerprint}
            old = before.get(side, {})
            if differs := _difference(old, fingerprint):
                key, run = (
                    data_sides.key_of(task.config, side),
                    f"{workdir} was trained with {old['path']}",
                )
                line = f"the {side} data, config.data.{key}={path}, are not the run's ({differs}): {run}"
                if not chosen:
                    raise RunError(f"{line}; give those data, or another --workdir; or {advice}")
                distributed.say(f"note: {line}")
        return now

    return on_all_processes(workdir, compare)


def check_heldout(workdir: str, task: Task, words: Sequence[str]) -> None:
    """Refuses to score other held-out data than the run's, as `check_data`, unless a command line's
    words, or a config that is not the run's, choose them. Names inputs that are not prepared as in
    training."""
    changed = config_lib.differences(
        config_lib.load(os.path.join(workdir, CONFIG_FILE)), task.config
    )
    if shown := listed(
        f"{name} {own!r} (here {new!r})"
        for name, (own, new) in changed.items()
        if name in task.inherited_keys
    ):
        distributed.say(
            f"warning: {workdir} was trained with another {shown}: these scores are of other inputs"
        )
    chosen = not {*named_overrides(words), *changed}.isdisjoint(DATA_KEYS)
    key = data_sides.key_of(task.config, "heldout")
    check_data(
        workdir,
        task,
        f"score these with --config.data.{key}={task.config.data[key]}",
        chosen,
        ("heldout",),
    )


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs in two fingerprints; "" if nothing that both have does."""
    names = [name for name in now if before.get(name, now[name]) != now[name]]
    counts = [
        f"{now[name]:,} {name} (were {before[name]:,})"
        for name in names
        if isinstance(now[name], int)
    ]
    return ", ".join(
        [*counts, *(f"other {name}" for name in names if not isinstance(now[name], int))]
    )


def take_step(folder: RunFolder, config: ConfigDict, files: Files, metrics: MetricsFile) -> None:
    """Writes down under which config the steps after `metrics.resume_step` are taken, the first of
    which is done.

    The line in metrics.jsonl comes first: a run that is killed after it finds it again, and writes
        config.json.
    """
    if not distributed.is_first():
        return
    folder.begin_steps(files)
    json_files.write(os.path.join(folder.path, ENVIRONMENT_FILE), environment())
    metrics.begin()
    changed = changes(folder.path, config, metrics.dropped_changes)
    if changed:
        pairs = {name: [_plain(old), _plain(new)] for name, (old, new) in changed.items()}
        metrics.write({"step": metrics.resume_step, "changed": pairs})
    io_files.write(os.path.join(folder.path, CONFIG_FILE), config_lib.to_json(config).encode())


def _plain(value: Any) -> Any:
    """A config's value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def environment() -> dict[str, Any]:
    """Versions, devices and the commit; None for a package that is not installed and for code
    outside git."""
    root = str(importlib.resources.files("gmlp_flax"))
    devices = jax.devices()
    # not a wheel inside somebody's repository
    tracked = _git(root, "ls-files", "--error-unmatch", "__init__.py")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": {
            "kind": devices[0].device_kind,
            "count": len(devices),
            "hosts": jax.process_count(),
        },
        "git_commit": _git(root, "rev-parse", "HEAD") if tracked else None,
        "git_dirty": bool(tracked and _git(root, "status", "--porcelain")),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(root: str, *command: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", root, *command], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
