"""Runs a command in several processes, which communicate over the loopback."""

import contextlib
import socket
import subprocess
from collections.abc import Iterator

from tests import preloaded
from tests.runs.command import Commands, assert_done

# Our message; and those of JAX's coordination service if it detects the loss first and aborts.
LOST = (
    "error: lost a process of this run",
    "the JAX distributed service detected fatal errors",
    "gloo",
)


@contextlib.contextmanager
def several_processes(
    commands: Commands,
    *arguments: str,
    each: tuple[tuple[str, ...], ...] = ((), ()),
    devices: int = 2,
    **options,
) -> Iterator[list[subprocess.Popen]]:
    """Starts a command several times, as `Commands.start` does, and kills all processes at the end.

    Args:
        commands: starts it.
        arguments: of all processes.
        each: further arguments of each process.
        devices: of each process.
        options: as of `Commands.start`.
    """
    with socket.socket(socket.AF_INET6) as held:
        # Bound, so that no other process gets this port, but shared, as gRPC needs it.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("::", 0))
        port = held.getsockname()[1]
        flags = [f"--coordinator=127.0.0.1:{port}", f"--processes={len(each)}"]
        variables = {"XLA_FLAGS": preloaded.devices(devices)}
        processes = []
        for number, own_arguments in enumerate(each):
            process = commands.start(
                *arguments,
                *own_arguments,
                *flags,
                f"--process={number}",
                **variables,
                **options,
            )
            processes.append(process)
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def two_processes(commands: Commands, *arguments: str, second: tuple[str, ...] = (), **options):
    """Starts two processes with two devices each, the second one with further arguments."""
    return several_processes(commands, *arguments, each=((), second), **options)


def outcome(process: subprocess.Popen, timeout: int = 120) -> subprocess.CompletedProcess:
    """The result of a process, with everything that it printed since the last line read."""
    stdout, stderr = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def run_two(commands: Commands, *arguments: str, **options) -> list[subprocess.CompletedProcess]:
    """Runs a command in two processes, which must end well."""
    with two_processes(commands, *arguments, **options) as processes:
        results = [outcome(process) for process in processes]
    for result in results:
        assert_done(result)
    return results


def assert_lost(result: subprocess.CompletedProcess) -> None:
    """Checks that a process that lost another one ended with an error that says so."""
    errors = result.stderr
    assert result.returncode not in (0, 2), errors
    assert any(words in errors for words in LOST), errors
    assert "Traceback" not in errors, errors
