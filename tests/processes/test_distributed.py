"""Processes find each other. Runs of several processes are in tests/runs/test_many_hosts.py."""

import os
import socket
import subprocess
import sys
from unittest import mock

import jax
import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.processes import distributed
from tests.failures import raised

LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def joined(monkeypatch):
    """Records the arguments for joining, instead of joining."""
    calls = []

    def initialize(*args, **options):
        calls.append((args, options))

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    return calls


@pytest.mark.parametrize(
    ("multihost", "coordinator", "processes", "process"),
    [
        ("off", "h:1", 2, 0),
        ("auto", "", 2, 0),
        ("auto", "h:1", 2, None),
        ("auto", "h:1", 2, 2),
        ("auto", "h", 2, 0),
        ("auto", "http://h:80", 2, 0),
    ],
)
def test_contradicting_flags_are_refused(joined, multihost, coordinator, processes, process):
    flags = (multihost, coordinator, processes, process)
    message = raised(RunError, distributed.initialize, *flags)
    shown = f"--coordinator={coordinator} --processes={processes} --process={process}: "
    assert shown in message
    assert not joined


def test_single_tasks_of_a_launcher_run_alone(joined, monkeypatch):
    """A shell in a SLURM allocation is one task, and --multihost=off always runs alone."""
    distributed.initialize("auto", "", None, None)
    monkeypatch.setenv("SLURM_PROCID", "0")
    distributed.initialize("auto", "", None, None)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    distributed.initialize("auto", "", None, None)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    distributed.initialize("off", "", None, None)
    assert not joined


@pytest.mark.parametrize(("total", "rank"), [LAUNCHERS[:2], LAUNCHERS[2:]])
def test_launchers_give_the_number_of_processes(joined, monkeypatch, total, rank):
    monkeypatch.setenv(total, "8")
    monkeypatch.setenv(rank, "3")
    distributed.initialize("auto", "", None, None)
    distributed.initialize("auto", "h:1", None, None)
    arguments = [args for args, _ in joined]
    assert arguments == [(None, 8, 3), ("h:1", 8, 3)]
    for _, options in joined:
        assert options["cluster_detection_method"] is None


def test_explicit_addresses_override_launchers(joined, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.setenv("SLURM_PROCID", "3")
    distributed.initialize("auto", "[::1]:80", 2, 1)
    ((args, options),) = joined
    assert args == ("[::1]:80", 2, 1)
    assert options["cluster_detection_method"] == "deactivate"
    assert options["heartbeat_timeout_seconds"] < 60


@pytest.fixture
def no_coordinator(monkeypatch):
    """JAX finds no coordinator."""
    initialize = mock.Mock(side_effect=ValueError("coordinator_address should be defined."))
    monkeypatch.setattr(jax.distributed, "initialize", initialize)


def test_processes_without_a_cluster_are_told_the_flags(no_coordinator):
    message = raised(RunError, distributed.initialize, "on", "", None, None)
    assert "by no TPU slice, SLURM or Open MPI" in message
    assert "--coordinator=HOST:PORT" in message


def test_errors_of_joining_name_the_launcher(no_coordinator, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    message = raised(RunError, distributed.initialize, "auto", "", None, None)
    assert "started by Open MPI" in message


def test_a_tpu_without_a_slice_runs_alone_by_default(no_coordinator, monkeypatch):
    job = distributed.Job("a TPU slice", None, None)
    monkeypatch.setattr(distributed, "find_job", lambda: job)
    distributed.initialize("auto", "", None, None)
    message = raised(RunError, distributed.initialize, "on", "", None, None)
    assert "started by a TPU slice" in message


@pytest.mark.slow
def test_missing_processes_are_reported_in_one_line():
    """The process ends with one line and an exit code, instead of JAX's abort."""
    with socket.socket(socket.AF_INET6) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("::", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        begin = "from gmlp_flax.processes import distributed; distributed.JOIN_SECONDS = 1"
        code = f"{begin}; distributed.initialize('auto', '{address}', 2, 0)"
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: not all 2 processes joined at {address} within 1 s")


def test_single_processes_agree_with_themselves(capsys):
    distributed.end_if_process_lost(
        RuntimeError("Gloo all-reduce failed: Connection reset by peer")
    )
    distributed.end_failed(RuntimeError("x"))
    distributed.wait_for_all("here")
    distributed.require_alike({"the config": b"x"})
    assert distributed.is_first()
    assert distributed.everywhere(True)
    assert not distributed.everywhere(False)
    distributed.say("hello")
    assert capsys.readouterr().err == "hello\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            RuntimeError("Gloo all-reduce failed: Connection reset by peer"),
            1,
            "error: lost a process of this run",
        ),
        (RunError("the barrier of the config"), 1, "RunError: the barrier of the config\n"),
        (SystemExit(2), 2, ""),
    ],
)
def test_errors_of_one_of_several_processes_end_it_at_once(
    monkeypatch, capsys, error, code, message
):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(os, "_exit", mock.Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        distributed.end_failed(error)
    os._exit.assert_called_once_with(code)
    assert message in capsys.readouterr().err
