"""Processes that train runs, a few at a time."""

import concurrent.futures
import contextlib
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints.metrics_file import read_result
from gmlp_flax.config import schema
from gmlp_flax.data.pipeline import usable_cores
from gmlp_flax.errors import RunError
from gmlp_flax.io import files
from gmlp_flax.processes import stopping
from gmlp_flax.sweeps import run_logs
from gmlp_flax.sweeps.definition import Trial

Metrics = dict[str, Any]
Outcomes = dict[str, Metrics | RunError]  # name of a trial -> its metrics, or why it failed


class FailedRun(RunError):
    """A run has failed.

    Attributes:
        reason: the error that it printed; empty if it printed none.
    """

    def __init__(self, workdir: str, reason: str, log: str):
        suffix = f" ({reason})" if reason else ""
        super().__init__(f"the run {workdir} failed{suffix}: its output is in {log}")
        self.reason = reason


@contextlib.contextmanager
def training_pool(out: str, jobs: int) -> Iterator[Callable[[Sequence[Trial]], Future[Outcomes]]]:
    """Trains runs in processes, a few at a time. They work in the current folder.

    If the `with` block ends early, or on Ctrl-C or SIGTERM, the running processes save and stop,
    and no other begins.

    Args:
        out: the folder of the runs, made if it is missing.
        jobs: processes at a time, each on its share of the processor's cores. An accelerator has
            room for one.

    Yields:
        A function that trains trials in a process, each in the folder OUT/NAME, unless they are
        finished; the output goes to OUT/NAME.log of the first one. Several trials are trained
        together (`training.together`). The future returns each one's last held-out metrics, or the
        RunError with which it failed, by name.
    """
    processes = _Processes(jobs)

    def train_trials(trials: Sequence[Trial]) -> Outcomes:
        """Trains trials in one process, unless they are finished."""
        outcomes = _finished(out, trials)
        unfinished = [trial for trial in trials if trial.name not in outcomes]
        if not unfinished:
            return outcomes
        first_folder = folder_of(out, unfinished[0])
        log = f"{first_folder}.log"
        words = _words(out, unfinished)
        command = [sys.executable, "-m", "gmlp_flax.train", *words]
        code = processes.run(command, log)
        for trial in unfinished:
            workdir = folder_of(out, trial)
            outcomes[trial.name] = _outcome(workdir, code, log)
        return outcomes

    with stopping.terminable(), concurrent.futures.ThreadPoolExecutor(jobs) as threads:
        try:
            yield functools.partial(threads.submit, train_trials)
        finally:
            processes.stop()
            threads.shutdown(cancel_futures=True)


def folder_of(out: str, trial: Trial) -> str:
    """The folder of a trial."""
    absolute_out = files.absolute(out)
    return os.path.join(absolute_out, trial.name)


def _finished(out: str, trials: Sequence[Trial]) -> Outcomes:
    """The metrics of the trials that are finished, by name."""
    outcomes: Outcomes = {}
    for trial in trials:
        workdir = folder_of(out, trial)
        result = read_result(workdir)
        if result is not None:
            outcomes[trial.name] = result["eval"]
    return outcomes


def _words(out: str, trials: Sequence[Trial]) -> list[str]:
    """The words of `gmlp train` for one trial, or for several that are trained together."""
    first, *others = trials
    if not others:
        workdir = folder_of(out, first)
        return [f"--workdir={workdir}", *first.flags]
    words = [_member_flag(out, trial) for trial in trials]
    for word in first.flags:
        flag, _, _ = word.partition("=")
        key = flag.removeprefix("--config.")
        if key not in schema.MEMBER_KEYS:
            words.append(word)
    return words


def _member_flag(out: str, trial: Trial) -> str:
    """The flag of `gmlp train` for one of several trials that are trained together."""
    config = trial.config
    rate = config.optimizer.learning_rate
    folder = folder_of(out, trial)
    return f"--member={config.seed}:{rate}:{folder}"


def _outcome(workdir: str, code: int, log: str) -> Metrics | RunError:
    """The last held-out metrics of a run whose process ended with an exit code, or why it has
    none."""
    result = read_result(workdir)
    if result is not None:
        return result["eval"]
    if not code:
        return RunError(
            f"the run {workdir} was stopped before its end: give the same command again to resume it"
        )
    reason = run_logs.read_error(log)
    return FailedRun(workdir, reason, log)


def groups(trials: Sequence[Trial], size: int) -> list[list[Trial]]:
    """Trials that can be trained together, because they differ in their seeds and rates alone, in
    groups of at most `size`."""
    if size == 1:
        return [[trial] for trial in trials]
    alike: dict[str, list[Trial]] = {}
    for trial in trials:
        shared = _shared_config(trial)
        members = alike.setdefault(shared, [])
        members.append(trial)
    made = []
    for members in alike.values():
        for start in range(0, len(members), size):
            stop = start + size
            made.append(members[start:stop])
    return made


def _shared_config(trial: Trial) -> str:
    """The config of a trial as JSON, without the keys in which trials of a group may differ."""
    shared = config_lib.mutable_copy(trial.config)
    with shared.ignore_type():
        for key in schema.MEMBER_KEYS:
            shared.update_from_flattened_dict({key: 0})
    return config_lib.to_json(shared)


class _Processes:
    """Runs commands in processes until it is stopped.

    Args:
        jobs: how many there are at a time, each on its share of the cores.
    """

    def __init__(self, jobs: int):
        self._lock = threading.Lock()
        self._is_stopped = False
        self._running: set[subprocess.Popen] = set()
        # XLA makes a thread for each core that it sees.
        cores = max(1, usable_cores() // jobs)
        self._environment = os.environ | {"PJRT_NPROC": str(cores)}

    def run(self, command: list[str], log_path: str) -> int:
        """Runs a command, its output in a log; returns its exit code, 0 if it was not begun."""
        if self._is_stopped:
            return 0  # before there is a log, which would say that a run began
        with run_logs.open_log(log_path, command) as log:
            with self._lock:
                if self._is_stopped:
                    return 0
                process = subprocess.Popen(
                    command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                self._running.add(process)
            code = process.wait()
            self._running.discard(process)
            return code

    def stop(self) -> None:
        """Asks the running processes to save and stop; no other begins."""
        with self._lock:
            self._is_stopped = True
            for process in list(self._running):
                process.terminate()
