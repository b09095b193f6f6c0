"""The record of the settings of a run.

config.json is written when a step is taken under it, and each change of it is a line of metrics.jsonl.
"""

import importlib.metadata
import importlib.resources
import os
import platform
import subprocess
from typing import Any

import jax
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.checkpoints.names import CONFIG_FILE, ENVIRONMENT_FILE
from gmlp_flax.checkpoints.run_folder import RunFolder, checkpoint_steps, write_json
from gmlp_flax.config import schema
from gmlp_flax.errors import RunError
from gmlp_flax.io import files as io_files
from gmlp_flax.processes import distributed

SHOWN = 3  # keys that a message names
PACKAGES = ("gmlp_flax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece")


def changes(workdir: str, config: ConfigDict, undone: dict[str, Any] | None = None) -> dict[str, tuple[Any, Any]]:
    """The keys in which a config differs from that of a run, with the old and the new value.

    Args:
        workdir: the run folder.
        config: the config of the steps to come.
        undone: values before changes whose steps are lost (`MetricsFile.undone`).

    Raises:
        ConfigError: config.json is damaged.
    """
    path = os.path.join(workdir, CONFIG_FILE)
    if not io_files.exists(path):
        return {}
    new = config_lib.flat(config)
    pairs = config_lib.differences(config_lib.load(path), config)
    undone = {schema.RENAMED.get(name, name): old for name, old in (undone or {}).items()}
    pairs |= {name: (old, new.get(name)) for name, old in undone.items()}
    return {name: (old, new) for name, (old, new) in pairs.items() if _plain(old) != _plain(new)}


def refuse_changes(workdir: str, config: ConfigDict) -> None:
    """Refuses a config that contradicts the steps that the run has already taken.

    Raises:
        ConfigError: config.json is damaged.
        RunError: names the keys.
    """
    changed, block = changes(workdir, config), config.model.block
    fixed = [f"config.{name} was {old!r}" for name, (old, _) in changed.items() if not schema.may_change(name, block)]
    if fixed and checkpoint_steps(workdir):
        more = f" (and {len(fixed) - SHOWN} more)" if len(fixed) > SHOWN else ""
        raise RunError(
            f"{', '.join(fixed[:SHOWN])}{more}: use another --workdir, or set it back; {workdir} has taken steps with "
            "the old value"
        )


def take_step(folder: RunFolder, config: ConfigDict, files: Files, metrics: MetricsFile) -> None:
    """Writes down under which config the steps after `metrics.resume_step` are taken, the first of which is done.

    The line in metrics.jsonl comes first: a run that is killed after it finds it again, and writes config.json.
    """
    if not distributed.is_first():
        return
    folder.begin_steps(files)
    write_json(os.path.join(folder.path, ENVIRONMENT_FILE), environment())
    metrics.begin()
    changed = changes(folder.path, config, metrics.undone)
    if changed:
        pairs = {name: [_plain(old), _plain(new)] for name, (old, new) in changed.items()}
        metrics.write({"step": metrics.resume_step, "changed": pairs})
    io_files.write(os.path.join(folder.path, CONFIG_FILE), config_lib.to_json(config).encode())


def _plain(value: Any) -> Any:
    """A config's value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def environment() -> dict[str, Any]:
    """Versions, devices and the commit; None for a package that is not installed and for code outside git."""
    root = str(importlib.resources.files("gmlp_flax"))
    devices = jax.devices()
    tracked = _git(root, "ls-files", "--error-unmatch", "__init__.py")  # not a wheel inside somebody's repository
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": {"kind": devices[0].device_kind, "count": len(devices), "hosts": jax.process_count()},
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
        done = subprocess.run(["git", "-C", root, *command], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
