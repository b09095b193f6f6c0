"""One run in several processes, on many hosts or one: they join, agree, and end together."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from gmlp_flax.training import quiet, relay
from gmlp_flax.training.errors import RunError

JOIN_SECONDS = 300
# A process is dead when nothing was heard of it for so long; the others end soon after.
HEARTBEAT_SECONDS = 30
# How errors of collectives and barriers begin, or go on, when a process they need is gone.
_LOST = re.compile(r"gloo|nccl|coordination|heartbeat|barrier|connection (reset|closed|refused)|socket closed", re.I)


class Job(NamedTuple):
    """What launched this process, together with others.

    Attributes:
        launcher: its name.
        processes, process: how many there are and which this is; None where JAX must find out.
    """

    launcher: str
    processes: int | None
    process: int | None


def initialize(
    multihost: str, coordinator: str, processes: int | None, process: int | None, join_seconds: float = JOIN_SECONDS
) -> None:
    """Joins the other processes of a run, if there are any. To be called before any device is touched.

    Args:
        multihost: "auto" joins where a coordinator is given or a launcher of several processes is found: a TPU slice,
            SLURM, Open MPI; "on" insists; "off" does not.
        coordinator: HOST:PORT of process 0, as all processes reach it; empty: the launcher's.
        processes: how many there are; None: as the launcher says.
        process: which this is, from 0; None: as the launcher says.
        join_seconds: how long to wait for all to be there. After that this process ends, with one line and code 1.

    Raises:
        RunError: these contradict each other, or what is missing cannot be found.
    """
    _check(multihost, coordinator, processes, process)
    job = None if processes else _job()
    if multihost == "off" or multihost == "auto" and not (coordinator or job):
        return
    # Its handler of SIGTERM would take the place of the loop's, see stopping.py.
    jax.config.update("jax_enable_preemption_service", False)
    if job:
        processes, process = job.processes, job.process
    patience = threading.Timer(join_seconds, _not_all_joined, (coordinator, processes, join_seconds))
    patience.daemon = True
    patience.start()
    try:
        jax.distributed.initialize(
            coordinator or None, processes, process,
            # With all of it given, no launcher that these processes happen to run under is to be asked for devices.
            cluster_detection_method=None if job or not processes else "deactivate",
            # JAX aborts with a stack trace when this is over: never, as `patience` ends first.
            initialization_timeout=int(join_seconds) + 60, heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except Exception as error:  # noqa: BLE001 - also those of requests, with which a TPU's metadata are read
        if multihost == "auto" and job and job.processes is None and "should be defined" in str(error):
            return  # A TPU that belongs to no slice, as notebooks have.
        raise RunError(_cannot_join(coordinator, job, error)) from None
    finally:
        patience.cancel()
    if jax.process_count() > 1:
        relay.install()


def _check(multihost: str, coordinator: str, processes: int | None, process: int | None) -> None:
    given = {"coordinator": coordinator or None, "processes": processes, "process": process}
    first = next((f"--{name}={value}" for name, value in given.items() if value is not None), None)
    if multihost == "off" and first:
        raise RunError(f"--multihost=off, but {first} is given: leave one of them out")
    if first and not coordinator:
        raise RunError(f"{first} is given without --coordinator=HOST:PORT, where all processes reach process 0")
    if (processes is None) != (process is None):
        raise RunError("--processes=N and --process=I go together: give both, or neither where a launcher knows them")
    if processes is not None and not 0 <= process < processes:
        raise RunError(f"--process={process} is not one of --processes={processes}: expected 0 to {processes - 1}")
    port = re.fullmatch(r"[^\s/]+:(\d{1,5})", coordinator)
    if coordinator and not (port and 0 < int(port[1]) < 65536):
        raise RunError(f"--coordinator={coordinator}: expected HOST:PORT, port 1 to 65535, such as 10.0.0.1:8476")


def _job() -> Job | None:
    """The launcher of more than one process that started this one, if any; a TPU host may yet turn out to be alone."""
    environment = os.environ
    for launcher, total, own in (
        ("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("SLURM", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ):
        # A shell in a SLURM allocation is no step of it, or one of a single task.
        if own in environment and int(environment.get(total, 1)) > 1:
            return Job(launcher, int(environment[total]), int(environment[own]))
    wanted = environment.get("JAX_PLATFORMS") or "tpu"
    if quiet.found(quiet.TPUS) and "tpu" in wanted.split(",") and importlib.util.find_spec("libtpu"):
        return Job("a TPU slice", None, None)
    return None


def _cannot_join(coordinator: str, job: Job | None, error: Exception) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "should be defined" in line or "must be defined" in line:
        found = f"{job.launcher} does not say where process 0 is" if job else "found no TPU slice, SLURM or Open MPI"
        return f"cannot join other processes ({found}): give --coordinator=HOST:PORT, --processes=N and --process=I"
    return f"cannot join the other processes at {coordinator or 'the coordinator'} ({line}); --multihost=off runs alone"


def _not_all_joined(coordinator: str, processes: int | None, seconds: float) -> None:
    where = f" at {coordinator}" if coordinator else ""
    who = f"{processes} processes" if processes else "processes"
    _end(f"not all {who} joined{where} within {seconds:g} s: see that all of them run and reach process 0", 1)


def is_first() -> bool:
    """Whether this is the process that writes the run's files and speaks for all."""
    return jax.process_index() == 0


def say(text: str) -> None:
    """Prints a line on standard error, once for all processes."""
    if is_first():
        print(text, file=sys.stderr, flush=True)


def wait_for_all(what: str) -> None:
    """Returns when all processes are here. `what` names the place, which must be the same for all."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def everywhere(true: bool) -> bool:
    """Whether something holds on every process. All must ask."""
    return bool(np.all(multihost_utils.process_allgather(np.array(true))))


def require_alike(values: Mapping[str, bytes]) -> None:
    """Refuses processes that would train different things, and wait for each other for ever. All must ask.

    Args:
        values: what must be the same on every process, by what the message calls it.

    Raises:
        RunError: on all of them, naming the first that differs.
    """
    if jax.process_count() == 1:
        return
    for name, value in values.items():
        digests = multihost_utils.process_allgather(np.frombuffer(hashlib.sha256(value).digest(), np.uint8))
        differs = np.flatnonzero((digests != digests[0]).any(-1))
        if differs.size:
            raise RunError(
                f"{name} of process {differs[0]} is not that of process 0: start all with the same command and data"
            )


def end_if_process_lost(error: Exception) -> None:
    """Ends this process with one line and code 1 where an error says that another one is gone.

    At once: all that is left to do by Python, Orbax and JAX would wait for the other.
    """
    if jax.distributed.is_initialized() and not isinstance(error, RunError) and _LOST.search(str(error)):
        _end(relay.LOST.removeprefix("error: "), 1)


def end_failed(error: BaseException) -> None:
    """Ends one process of several after an error that was shown, a SystemExit with its code, or one to be shown here.

    JAX's own exit would first wait for the others, which wait for this one. Returns where this process is alone.
    """
    if not jax.distributed.is_initialized():
        return
    if isinstance(error, SystemExit):
        _end("", error.code)
    if isinstance(error, Exception):
        end_if_process_lost(error)
    _end("".join(traceback.format_exception(error)), 1)


def _end(message: str, code: int) -> NoReturn:
    if message:
        print(message if "\n" in message else f"error: {message}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
