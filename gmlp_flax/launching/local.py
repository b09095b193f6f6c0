"""Several processes on this machine, which talk over the loopback, as a cluster does."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from gmlp_flax.launching.engine import TRAIN, Engine, Job, quoted
from gmlp_flax.processes import signals
from gmlp_flax.sweeps.runner import tied_command

# On the CPU, unless something else is asked for. With fewer threads of the CPU client than the devices of a process
# need, they wait for each other for ever.
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "PJRT_NPROC": "16"}
GRACE = 10.0  # seconds in which a process that lost another may still say so


class Local(Engine):
    """Each line carries its process's number. If one process fails, all are ended."""

    summary = "processes on this machine, to see that a run works on several hosts"
    required = ("processes",)
    optional = ()

    def show(self, job: Job) -> str:
        """A line for each process."""
        variables = [f"{name}={value}" for name, value in self._environment().items()]
        return "\n".join(quoted([*variables, *command]) for command in self._commands(job))

    def start(self, job: Job) -> int:
        """Runs the processes to their end; returns the exit code of the first one that fails, else 0."""
        return _Processes(self._commands(job), os.environ | self._environment()).run()

    def _environment(self) -> dict[str, str]:
        return {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}

    def _commands(self, job: Job) -> list[list[str]]:
        count, port = self.options.processes, _free_port()
        joining = ["--multihost=on", f"--coordinator=127.0.0.1:{port}", f"--processes={count}"]
        return [[sys.executable, *TRAIN, *job.words, *joining, f"--process={i}"] for i in range(count)]


def _free_port() -> int:
    """A port below 32768, where Linux's own choices begin; one that answers is in use."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as caller:
            if caller.connect_ex(("127.0.0.1", port)):
                return port


class _Processes:
    """Processes that begin and end together. A signal makes all save and end; a second one kills them."""

    def __init__(self, commands: Sequence[Sequence[str]], environment: Mapping[str, str]):
        self._commands, self._environment = commands, environment
        self._running: list[subprocess.Popen] = []
        self._asked = 0.0  # when a signal asked to stop

    def run(self) -> int:
        """Starts the processes; returns an exit code when all have ended, and raises SystemExit if a signal asked."""
        pipe: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with signals.handle(signals.STOPPING, self._on_signal), ThreadPoolExecutor(len(self._commands)) as readers:
            for number, command in enumerate(self._commands):
                # A group of its own: Ctrl-C reaches each process once, through this one.
                process = subprocess.Popen(
                    tied_command(command),
                    env=self._environment,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                    **pipe,
                )
                assert process.stdout
                self._running.append(process)
                readers.submit(_prefix, number, process.stdout)
            code, asked = self._wait(), self._asked
        if asked:
            raise SystemExit(code)
        return code

    def _wait(self) -> int:
        running, code, kill_at = list(self._running), 0, float("inf")
        while running:
            for process in running:
                ended = process.poll()
                if ended and not code:
                    code = ended if ended > 0 else 128 - ended
                    if not self._asked:
                        print(f"a process ended with code {code}: the others are ended", file=sys.stderr, flush=True)
                        self._send(signal.SIGTERM)
                    kill_at = time.monotonic() + GRACE
            running = [process for process in running if process.returncode is None]
            if time.monotonic() >= kill_at:
                self._send(signal.SIGKILL)
            time.sleep(0.05)
        return code

    def _on_signal(self, *_: object) -> None:
        now = time.monotonic()
        if not self._asked:
            self._asked = now
            self._send(signal.SIGTERM)
        elif now - self._asked > signals.SAME:
            self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, number)


def _prefix(number: int, lines: IO[str]) -> None:
    with lines:
        for line in lines:
            with contextlib.suppress(OSError):  # the process goes on, and so must the reading
                print(f"[{number}] {line.rstrip()}\n", end="", flush=True)  # one write: others print too
