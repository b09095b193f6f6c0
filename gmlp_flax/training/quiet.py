"""Mutes what Orbax and TensorStore print beside the errors they raise, and libtpu where it finds no TPU."""

from __future__ import annotations

import glob
import importlib.util
import logging as std_logging
import os
import sys
from typing import Any

from absl import logging

ORBAX = os.path.join("orbax", "checkpoint", "")
TPUS = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
ACCELERATORS = (*TPUS, "/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")  # of NVIDIA, AMD, and either under Windows


def install() -> None:
    """Filters this process's log, and its hook for exceptions that no one can catch."""
    logging.get_absl_handler().addFilter(_is_ours)
    show = sys.unraisablehook

    def unraisablehook(unraisable: Any) -> None:
        code = getattr(unraisable.object, "cr_code", None)
        # TensorStore's threads answer to an event loop that was closed because another answer was an error.
        late = str(unraisable.exc_value) == "Event loop is closed"
        if not late and (code is None or ORBAX not in code.co_filename):
            show(unraisable)

    sys.unraisablehook = unraisablehook


def skip_libtpu() -> None:
    """Takes the CPU on a machine without an accelerator: libtpu (an extra, for plans) would first complain."""
    if os.environ.get("JAX_PLATFORMS") or found(ACCELERATORS) or importlib.util.find_spec("libtpu") is None:
        return
    os.environ["JAX_PLATFORMS"] = "cpu"  # read where JAX is imported, and by child processes
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_platforms", "cpu")


def found(devices: tuple[str, ...]) -> bool:
    """Whether this machine has any of these device files."""
    return any(map(glob.glob, devices))


def _is_ours(record: std_logging.LogRecord) -> bool:
    return record.name != "asyncio" and ORBAX not in record.pathname
