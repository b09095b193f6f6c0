"""How a process finds the others. Runs of several processes are in
tests/runs/test_many_hosts.py."""

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
    asked = []
    monkeypatch.setattr(
        jax.distributed, "initialize", lambda *args, **options: asked.append((args, options))
    )
    return asked


@pytest.mark.parametrize(
    "given",
    [
        ("off", "h:1", 2, 0),
        ("auto", "", 2, 0),
        ("auto", "h:1", 2, None),
        ("auto", "h:1", 2, 2),
        ("auto", "h", 2, 0),
        ("auto", "http://h:80", 2, 0),
    ],
)
def test_flags_that_contradict(joined, given):
    with pytest.raises(
        RunError, match=f"--coordinator={given[1]} --processes={given[2]} --process={given[3]}: "
    ):
        distributed.initialize(*given)
    assert not joined


def test_alone_in_spite_of_a_launcher(joined, monkeypatch):
    """A shell in a SLURM allocation is one task, and --multihost=off always runs alone."""
    distributed.initialize("auto", "", None, None)
    monkeypatch.setenv("SLURM_PROCID", "0")
    distributed.initialize("auto", "", None, None)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    distributed.initialize("auto", "", None, None)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    distributed.initialize("off", "", None, None)
    assert not joined


@pytest.mark.parametrize(("total", "own"), [LAUNCHERS[:2], LAUNCHERS[2:]])
def test_launcher(joined, monkeypatch, total, own):
    monkeypatch.setenv(total, "8")
    monkeypatch.setenv(own, "3")
    distributed.initialize("auto", "", None, None)
    distributed.initialize("auto", "h:1", None, None)
    got = [args for args, _ in joined]
    assert got == [(None, 8, 3), ("h:1", 8, 3)]
    assert {options["cluster_detection_method"] for _, options in joined} == {None}


def test_explicit_address_goes_before_a_launcher(joined, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.setenv("SLURM_PROCID", "3")
    distributed.initialize("auto", "[::1]:80", 2, 1)
    ((args, options),) = joined
    assert args == ("[::1]:80", 2, 1)
    assert options["cluster_detection_method"] == "deactivate"
    assert options["heartbeat_timeout_seconds"] < 60


def test_nothing_to_join(monkeypatch):
    """JAX's error becomes a message that helps."""
    initialize = mock.Mock(side_effect=ValueError("coordinator_address should be defined."))
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(
        RunError, match="by no TPU slice, SLURM or Open MPI.*--coordinator=HOST:PORT"
    ):
        distributed.initialize("on", "", None, None)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    assert "started by Open MPI" in raised(RunError, distributed.initialize, "auto", "", None, None)
    # A TPU that belongs to no slice.
    monkeypatch.setattr(distributed, "find_job", lambda: distributed.Job("a TPU slice", None, None))
    distributed.initialize("auto", "", None, None)
    assert "started by a TPU slice" in raised(
        RunError, distributed.initialize, "on", "", None, None
    )


def test_other_processes_never_come():
    """One line and an exit code, not JAX's abort."""
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


def test_alone_all_agree_and_errors_take_their_course(capsys):
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
def test_errors_of_one_of_several_end_it_at_once(monkeypatch, capsys, error, code, message):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(os, "_exit", mock.Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        distributed.end_failed(error)
    os._exit.assert_called_once_with(code)
    assert message in capsys.readouterr().err
