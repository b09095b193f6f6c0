"""Runs a command in several processes, which speak over the loopback."""

import contextlib
import socket
import subprocess
from collections.abc import Iterator

from tests import preloaded
from tests.runs.command import Commands, assert_done

# What we say; and what JAX's coordination service says if it finds out first, which then aborts.
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
    """Starts a command several times, as `Commands.start`; kills what runs at the end.

    Args:
        commands: starts it.
        arguments: of all.
        each: further arguments of each process.
        devices: of each process.
        options: as of `Commands.start`.
    """
    with socket.socket(socket.AF_INET6) as held:
        # Bound, so that no one else is given this port, but open to be shared, as gRPC asks for.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("::", 0))
        flags = [f"--coordinator=127.0.0.1:{held.getsockname()[1]}", f"--processes={len(each)}"]
        processes = [
            commands.start(
                *arguments,
                *more,
                *flags,
                f"--process={i}",
                XLA_FLAGS=preloaded.devices(devices),
                **options,
            )
            for i, more in enumerate(each)
        ]
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def two_processes(commands: Commands, *arguments: str, second: tuple[str, ...] = (), **options):
    """Two processes with two devices each, the second one with more arguments."""
    return several_processes(commands, *arguments, each=((), second), **options)


def outcome(process: subprocess.Popen, timeout: int = 120) -> subprocess.CompletedProcess:
    """The end of a process, with all that it wrote since the last line read."""
    stdout, stderr = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def run_two(commands: Commands, *arguments: str, **options) -> list[subprocess.CompletedProcess]:
    """Runs a command to its end, which is a good one."""
    with two_processes(commands, *arguments, **options) as processes:
        results = [outcome(process) for process in processes]
    for result in results:
        assert_done(result)
    return results


def assert_lost(result: subprocess.CompletedProcess) -> None:
    """A process that ended because of another one: not as if done or told to, and it says why."""
    assert result.returncode not in (0, 2), result.stderr
    assert any(words in result.stderr for words in LOST), result.stderr
    assert "Traceback" not in result.stderr, result.stderr
