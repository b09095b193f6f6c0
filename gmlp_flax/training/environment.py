"""environment.json: on what a run is trained."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import platform
import subprocess
from typing import Any

import jax

PACKAGES = ("gmlp_flax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece")


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
