"""The choice of the platform on which JAX runs. Importing this file does not import JAX."""

import ctypes
import glob
import importlib.util
import os
import sys

# Patterns of device files.
TPUS = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
ACCELERATORS = (*TPUS, "/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, and both under Windows

# Options of mallopt by their numbers in <malloc.h>: never give memory back (M_TRIM_THRESHOLD), never ask for an
# array's memory by itself (M_MMAP_THRESHOLD), ask for 256 MB at a time, also for threads (M_TOP_PAD).
_KEEP = {-1: 2**31 - 1, -3: 2**31 - 1, -2: 256 << 20}


def choose() -> None:
    """Chooses the CPU on a machine that has libtpu (an extra, for plans) but no accelerator.

    Otherwise libtpu would look for a TPU and complain.
    """
    if os.environ.get("JAX_PLATFORMS") or exists(ACCELERATORS) or importlib.util.find_spec("libtpu") is None:
        return
    os.environ["JAX_PLATFORMS"] = "cpu"  # for child processes, and for this one if it imports JAX later
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_platforms", "cpu")


def keep_freed_memory() -> None:
    """Has the C library keep the memory that the arrays of a CPU's step free, instead of giving it back to the system.

    Each step frees its arrays and asks for as many again, and the system fills each page of new memory with zeros.
    Nothing happens on a machine with an accelerator, or without glibc.
    """
    if exists(ACCELERATORS) or not hasattr(library := ctypes.CDLL(None), "mallopt"):
        return
    for option, value in _KEEP.items():
        library.mallopt(option, value)


def exists(devices: tuple[str, ...]) -> bool:
    """Whether this machine has a device file that matches one of the patterns."""
    return any(map(glob.glob, devices))
