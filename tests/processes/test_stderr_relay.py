import subprocess
import sys

from gmlp_flax.processes import stderr_relay

ABORT = """\
E1122 02:00:15.262141   23463 coordination_service.cc:1549] Use error polling to propagate the following error to all:
1
The tasks have crashed. Check the task logs for an earlier error.
E1122 02:00:15.262580   23474 coordination_service_agent.cc:289] Polled an error from coordination service
F1122 02:00:15.262765   23474 client.h:80] Terminating process because the JAX distributed service detected errors.
*** Check failure stack trace: ***
    @     0x7fdb04a40634  absl::lts_20260107::log_internal::LogMessage::SendToLog()
""".splitlines(keepends=True)


def test_abort_is_one_line():
    assert list(stderr_relay.shortened(["step 3\n", *ABORT])) == ["step 3\n", f"{stderr_relay.LOST}\n"]
    assert list(stderr_relay.shortened(ABORT[3:])) == [f"{stderr_relay.LOST}\n"]
    thrown = ["terminate called after throwing an instance of 'gloo::EnforceNotMet'\n", "  what():  [enforce fail]\n"]
    assert list(stderr_relay.shortened(thrown)) == [f"{stderr_relay.LOST}\n"]


def test_our_own_line_is_the_only_one():
    assert list(stderr_relay.shortened(["a\n", f"{stderr_relay.LOST}\n", *ABORT])) == ["a\n", f"{stderr_relay.LOST}\n"]


def test_all_else_is_passed_on():
    lines = ["Traceback (most recent call last):\n", "E1122 other.cc:3] another error\n", "without an end"]
    assert list(stderr_relay.shortened(lines)) == lines


def test_what_a_process_writes_while_it_is_killed():
    """Output of Python and of C arrives in order, and the helper ends after the process."""
    code = (
        "import os, signal, sys; from gmlp_flax.processes import stderr_relay; print('before', file=sys.stderr);"
        "stderr_relay.install(); print('after', file=sys.stderr); os.write(2, b'by number\\n'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-9, "before\nafter\nby number\n")
