"""Training processes: some at a time, each resumed where it stopped, all stopped together."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TextIO, TypeVar

from gmlp_flax.checkpoints.metrics_file import read_result
from gmlp_flax.errors import RunError
from gmlp_flax.io import files, storage
from gmlp_flax.processes import signals

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

Metrics = dict[str, Any]
Key = TypeVar("Key", bound=Hashable)


class RunFailed(RunError):
    """A training process ended with an error.

    Attributes:
        reason: the line that it told; empty if it told none.
    """

    def __init__(self, workdir: str, reason: str):
        told = f" ({reason})" if reason else ""
        super().__init__(f"the run {workdir} failed{told}: its output is in {workdir}.log")
        self.reason = reason


class TrainingPool:
    """Trains runs in processes, some at a time. They work in the current folder.

    If the `with` block ends early, the running ones save and stop, and no other begins; so do Ctrl-C and SIGTERM.

    Args:
        out: the folder of the runs, made if need be.
        jobs: processes at a time, each on its share of the processor's cores. An accelerator has room for one.
    """

    def __init__(self, out: str, jobs: int):
        self._out, self._threads = files.absolute(out), concurrent.futures.ThreadPoolExecutor(jobs)
        # XLA makes as many threads as it believes to have cores.
        self._environment = os.environ | {"PJRT_NPROC": str(max(1, _cores() // jobs))}
        self._processes: set[subprocess.Popen] = set()
        self._lock, self._stopped = threading.Lock(), False

    def submit(self, name: str, flags: Sequence[str]) -> concurrent.futures.Future[Metrics]:
        """Trains OUT/NAME with these flags, unless it is finished; the output goes to OUT/NAME.log.

        Returns:
            A future that gives the run's last held-out metrics, or raises RunError.
        """
        return self._threads.submit(self._train, os.path.join(self._out, name), flags)

    def _train(self, workdir: str, flags: Sequence[str]) -> Metrics:
        if (result := read_result(workdir)) is None:
            command = [sys.executable, "-m", "gmlp_flax.train", f"--workdir={workdir}", *flags]
            if (reason := self._run(command, f"{workdir}.log")) is not None:
                raise RunFailed(workdir, reason)
            if (result := read_result(workdir)) is None:
                raise RunError(f"the run {workdir} was stopped before its end: the same command again goes on")
        return result["eval"]

    def _run(self, command: list[str], log_path: str) -> str | None:
        """Runs a command, its output in a log; returns why it failed, or None if it did not."""
        if self._stopped:
            return None  # before the log is there, which says that a run was begun
        with self._log(log_path) as log:
            begin = log.tell()
            with _explaining(log_path):
                os.write(log.fileno(), os.fsencode(f"{shlex.join(command)}\n"))
            with self._lock:
                if self._stopped:
                    return None
                process = subprocess.Popen(
                    tied_command(command), env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
                self._processes.add(process)
            code = process.wait()
            self._processes.discard(process)
            return _reason(log, begin) if code else None

    @contextlib.contextmanager
    def _log(self, path: str) -> Iterator[TextIO]:
        """A file to be added to; one in a bucket is written there when the block ends."""
        if not files.is_remote(path):
            files.make_folder(self._out)
            with contextlib.ExitStack() as stack:
                with _explaining(path):
                    log = stack.enter_context(open(path, "a+", errors="replace"))
                yield log
            return
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            try:
                yield log
            finally:
                log.seek(0)
                files.write(path, (files.read(path) or b"") + log.read().encode())

    def __enter__(self) -> TrainingPool:
        self._handled = signals.handled((signal.SIGTERM, signal.SIGHUP), _interrupt)
        self._handled.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._stopped = True
            for process in list(self._processes):
                process.terminate()
        self._threads.shutdown(cancel_futures=True)
        self._handled.__exit__(None, None, None)


def _interrupt(*_: object) -> None:
    signals.end_on_the_next(signal.SIGTERM, signal.SIGHUP)
    raise KeyboardInterrupt


def results(
    runs: Mapping[Key, concurrent.futures.Future[Metrics]],
    ended: Callable[[Key, Metrics], None] | None = None,
    failed: Callable[[Key, RunError], None] | None = None,
) -> dict[Key, Metrics]:
    """The metrics of all runs, in the order given.

    Args:
        runs: by any key.
        ended: called with the key and the metrics of each run as it ends; may raise RunError as well.
        failed: called with the key and the RunError of each run that fails, and the others go on.

    Raises:
        RunError: a run failed and there is no `failed`; raised as soon as the run does.
    """
    keys, found = {run: key for key, run in runs.items()}, {}
    for run in concurrent.futures.as_completed(keys):
        try:
            metrics = run.result()
            if ended is not None:
                ended(keys[run], metrics)
            found[keys[run]] = metrics
        except RunError as error:
            if failed is None:
                raise
            failed(keys[run], error)
    return {key: found[key] for key in runs if key in found}


@contextlib.contextmanager
def _explaining(path: str) -> Iterator[None]:
    """An error of the disk that has this log is one line."""
    try:
        yield
    except OSError as error:
        raise storage.storage_error(f"writing {path}", error) from error


def _reason(log: TextIO, begin: int) -> str:
    """The last line of a log from a place on that tells an error; or nothing."""
    log.seek(begin)
    errors = [line.removeprefix("error: ").strip() for line in log if line.startswith("error: ")]
    return errors[-1] if errors else ""


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tied_command(command: Sequence[str]) -> list[str]:
    """A command that runs `command` and dies with this process: see `become_tied`."""
    return [sys.executable, "-m", "gmlp_flax.sweeps.runner", str(os.getpid()), *command]


def become_tied(parent: int, command: Sequence[str]) -> None:
    """Becomes a command that, on Linux, is killed as soon as its parent ends, even if the parent is killed.

    It is not asked to stop: whoever starts the parent again must not meet a training process that is still saving.
    """
    if sys.platform == "linux":
        # The kernel watches the thread that started this process; in `TrainingPool` that thread waits for its end.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            raise SystemExit("the command that started this run is gone")
    os.execv(command[0], list(command))


if __name__ == "__main__":
    become_tied(int(sys.argv[1]), sys.argv[2:])
