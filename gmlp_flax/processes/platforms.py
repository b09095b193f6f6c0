"""The choice of the platform on which JAX runs. Importing this file does not import JAX."""

import contextlib
import ctypes
import glob
import importlib.util
import mmap
import os
import platform
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from typing import NamedTuple

from gmlp_flax.errors import ConfigError
from gmlp_flax.io import cache

# Patterns of device files.
TPUS = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
NVIDIA = "/dev/nvidia[0-9]*"
ACCELERATORS = (*TPUS, NVIDIA, "/dev/kfd", "/dev/dxg")  # also AMD's, and both under Windows

# What decides which devices JAX finds.
_DEVICE_VARIABLES = (
    "JAX_PLATFORMS",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "TPU_VISIBLE_CHIPS",
)

# Options of mallopt by their numbers in <malloc.h>: never give memory back (M_TRIM_THRESHOLD),
# never ask for an array's memory by itself (M_MMAP_THRESHOLD), ask for 256 MB at a time, also for
# threads (M_TOP_PAD).
_KEEP = {-1: 2**31 - 1, -3: 2**31 - 1, -2: 256 << 20}

XLA_LIBRARY = "libjax_common*"  # in the package jaxlib

# JAX's variable: a folder for compiled programs; "" keeps none
PROGRAMS = "JAX_COMPILATION_CACHE_DIR"
MOST_PROGRAMS = 2 << 30  # bytes in our own folder
SLOW_TO_COMPILE = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
SECONDS_TO_COMPILE = 0.1  # for which a program is kept


def choose() -> None:
    """Chooses NVIDIA's GPUs or the CPU on a machine that has libtpu (an extra, for plans) but no
    TPU.

    Otherwise libtpu would look for a TPU and complain, and JAX's profiler would end the process.
    """
    is_chosen = bool(os.environ.get("JAX_PLATFORMS"))
    if is_chosen or exists(TPUS) or not _is_installed("libtpu"):
        return
    on_gpus = exists((NVIDIA,)) and gpu_plugin() is not None
    if exists(ACCELERATORS) and not on_gpus:
        return
    _set_option("JAX_PLATFORMS", "cuda,cpu" if on_gpus else "cpu")


def _set_option(variable: str, value: str | float) -> None:
    """Sets an option of JAX by its environment variable: for child processes, and for this one
    whether it has imported JAX or not."""
    os.environ[variable] = str(value)
    if "jax" in sys.modules:
        sys.modules["jax"].config.update(variable.lower(), value)


def check_environment() -> None:
    """Raises ConfigError if XLA_FLAGS names a file that is not there, or a flag that XLA does not
    have, at which XLA ends the process."""
    value = os.environ.get("XLA_FLAGS", "").strip()
    if not value:
        return
    if not value.startswith("--"):
        if not os.path.isfile(value):
            raise ConfigError(
                f"XLA_FLAGS={value}: expected flags that begin with --, or a file of them: unset "
                "it, or give such flags"
            )
        return
    flags = value.split()
    if _may_be_unknown(flags):
        _try_flags()


def _may_be_unknown(flags: list[str]) -> bool:
    """Whether the name of a flag is nowhere in XLA's library, which has the names of all of its
    flags; False if there is no such library."""
    package = importlib.util.find_spec("jaxlib")
    if package is None or not package.submodule_search_locations:
        return False
    folder = package.submodule_search_locations[0]
    libraries = glob.glob(XLA_LIBRARY, root_dir=folder)
    if not libraries:
        return False
    path = os.path.join(folder, libraries[0])
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library,
    ):
        for flag in flags:
            name, _, _ = flag.lstrip("-").partition("=")
            c_string = f"{name}\0".encode()
            if library.find(c_string) < 0:
                return True
    return False


def _try_flags() -> None:
    """Starts XLA in another process; raises ConfigError if XLA does not know a flag. It takes a
    second or more."""
    program = "import jax; jax.devices()"
    on_cpu = os.environ | {"JAX_PLATFORMS": "cpu"}
    tried = subprocess.run(
        [sys.executable, "-c", program], env=on_cpu, capture_output=True, text=True, check=False
    )
    unknown = re.search(r"Unknown flags? in XLA_FLAGS: (?P<flags>.*)", tried.stderr)
    if tried.returncode and unknown:
        raise ConfigError(
            f"XLA_FLAGS has {unknown['flags'].strip()}, which the installed XLA does not know: "
            "leave it out, or correct its name"
        )


def environment_problem(error: BaseException) -> str:
    """A line for an error that JAX raises where it reads its environment variables or starts a
    platform; "" for any other error."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    source = frames[-1].filename.replace(os.sep, "/")
    reason = " ".join(str(error).split())[:300]
    if source.endswith("jax/_src/config.py"):
        for name, value in os.environ.items():
            if name.startswith("JAX_") and name.lower() in reason.lower():
                return f"{name}={value}: JAX cannot read it ({reason}): unset it"
    if source.endswith("jax/_src/xla_bridge.py"):
        settings = []
        for name in _DEVICE_VARIABLES:
            if name in os.environ:
                settings.append(f"{name}={os.environ[name]}")
        variables = f" with {' '.join(settings)}" if settings else ""
        return (
            f"JAX finds no device{variables} ({reason or 'no platform could be started'}): unset these "
            "variables, install JAX for that platform, or set JAX_PLATFORMS=cpu"
        )
    return ""


def gpu_plugin() -> str | None:
    """The package of JAX's CUDA plugin, if one is installed."""
    for name in ("jax_cuda12_plugin", "jax_cuda13_plugin"):
        if _is_installed(name):
            return name
    return None


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def keep_freed_memory() -> None:
    """Stops malloc from returning freed memory to the OS, on a CPU.

    Each step frees its arrays and asks for as many again, and the system fills each page of new
    memory with zeros. Nothing happens on a machine with an accelerator, or without glibc.
    """
    if exists(ACCELERATORS):
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return
    for option, value in _KEEP.items():
        library.mallopt(option, value)


def keep_programs() -> None:
    """Has JAX keep compiled programs in the user's cache folder: a second start compiles nothing.

    `JAX_COMPILATION_CACHE_DIR` names another folder or, empty, none. A program for a CPU runs only
    on CPUs of the same kind, and JAX's names of programs do not say the kind. So each kind has its
    own folder.
    """
    if PROGRAMS in os.environ:
        return
    programs = os.path.join(cache.default_folder(), "programs")
    kind_of_cpu = cache.cache_key(platform.machine(), cpu_features())
    folder = os.path.join(programs, kind_of_cpu)
    with contextlib.suppress(OSError):  # a home that cannot be written to
        os.makedirs(folder, exist_ok=True)
        _set_option(PROGRAMS, folder)
        if SLOW_TO_COMPILE not in os.environ:
            _set_option(SLOW_TO_COMPILE, SECONDS_TO_COMPILE)
        _remove_oldest(programs)


class _File(NamedTuple):
    path: str
    size: int
    modified: float


def _remove_oldest(programs: str) -> None:
    """Deletes the programs that were compiled longest ago if all folders hold more than
    MOST_PROGRAMS."""
    newest_first = sorted(_files(programs), key=lambda file: file.modified, reverse=True)
    total = 0
    for file in newest_first:
        total += file.size
        if total > MOST_PROGRAMS:
            os.remove(file.path)


def _files(programs: str) -> Iterator[_File]:
    """The files in all folders of programs."""
    for folder in os.scandir(programs):
        for entry in os.scandir(folder):
            status = entry.stat()
            yield _File(entry.path, status.st_size, status.st_mtime)


def cpu_features() -> str:
    """What tells kinds of CPUs apart: the model and its features under Linux, else the little that
    Python knows."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = set(file)
    except OSError:
        return platform.processor()
    described = []
    for line in sorted(lines):
        if line.startswith(("flags", "Features", "cpu family", "model")):
            described.append(line)
    return "".join(described)


def exists(devices: tuple[str, ...]) -> bool:
    """Whether this machine has a device file that matches one of the patterns."""
    return any(map(glob.glob, devices))
