"""Standard streams that are full or no longer read, and what Orbax says beside its errors."""

import logging as std_logging
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
    ],
)
def test_streams_that_are_lost(redirection, code, out, err):
    done = shell(redirection)
    assert done.returncode == code, done.stderr
    assert done.stdout == out
    assert done.stderr == err


def test_a_reader_that_goes_ends_a_program_in_silence():
    """And a line is there as soon as it is printed, though the program waits for more input."""
    words = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "cwd": ROOT,
    }
    program = PROGRAM.replace("sys.stdin.read()", "[print(line) for line in sys.stdin]")
    with subprocess.Popen([sys.executable, "-c", program], **words) as process:
        assert process.stdout.readline() == "done \\udcff\n"
        process.stdout.close()
        process.stdin.write("one\ntwo\n")
        process.stdin.flush()
        assert process.wait(30) == 141
        assert process.stderr.read() == "told\n"


def test_a_command_whose_output_is_full():
    command = ["sh", "-c", 'exec "$0" -m gmlp_flax --version >/dev/full', sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_log_records_and_exceptions_that_no_one_can_catch(monkeypatch):
    shown = []
    logger = std_logging.getLogger("absl")
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    monkeypatch.setattr(logger, "filters", [])
    output.silence_orbax.cache_clear()
    output.silence_orbax()
    for path, kept in (
        ("/env/orbax/checkpoint/handlers.py", False),
        ("/home/orbax/gmlp_flax/checkpoint.py", True),
    ):
        record = std_logging.LogRecord("absl", std_logging.ERROR, path, 1, "words", (), None)
        assert bool(logger.filter(record)) == kept

    def unraisable(path: str, error: Exception) -> types.SimpleNamespace:
        code = types.SimpleNamespace(co_filename=path)
        return types.SimpleNamespace(object=types.SimpleNamespace(cr_code=code), exc_value=error)

    ours = unraisable("/ours.py", ValueError("flipped"))
    sys.unraisablehook(unraisable("/env/orbax/checkpoint/async.py", ValueError("flipped")))
    sys.unraisablehook(unraisable("/ours.py", RuntimeError("Event loop is closed")))
    sys.unraisablehook(ours)
    assert shown == [ours]
