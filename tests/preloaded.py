"""Runs `gmlp` in processes of their own that need not import anything first.

A server imports JAX and all of gmlp_flax once, and forks for every command: a command then starts
in milliseconds instead of three seconds, and is otherwise a process like any other, with its own
signals, output and exit code. A command whose environment changes what those imports do (JAX_...,
PYTHON...) is started without the server; GMLP_TESTS_FORK=0 does so for every command.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import re
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from pathlib import Path
from typing import IO

from tests.programs import Programs

ROOT = Path(__file__).parents[1]
WARNINGS = "PYTHONWARNINGS"
IGNORED_BY_DEFAULT = (
    DeprecationWarning,
    PendingDeprecationWarning,
    ImportWarning,
    ResourceWarning,
)
CODE = struct.Struct("i")  # a process id, then an exit code
HEARTBEAT = re.compile(r".*: \d+ s so far\n")


class Process:
    """A forked command, with what tests use of subprocess.Popen."""

    def __init__(
        self,
        args: list[str],
        connection: socket.socket,
        stdin: IO[str],
        stdout: IO[str],
        stderr: IO[str],
    ):
        self.args = args
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._connection = connection
        self.pid: int = CODE.unpack(connection.recv(CODE.size))[0]

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = CODE.unpack(self._connection.recv(CODE.size))[0]
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(
        self, input: str | None = None, timeout: float | None = None
    ) -> tuple[str, str]:
        """As subprocess.Popen.communicate; closes the pipes. A second call finds nothing more."""
        if self.stdin.closed:
            return "", ""
        with contextlib.suppress(BrokenPipeError), self.stdin:
            self.stdin.write(input or "")
        texts = ["", ""]

        def read(place: int, stream: IO[str]) -> None:
            with stream:
                texts[place] = stream.read()

        readers = [
            threading.Thread(target=read, args=pair)
            for pair in enumerate((self.stdout, self.stderr))
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return texts[0], texts[1]


def start(
    *words: object, cwd: object = ROOT, prefix: tuple[str, ...] = (), **variables: str
) -> Process | subprocess.Popen:
    """Starts Python with words such as `-m gmlp_flax train ...` or `-c PROGRAM`, on the CPU, with
    pipes.

    Args:
        words: what follows `python`.
        cwd: its working folder.
        prefix: words of a command that starts it, such as `bash -c ...`.
        variables: for its environment. PYTHONWARNINGS="error" makes warnings errors.
    """
    command = [*prefix, sys.executable, *map(str, words)]
    fresh = [name for name in variables if name.startswith(("JAX_", "PYTHON")) and name != WARNINGS]
    if prefix or fresh or os.environ.get("GMLP_TESTS_FORK") == "0":
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }
        return subprocess.Popen(command, cwd=cwd, env=environment() | variables, **pipes)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_server())
    request = json.dumps({"words": command[1:], "cwd": str(cwd), "variables": variables}).encode()
    pipes = [os.pipe() for _ in range(3)]
    (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = pipes
    socket.send_fds(connection, [struct.pack("I", len(request))], [stdin, stdout, stderr])
    connection.sendall(request)
    for theirs in (stdin, stdout, stderr):
        os.close(theirs)
    return Process(
        command,
        connection,
        os.fdopen(to_stdin, "w"),
        os.fdopen(from_stdout),
        os.fdopen(from_stderr),
    )


def run(
    *words: object, input: str | None = None, timeout: float = 300, **options
) -> subprocess.CompletedProcess:
    """Runs a command to its end; options as in `start`."""
    process = start(*words, **options)
    try:
        stdout, stderr = process.communicate(input, timeout=timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def gmlp(*words: object, **options) -> subprocess.CompletedProcess:
    """Runs `gmlp WORDS`; options as in `run`."""
    return run("-m", "gmlp_flax", *words, **options)


def without_heartbeats(stderr: str) -> str:
    """Standard error without the lines that a command prints because the machine is slow."""
    return HEARTBEAT.sub("", stderr)


def refused(*words: object, **options) -> str:
    """The one line of error of `gmlp WORDS`, which ends with code 2 and prints nothing else;
    options as in `run`."""
    done = gmlp(*words, **options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == "", done.stdout + done.stderr
    stderr = without_heartbeats(done.stderr)
    assert stderr.count("\n") == 1, done.stdout + done.stderr
    assert stderr.startswith("error: ")
    return stderr.removeprefix("error: ").removesuffix("\n")


def devices(count: int) -> str:
    """A value of XLA_FLAGS with this number of devices, and the flags of all tests."""
    return f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"


@functools.cache
def programs() -> Programs:
    """The compiled programs of this pytest worker and of the commands that it starts."""
    session = Programs()
    atexit.register(session.close)
    return session


@functools.cache
def environment() -> dict[str, str]:
    """The environment of every command, with the folder of compiled programs."""
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        "PJRT_NPROC": "16",
        "JAX_COMPILATION_CACHE_DIR": str(programs().folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # or the path of the folder is a part of a program's name
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }


@functools.cache
def _server() -> str:
    """The address of the server, which ends with this process: it reads a pipe that then closes."""
    command = [sys.executable, "-W", "error", "-m", "tests.preloaded"]
    variables = environment()
    folder = tempfile.TemporaryDirectory(prefix="gmlp-server-")
    _server.folder = folder  # type: ignore[attr-defined] - deleted when this process ends
    address = os.path.join(folder.name, "socket")
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*command, address], cwd=ROOT, env=variables, stdin=pipe, stdout=pipe
    )
    _server.process = process  # type: ignore[attr-defined] - keeps the pipe open
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    return address


def _serve(address: str) -> dict:
    """Forks for every request; returns only in the children, with the request."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    print("ready", flush=True)
    running: dict[int, tuple[int, socket.socket]] = {}  # by file descriptor of the process
    while True:
        for ready in select.select([sys.stdin, listener, *running], [], [])[0]:
            if ready is sys.stdin:
                listener.close()
                Path(address).unlink(missing_ok=True)
                raise SystemExit
            if ready is not listener:
                pid, connection = running.pop(ready)
                with contextlib.suppress(BrokenPipeError):
                    connection.sendall(CODE.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
                connection.close()
                os.close(ready)
                continue
            connection, _ = listener.accept()
            head, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
            request = json.loads(connection.recv(struct.unpack("I", head)[0], socket.MSG_WAITALL))
            # newer Pythons warn that other threads do not survive
            with warnings.catch_warnings(action="ignore"):
                pid = os.fork()
            if pid == 0:
                for owned in (listener, connection, *(each for _, each in running.values())):
                    owned.close()
                for place in running:
                    os.close(place)
                for place, descriptor in enumerate(descriptors):
                    os.dup2(descriptor, place)
                    os.close(descriptor)
                return request
            for descriptor in descriptors:
                os.close(descriptor)
            connection.sendall(CODE.pack(pid))
            running[os.pidfd_open(pid)] = pid, connection


def _become(request: dict) -> None:
    """Runs what `python WORDS` would."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.update(request["variables"])
    sys.path[0] = request["cwd"]
    strict = os.environ.get(WARNINGS) == "error"
    sys.warnoptions[:] = ["error"] if strict else []
    if not strict:
        warnings.resetwarnings()
        for category in IGNORED_BY_DEFAULT:
            warnings.simplefilter("ignore", category)
    sys.orig_argv = [sys.executable, *request["words"]]
    kind, what, *rest = request["words"]
    sys.argv = [kind, *rest]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


# Modules that commands run as __main__, which Python would warn of if they were imported already.
RUN = {f"gmlp_flax.{name}" for name in ("__main__", "train", "evaluate", "predict")}


def _import_all() -> None:
    import gmlp_flax

    for found in pkgutil.walk_packages(gmlp_flax.__path__, "gmlp_flax."):
        if found.name not in RUN and ".configs" not in found.name:
            importlib.import_module(found.name)
    importlib.import_module("grain")


class _AnyProcess:
    """JAX's state of a process, for the writing of compiled programs: every process of a run counts
    as the first."""

    process_id = 0

    def __getattr__(self, name: str) -> object:
        from jax._src import distributed

        return getattr(distributed.global_state, name)


def _keep_all_programs() -> None:
    """Has all processes of a run write what they compile. JAX has the first one do so, but the
    others' programs are others: each start of theirs would compile for seconds.
    """
    from jax._src import compiler

    compiler.distributed = types.SimpleNamespace(global_state=_AnyProcess())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import_all()
    _keep_all_programs()
    gc.freeze()  # or each process would sweep all of it when it ends, for a second
    _become(_serve(sys.argv[1]))
