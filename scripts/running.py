"""What the scripts share that train several runs: some at a time, each resumed where it was, all stopped together."""

from __future__ import annotations

import concurrent.futures
import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from gmlp_flax.training.errors import RunError

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

Metrics = dict[str, Any]


class Runs:
    """Trains runs, some at a time. Where its block ends early, those under way save and stop, others are not begun.

    Ctrl-C and SIGTERM end the block early. Runs are trained in the folder that the script was called in.

    Args:
        out: the folder of the runs, made if need be.
        jobs: runs at a time, each on its share of the processor's cores. An accelerator has room for one.
    """

    def __init__(self, out: str, jobs: int):
        self._out, self._pool = os.path.abspath(out), concurrent.futures.ThreadPoolExecutor(jobs)
        # XLA makes as many threads as it believes to have cores.
        self._environment = os.environ | {"PYTHONPATH": ROOT, "PJRT_NPROC": str(max(1, _cores() // jobs))}
        self._under_way: set[subprocess.Popen] = set()
        self._lock, self._stopped = threading.Lock(), False

    def submit(self, name: str, flags: Sequence[str]) -> concurrent.futures.Future[Metrics]:
        """Trains OUT/NAME with the flags of `gmlp_flax.train`, unless it is finished; its output goes to OUT/NAME.log.

        Returns:
            A future that gives the held-out metrics that the run ended with, or raises RunError.
        """
        return self._pool.submit(self._train, os.path.join(self._out, name), flags)

    def _train(self, workdir: str, flags: Sequence[str]) -> Metrics:
        result = os.path.join(workdir, "result.json")
        if not os.path.exists(result):
            if self._run([sys.executable, "-m", "gmlp_flax.train", f"--workdir={workdir}", *flags], f"{workdir}.log"):
                raise RunError(f"the run {workdir} failed: its output is in {workdir}.log")
            if not os.path.exists(result):
                raise RunError(f"the run {workdir} was stopped before its end: the same command again goes on")
        with open(result) as file:
            return json.load(file)["eval"]

    def _run(self, command: list[str], log_path: str) -> int:
        """Runs a command; its exit code, its output in a log."""
        os.makedirs(self._out, exist_ok=True)
        with open(log_path, "a") as log:
            print(shlex.join(command), file=log, flush=True)
            with self._lock:
                if self._stopped:
                    return 0
                process = subprocess.Popen(
                    [sys.executable, os.path.abspath(__file__), str(os.getpid()), *command], env=self._environment,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )
                self._under_way.add(process)
            code = process.wait()
            self._under_way.discard(process)
            return code

    def __enter__(self) -> Runs:
        self._handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._stopped = True
            for process in list(self._under_way):
                process.terminate()
        self._pool.shutdown(cancel_futures=True)
        signal.signal(signal.SIGTERM, self._handler)


def results(
    runs: dict[Hashable, concurrent.futures.Future[Metrics]], tell: Callable[[Any, Metrics], None] | None = None,
    failed: Callable[[Any, RunError], None] | None = None,
) -> dict[Any, Metrics]:
    """What all runs give; raises the RunError of the first that fails, as soon as it does, but where `failed` is given.

    Args:
        runs: by any key.
        tell: called with the key and the metrics of each run as it ends; may raise RunError as well.
        failed: called with the key and the RunError of each run that fails; the others go on.
    """
    keys, found = {run: key for key, run in runs.items()}, {}
    for run in concurrent.futures.as_completed(keys):
        try:
            metrics = run.result()
            if tell is not None:
                tell(keys[run], metrics)
            found[keys[run]] = metrics
        except RunError as error:
            if failed is None:
                raise
            failed(keys[run], error)
    return {key: found[key] for key in runs if key in found}


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def follow(parent: int, command: Sequence[str]) -> None:
    """Becomes a command that, on Linux, dies with the process that started it, though that be killed.

    It is killed as well, not asked to stop: whoever starts the script again must meet no trainer that is still saving.
    """
    if sys.platform == "linux":
        # The kernel watches the thread that started this process, which in `Runs` waits until it has ended.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            raise SystemExit("the script that started this run is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    follow(int(sys.argv[1]), sys.argv[2:])
