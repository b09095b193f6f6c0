"""Standard streams that are full or no longer read, and what Orbax says beside its errors."""

import logging as std_logging
import os
import subprocess
import sys
import types

import pytest

from gmlp_flax.processes import output
from tests.preloaded import ROOT

PROGRAM = """
import sys
from gmlp_flax.processes import output
with output.guard():
    print("told", file=sys.stderr)
    print("done \\udcff")
    sys.stdin.read()
"""


def shell(redirection: str) -> subprocess.CompletedProcess:
    """Runs the program as a shell does with `redirection`."""
    command = ["sh", "-c", f'exec "$0" -W error -c "$1" {redirection}', sys.executable, PROGRAM]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, input="", timeout=60)


@pytest.mark.parametrize(
    ("redirection", "code", "out", "err"),
    [
        ("", 0, "done \\udcff\n", "told\n"),
        (">&-", 0, "", "told\n"),
        ("2>/dev/full", 0, "done \\udcff\n", ""),
        ("| true; exit 0", 0, "", "told\n"),
        (
            ">/dev/full",
            2,
            "",
            "told\nerror: standard output cannot be written to (No space left on device): free space\n",
        ),
    ],
)
def test_streams_that_are_lost(redirection, code, out, err):
    done = shell(redirection)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


def test_a_reader_that_goes_ends_a_program_in_silence():
    """And a line is there as soon as it is printed, though the program waits for more input."""
    words = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    program = PROGRAM.replace("sys.stdin.read()", "[print(line) for line in sys.stdin]")
    with subprocess.Popen([sys.executable, "-c", program], **words) as process:
        assert process.stdout.readline() == "done \\udcff\n"
        process.stdout.close()
        process.stdin.write("one\ntwo\n")
        process.stdin.flush()
        assert process.wait(30) == 141 and process.stderr.read() == "told\n"


@pytest.mark.parametrize("words", ["--version", "train --help_config"])
def test_a_command_whose_output_is_full(words):
    command = ["sh", "-c", f'exec "$0" -m gmlp_flax {words} >/dev/full', sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: standard output cannot be written to (No space left on device)")


def test_messages_that_nobody_reads_do_not_end_a_program():
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb") as stream:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=ROOT, input=b"", stdout=subprocess.PIPE, stderr=stream
        )
    assert done.returncode == 0 and done.stdout == b"done \\udcff\n"


@pytest.fixture
def shown(monkeypatch):
    """The exceptions that the hook passes on."""
    passed, logger = [], std_logging.getLogger("absl")
    monkeypatch.setattr(sys, "unraisablehook", passed.append)
    monkeypatch.setattr(logger, "filters", [])
    output.silence_orbax.cache_clear()
    output.silence_orbax()
    return passed


@pytest.mark.parametrize(
    ("path", "kept"),
    [("/env/site-packages/orbax/checkpoint/handlers.py", False), ("/home/orbax/gmlp_flax/checkpoint.py", True)],
)
@pytest.mark.usefixtures("shown")
def test_log_records(path, kept):
    record = std_logging.LogRecord("absl", std_logging.ERROR, path, 1, "words", (), None)
    assert bool(std_logging.getLogger("absl").filter(record)) == kept


def test_exceptions_that_no_one_can_catch(shown):
    def unraisable(path: str, error: Exception) -> types.SimpleNamespace:
        code = types.SimpleNamespace(co_filename=path)
        return types.SimpleNamespace(object=types.SimpleNamespace(cr_code=code), exc_value=error)

    ours = unraisable("/ours.py", ValueError("flipped"))
    sys.unraisablehook(unraisable("/env/orbax/checkpoint/async.py", ValueError("flipped")))
    sys.unraisablehook(unraisable("/ours.py", RuntimeError("Event loop is closed")))
    sys.unraisablehook(ours)
    assert shown == [ours]
