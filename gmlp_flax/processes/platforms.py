"""The choice of the platform on which JAX runs. Importing this file does not import JAX."""

from __future__ import annotations

import glob
import importlib.util
import os
import sys

# Patterns of device files.
TPUS = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
ACCELERATORS = (*TPUS, "/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, and both under Windows


def choose() -> None:
    """Chooses the CPU on a machine that has libtpu (an extra, for plans) but no accelerator.

    Otherwise libtpu would look for a TPU and complain.
    """
    if os.environ.get("JAX_PLATFORMS") or exists(ACCELERATORS) or importlib.util.find_spec("libtpu") is None:
        return
    os.environ["JAX_PLATFORMS"] = "cpu"  # for child processes, and for this one if it imports JAX later
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_platforms", "cpu")


def exists(devices: tuple[str, ...]) -> bool:
    """Whether this machine has a device file that matches one of the patterns."""
    return any(map(glob.glob, devices))
