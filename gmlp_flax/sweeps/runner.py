"""Training processes: some at a time, each resumed where it stopped, all stopped together."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from gmlp_flax.checkpoints.metrics_file import read_result
from gmlp_flax.errors import RunError
from gmlp_flax.io import files, storage
from gmlp_flax.io.cores import usable_cores
from gmlp_flax.processes import stopping

Metrics = dict[str, Any]


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
        self._environment = os.environ | {"PJRT_NPROC": str(max(1, usable_cores() // jobs))}
        self._processes: set[subprocess.Popen] = set()
        self._lock, self._stopped = threading.Lock(), False

    def submit(self, name: str, flags: Sequence[str]) -> concurrent.futures.Future[Metrics]:
        """Trains OUT/NAME with these flags, unless it is finished; the output goes to OUT/NAME.log. The future gives
        the run's last held-out metrics, or raises RunError."""
        return self._threads.submit(self._train, os.path.join(self._out, name), flags)

    def _train(self, workdir: str, flags: Sequence[str]) -> Metrics:
        if (result := read_result(workdir)) is None:
            command = [sys.executable, "-m", "gmlp_flax.train", f"--workdir={workdir}", *flags]
            if self._run(command, f"{workdir}.log"):
                reason = read_error(f"{workdir}.log")
                told = f" ({reason})" if reason else ""
                raise RunError(f"the run {workdir} failed{told}: its output is in {workdir}.log")
            if (result := read_result(workdir)) is None:
                raise RunError(f"the run {workdir} was stopped before its end: the same command again goes on")
        return result["eval"]

    def _run(self, command: list[str], log_path: str) -> int:
        """Runs a command, its output in a log; returns its exit code. After the block's end nothing begins."""
        if self._stopped:
            return 0  # before the log is there, which says that a run was begun
        with _open_log(log_path, command) as log:
            with self._lock:
                if self._stopped:
                    return 0
                process = subprocess.Popen(
                    command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
                self._processes.add(process)
            code = process.wait()
            self._processes.discard(process)
            return code

    def __enter__(self) -> TrainingPool:
        self._terminable = stopping.terminable()
        self._terminable.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._stopped = True
            for process in list(self._processes):
                process.terminate()
        self._threads.shutdown(cancel_futures=True)
        self._terminable.__exit__(None, None, None)


@contextlib.contextmanager
def _open_log(path: str, command: Sequence[str]) -> Iterator[BinaryIO]:
    """A file to be added to, which a command begins; one in a bucket is written there when the block ends."""
    line = os.fsencode(f"{shlex.join(command)}\n")
    if files.is_remote(path):
        with tempfile.TemporaryFile() as log:
            log.write(line)
            log.flush()
            yield log
            log.seek(0)
            files.write(path, (files.read(path) or b"") + log.read())
        return
    files.make_folder(os.path.dirname(path))
    with storage.file_errors(f"writing {path}"), open(path, "ab") as log:
        log.write(line)
    with open(path, "ab") as log:
        yield log


def read_error(log: str) -> str:
    """The error that the last command in a log told; empty if it told none, or was killed."""
    text = (files.read(log) or b"").decode(errors="replace")
    last = re.split(r" -m gmlp_flax\.train '?--workdir=", text)[-1]  # the shell's quotes, if it needs some
    errors = re.findall(r"^error: (.*)|^(Traceback) ", last, re.MULTILINE)
    return next(filter(None, errors[-1])) if errors else ""
