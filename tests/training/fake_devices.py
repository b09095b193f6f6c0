"""Programs on fake CPU devices, whose number is fixed before JAX starts."""

import collections
import os
import subprocess
import sys

import numpy as np

from tests import preloaded

Groups = dict[str, dict[str, np.ndarray]]  # group -> name -> array


def read(path: str | os.PathLike) -> Groups:
    """The arrays that such a program saved as GROUP:NAME, by group."""
    found: Groups = collections.defaultdict(dict)
    with np.load(path) as arrays:
        for key, value in arrays.items():
            group, _, name = key.rpartition(":")
            found[group][name] = value
    return found


def run(module: str, *arguments: str) -> None:
    """Runs a module of this folder in a process with 8 devices."""
    environment = {
        **os.environ,
        "XLA_FLAGS": preloaded.devices(8),
        "PJRT_NPROC": "16",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(preloaded.ROOT),
    }
    command = [sys.executable, "-m", f"tests.training.{module}", *arguments]
    done = subprocess.run(
        command,
        cwd=preloaded.ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
