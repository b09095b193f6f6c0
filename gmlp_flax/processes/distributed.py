"""One run in several processes, on many hosts or one: they join, agree, and end together."""

import contextlib
import hashlib
import importlib.util
import os
import re
import threading
import traceback
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from gmlp_flax.errors import RunError
from gmlp_flax.io.logs import to_stderr
from gmlp_flax.processes import output, platforms

JOIN_SECONDS = 300
# A process counts as dead after so long without a heartbeat. The other processes then end.
HEARTBEAT_SECONDS = 30
# Words in the errors of collectives and barriers when another process is gone.
_LOST = re.compile(
    r"gloo|nccl|coordination|heartbeat|barrier|connection (reset|closed|refused)|socket closed",
    re.I,
)


class Job(NamedTuple):
    """A launcher that started this process with others, their number and this one's index; None:
    JAX must find out."""

    launcher: str
    processes: int | None
    process: int | None


class _Launcher(NamedTuple):
    """A launcher, and the environment variables in which it gives the number of processes and the
    index of this one."""

    name: str
    count_variable: str
    index_variable: str


_LAUNCHERS = (
    _Launcher("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    _Launcher("SLURM", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)


def initialize(
    multihost: str, coordinator: str, processes: int | None, process: int | None
) -> None:
    """Joins the other processes of a run, if there are any. Call it before anything uses a device.
    If not all come within JOIN_SECONDS, this one ends, with one line and code 1.

    Args:
        multihost: "auto" joins if a coordinator is given or a launcher of several processes is
            found (a TPU slice, SLURM or Open MPI); "on" always joins; "off" never does.
        coordinator: HOST:PORT at which all processes reach process 0. If empty, the launcher gives
            it.
        processes: the number of processes. If None, the launcher gives it.
        process: the index of this process, from 0. If None, the launcher gives it.

    Raises:
        RunError: the arguments contradict each other, or the launcher does not give what is
            missing.
    """
    _check(multihost, coordinator, processes, process)
    job = None if processes else find_job()
    is_wanted = multihost == "on" or coordinator or job
    if multihost == "off" or not is_wanted:
        return
    # Its handler of SIGTERM would replace the one in stopping.py.
    jax.config.update("jax_enable_preemption_service", False)
    if job:
        processes = job.processes
        process = job.process
    with _ending_if_late(processes, coordinator):
        try:
            _join(coordinator, processes, process, job)
        except Exception as error:
            if multihost == "auto" and _is_lone_tpu(job, error):
                return
            raise _cannot_join(coordinator, job, error) from None


@contextlib.contextmanager
def _ending_if_late(processes: int | None, coordinator: str) -> Iterator[None]:
    """Ends this process if the block is not left within JOIN_SECONDS."""
    number = processes or "other"
    address = coordinator or "the coordinator"
    late = (
        f"error: not all {number} processes joined at {address} within {JOIN_SECONDS} s: see that "
        "all of them run and reach process 0"
    )
    timer = threading.Timer(JOIN_SECONDS, output.end_at_once, (1, late))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _join(coordinator: str, processes: int | None, process: int | None, job: Job | None) -> None:
    """Has JAX join the other processes; raises JAX's errors."""
    all_given = bool(processes) and job is None
    jax.distributed.initialize(
        coordinator or None,
        processes,
        process,
        # If everything is given, JAX must not ask the launcher for this process's devices.
        cluster_detection_method="deactivate" if all_given else None,
        # JAX would abort with a stack trace after this time, but this process ends before.
        initialization_timeout=JOIN_SECONDS + 60,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )


def _is_lone_tpu(job: Job | None, error: Exception) -> bool:
    """Whether this host is a TPU that belongs to no slice, as in a notebook."""
    is_tpu = job is not None and job.processes is None
    return is_tpu and "should be defined" in str(error)


def _cannot_join(coordinator: str, job: Job | None, error: Exception) -> RunError:
    first_line, _, _ = str(error).strip().partition("\n")
    reason = first_line or type(error).__name__
    launcher = job.launcher if job else "no TPU slice, SLURM or Open MPI"
    address = coordinator or "the coordinator"
    return RunError(
        f"cannot join the other processes at {address} ({reason}; started by {launcher}): give "
        "--coordinator=HOST:PORT, --processes=N and --process=I, or --multihost=off to run alone"
    )


def _check(multihost: str, coordinator: str, processes: int | None, process: int | None) -> None:
    """Raises RunError if the arguments of `initialize` contradict each other."""
    has_no_numbers = processes is None and process is None
    if not coordinator and has_no_numbers:
        return
    has_numbers = processes is not None and process is not None and 0 <= process < processes
    is_address = re.fullmatch(r"[^\s/]+:\d+", coordinator) is not None
    agree = has_numbers or has_no_numbers
    if multihost == "off" or not agree or not is_address:
        raise RunError(
            f"--coordinator={coordinator} --processes={processes} --process={process}: expected "
            "--coordinator=HOST:PORT of process 0 and, unless a launcher knows them, "
            "--processes=N and --process=I (0 to N - 1), all without --multihost=off"
        )


def find_job() -> Job | None:
    """The launcher that started several processes, if any. A TPU host may later turn out to be
    alone."""
    environment = os.environ
    for launcher in _LAUNCHERS:
        if launcher.index_variable not in environment:
            continue
        # A shell in a SLURM allocation is not a step of it, or it is a step with a single task.
        processes = int(environment.get(launcher.count_variable, 1))
        if processes > 1:
            process = int(environment[launcher.index_variable])
            return Job(launcher.name, processes, process)
    platforms_of_jax = environment.get("JAX_PLATFORMS") or "tpu"
    may_use_tpu = "tpu" in platforms_of_jax.split(",")
    has_tpu = platforms.exists(platforms.TPUS)
    if may_use_tpu and has_tpu and importlib.util.find_spec("libtpu"):
        return Job("a TPU slice", None, None)
    return None


def is_first() -> bool:
    """Whether this is the process that writes the run's files and speaks for all."""
    return jax.process_index() == 0


def say(text: str) -> None:
    """Prints a line on standard error, once for all processes."""
    if is_first():
        to_stderr(text)


def wait_for_all(what: str) -> None:
    """Returns when all processes have called this with the same `what`, which names the place in
    the program."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def everywhere(true: bool) -> bool:
    """Whether the argument is true on every process. All processes must call this."""
    return bool(np.all(multihost_utils.process_allgather(np.array(true))))


def require_alike(values: Mapping[str, bytes]) -> None:
    """Raises RunError on all processes, with the name of the first value that differs, if processes
    have different ones: they would wait for each other forever. All must call this; the keys of `values`
    are the names in the message."""
    if jax.process_count() == 1:
        return
    for name, value in values.items():
        digest = hashlib.sha256(value).digest()
        digests = multihost_utils.process_allgather(np.frombuffer(digest, np.uint8))
        is_different = (digests != digests[0]).any(axis=-1)
        if is_different.any():
            process = int(is_different.argmax())
            raise RunError(f"{name} of process {process} is not that of process 0: start all alike")


def end_if_process_lost(error: Exception) -> None:
    """Ends this process with one line and code 1 if the error means that another process is gone.

    It ends at once, because the exit handlers of Python, Orbax and JAX would wait for the other
    process.
    """
    if isinstance(error, RunError) or not jax.distributed.is_initialized():
        return
    if _LOST.search(str(error)):
        output.end_at_once(
            1,
            "error: lost a process of this run, or the connection to it: see what the others "
            "wrote; to resume from the newest checkpoint, start all of them again",
        )


def end_failed(error: BaseException) -> None:
    """Ends one process of several after an error. A single process returns from here and takes its
    normal course.

    A SystemExit was shown already, and gives the exit code. Other errors are shown here. JAX's own
    exit would first wait for the other processes, which wait for this one.
    """
    if not jax.distributed.is_initialized():
        return
    if isinstance(error, SystemExit):
        output.end_at_once(_exit_code(error))
    if isinstance(error, Exception):
        end_if_process_lost(error)
    output.end_at_once(1, "".join(traceback.format_exception(error)))


def _exit_code(error: SystemExit) -> int:
    """The code with which Python would exit: None is 0, and a message is 1."""
    if isinstance(error.code, int):
        return error.code
    return 1 if error.code else 0
