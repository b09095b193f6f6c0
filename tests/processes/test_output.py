"""Standard streams that are full or closed, and messages of Orbax that are silenced."""

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
    print("a note", file=sys.stderr)
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
        ("", 0, "done \\udcff\n", "a note\n"),
        (">&-", 0, "", "a note\n"),
        ("2>/dev/full", 0, "done \\udcff\n", ""),
        ("| true; exit 0", 0, "", "a note\n"),
    ],
)
def test_closed_and_full_streams_are_tolerated(redirection, code, out, err):
    done = shell(redirection)
    assert done.returncode == code, done.stderr
    assert done.stdout == out
    assert done.stderr == err


def test_programs_end_silently_if_their_reader_ends():
    """Each line is written at once, even if the program waits for input."""
    options = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "cwd": ROOT,
    }
    program = PROGRAM.replace("sys.stdin.read()", "[print(line) for line in sys.stdin]")
    with subprocess.Popen([sys.executable, "-c", program], **options) as process:
        assert process.stdout.readline() == "done \\udcff\n"
        process.stdout.close()
        process.stdin.write("one\ntwo\n")
        process.stdin.flush()
        assert process.wait(30) == 141
        assert process.stderr.read() == "a note\n"


def test_commands_report_a_full_output_in_one_line():
    command = ["sh", "-c", 'exec "$0" -m gmlp_flax --version >/dev/full', sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.fixture
def silenced(monkeypatch):
    """Silences Orbax, and returns the unraisable exceptions that are shown afterwards."""
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    monkeypatch.setattr(std_logging.getLogger("absl"), "filters", [])
    output.silence_orbax.cache_clear()
    output.silence_orbax()
    return shown


@pytest.mark.parametrize(
    ("path", "is_kept"),
    [
        ("/env/orbax/checkpoint/handlers.py", False),
        ("/home/orbax/gmlp_flax/checkpoint.py", True),
    ],
)
def test_log_records_of_orbax_are_silenced(silenced, path, is_kept):
    logger = std_logging.getLogger("absl")
    record = std_logging.LogRecord("absl", std_logging.ERROR, path, 1, "words", (), None)
    assert bool(logger.filter(record)) == is_kept


def unraisable(path: str, error: Exception) -> types.SimpleNamespace:
    """An exception that a coroutine of this file raised and nobody can catch."""
    code = types.SimpleNamespace(co_filename=path)
    coroutine = types.SimpleNamespace(cr_code=code)
    return types.SimpleNamespace(object=coroutine, exc_value=error)


def test_unraisable_exceptions_of_orbax_are_silenced(silenced):
    ours = unraisable("/ours.py", ValueError("flipped"))
    sys.unraisablehook(unraisable("/env/orbax/checkpoint/async.py", ValueError("flipped")))
    sys.unraisablehook(unraisable("/ours.py", RuntimeError("Event loop is closed")))
    sys.unraisablehook(ours)
    assert silenced == [ours]
