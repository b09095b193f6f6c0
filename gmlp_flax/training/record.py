"""The record of the settings of a run.

config.json is written when a step is taken under it, and each change of it is a line of
metrics.jsonl.
"""

import importlib.metadata
import importlib.resources
import os
import platform
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints import CONFIG_FILE, ENVIRONMENT_FILE, run_folder
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.checkpoints.reading import on_all_processes
from gmlp_flax.checkpoints.run_folder import RunFolder, checkpoint_steps
from gmlp_flax.config import schema
from gmlp_flax.data.holdout import HELDOUT, ROLES, TRAIN
from gmlp_flax.errors import RunError, listed
from gmlp_flax.io import files as io_files
from gmlp_flax.io import json_files, tfds_folders
from gmlp_flax.processes import distributed
from gmlp_flax.tasks.data import config as data_config
from gmlp_flax.tasks.data.base import TaskData

_ROLE_WORDS = {TRAIN: "training", HELDOUT: "held-out"}
_FINGERPRINT_WORDS = {"names": "file names"}  # where a key alone would be unclear

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
    """The keys in which the config of the next steps differs from that of a run, with the old and
    the new value.

    `dropped` are the values before changes whose steps are lost (`MetricsFile.dropped_changes`).
    Raises ConfigError if config.json is damaged.
    """
    path = os.path.join(workdir, CONFIG_FILE)
    if not io_files.exists(path):
        return {}
    run_config = config_lib.load(path)
    pairs = config_lib.differences(run_config, config)
    if dropped:
        pairs |= _with_new_values(dropped, config)
    changed = {}
    for name, (old, new) in pairs.items():
        if _plain(old) != _plain(new):
            changed[name] = (old, new)
    return changed


def _with_new_values(dropped: Mapping[str, Any], config: ConfigDict) -> dict[str, tuple[Any, Any]]:
    """Old values, each with the value of its key in a config, by today's names of the keys."""
    values = config_lib.flat(config)
    known = config_lib.keys(config)
    renamed = schema.former_names(known)
    pairs = {}
    for written_name, old in dropped.items():
        name = renamed.get(written_name, written_name)
        new = values.get(name)
        pairs[name] = (old, new)
    return pairs


def refuse_changes(workdir: str, config: ConfigDict) -> None:
    """Raises RunError, with the keys, if a config contradicts the steps that the run has already
    taken; or ConfigError if config.json is damaged."""
    known = config_lib.keys(config)
    identity = run_folder.read_identity(workdir)
    has_fingerprints = bool(identity.get("data"))
    changed = changes(workdir, config)
    refused = []
    for name, (old, new) in changed.items():
        may_move = has_fingerprints and name in known and known[name].may_move
        if may_move and old and new:
            continue  # `check_data` compares the data
        if not schema.may_change(name, config):
            refused.append(f"config.{name} was {old!r}")
    if refused and checkpoint_steps(workdir):
        values = listed(refused)
        raise RunError(f"{values}: use another --workdir, or set it back: it has steps")


def check_data(
    workdir: str,
    data: TaskData,
    advice: str,
    chosen: bool = False,
    roles: Sequence[str] = ROLES,
    consequence: str = "",
) -> Any:
    """Compares the data of a task with the data that the run in a folder was trained on, by their
    fingerprints.

    Args:
        workdir: the run folder.
        data: the data to compare.
        advice: how to resume over other data, for the message.
        chosen: whether the user wants these data even if they differ. Then a difference is only
            printed.
        roles: whose data to compare.
        consequence: what follows from a difference, for the end of the line that is printed.

    Returns:
        By role, the absolute path of the data, and their fingerprint; {} on other processes than
        the first.

    Raises:
        RunError: the data differ. The message has the key, the paths and what differs. On all
            processes.
    """

    def compare() -> dict[str, Any]:
        """On the first process alone. The other processes raise its error."""
        identity = run_folder.read_identity(workdir)
        before = identity.get("data") or {}
        now: dict[str, Any] = {}
        if not distributed.is_first():
            return now
        for role in roles:
            fingerprint = data.fingerprint(role)
            if not fingerprint:
                continue
            path = data_config.path_of(data.config, role)
            absolute = _absolute(path)
            now[role] = {"path": absolute, **fingerprint}
            old = before.get(role, {})
            difference = _difference(old, fingerprint)
            if not difference:
                continue
            key = data_config.key_of(data.config, role)
            word = _ROLE_WORDS[role]
            subject = f"the {word} data, config.data.{key}={path}"
            old_path = old["path"]
            if absolute == old_path:
                line = f"{subject}, have changed since the run {workdir} ({difference})"
            else:
                line = f"{subject}, are not those of the run {workdir}, {old_path} ({difference})"
            if not chosen:
                raise RunError(f"{line}: give the run's data, or another --workdir, or {advice}")
            distributed.say(f"note: {line}{consequence}")
        return now

    return on_all_processes(workdir, compare)


def _absolute(path: str) -> str:
    """The path of data, independent of the current folder."""
    if path == data_config.EMBEDDED:
        return path
    folder = tfds_folders.find(path)
    return io_files.absolute(folder)


def check_heldout(
    workdir: str, run_config: ConfigDict, data: TaskData, explicit: Collection[str]
) -> None:
    """Refuses to score other held-out data than the run's, as `check_data` does, unless the user
    chose them. Warns of inputs that are not prepared as in training.

    Args:
        workdir: the run folder, or the exported folder; "" for weights from elsewhere.
        run_config: of the run.
        data: the data to score, whose config may differ from the run's.
        explicit: the keys of the config that the user set.
    """
    known = config_lib.keys(data.config)
    changed = config_lib.differences(run_config, data.config)
    other_inputs = []
    for name, (old, new) in changed.items():
        if name in known and known[name].inherited:
            other_inputs.append(f"{name} {old!r} (here {new!r})")
    if other_inputs:
        model = workdir or "the model"
        others = listed(other_inputs)
        distributed.say(
            f"warning: {model} was trained with another {others}: these scores are of other inputs"
        )
    if not workdir:
        return
    selecting = {name for name, option in known.items() if option.selects_data}
    set_keys = {*explicit, *changed}
    chosen = not selecting.isdisjoint(set_keys)
    key = data_config.key_of(data.config, "heldout")
    path = data.config.data[key]
    advice = f"score these with --config.data.{key}={path}"
    consequence = ": do not compare these scores with the run's own"
    check_data(workdir, data, advice, chosen, ("heldout",), consequence)


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs in two fingerprints, counts first; "" if all that both have agrees."""
    counts = []
    others = []
    for name, value in now.items():
        old = before.get(name, value)
        if old == value:
            continue
        if isinstance(value, int):
            counts.append(f"{value:,} {name}, the run had {old:,}")
        else:
            words = _FINGERPRINT_WORDS.get(name, name)
            others.append(f"different {words}")
    differences = counts + others
    return "; ".join(differences)


def take_step(folder: RunFolder, config: ConfigDict, files: Files, metrics: MetricsFile) -> None:
    """Records the config of the steps after `metrics.resume_step`, the first of which is done.

    The line in metrics.jsonl comes first: a run that is killed after it finds the line again, and
    writes config.json.
    """
    if not distributed.is_first():
        return
    folder.begin_steps(files)
    environment_path = os.path.join(folder.path, ENVIRONMENT_FILE)
    facts = environment()
    json_files.write(environment_path, facts)
    metrics.begin()
    changed = {}
    pairs = changes(folder.path, config, metrics.dropped_changes)
    for name, (old, new) in pairs.items():
        changed[name] = [_plain(old), _plain(new)]
    if changed:
        line = {"step": metrics.resume_step, "changed": changed}
        metrics.write(line)
    config_path = os.path.join(folder.path, CONFIG_FILE)
    text = config_lib.to_json(config)
    io_files.write(config_path, text.encode())


def _plain(value: Any) -> Any:
    """A value of a config as it is in JSON."""
    if isinstance(value, tuple):
        return list(value)
    return value


def environment() -> dict[str, Any]:
    """Versions, devices and the commit; None for a package that is not installed and for code
    outside git."""
    package = importlib.resources.files("gmlp_flax")
    root = str(package)
    devices = jax.devices()
    commit = None
    changed_files = None
    # Otherwise it is a wheel inside somebody's repository.
    if _git(root, "ls-files", "--error-unmatch", "__init__.py"):
        commit = _git(root, "rev-parse", "HEAD")
        changed_files = _git(root, "status", "--porcelain")
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        "devices": {
            "kind": devices[0].device_kind,
            "count": len(devices),
            "hosts": jax.process_count(),
        },
        "git_commit": commit,
        "git_dirty": bool(changed_files),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(root: str, *command: str) -> str | None:
    arguments = ["git", "-C", root, *command]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
