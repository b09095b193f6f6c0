"""Standard streams that are closed, full, or no longer read."""

import os
import subprocess
import sys

import pytest

from tests.preloaded import ROOT

PROGRAM = """
import os, sys
from gmlp_flax.processes import streams
with streams.guarded():
    opened = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    print("told", file=sys.stderr)
    print("done \\udcff")
    os.write(opened, repr((opened > 2, sys.stdin.read())).encode())
"""


def shell(redirection, path, program=PROGRAM):
    """Runs a program as a shell does with `redirection`: its exit code, output and messages, and its file's content."""
    command = ["sh", "-c", f'exec "$0" -W error -c "$1" "$2" {redirection}', sys.executable, program, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, input="", timeout=60)
    return done.returncode, done.stdout, done.stderr, path.read_text()


@pytest.mark.parametrize(
    ("redirection", "out", "err"),
    [
        ("", "done \\udcff\n", "told\n"),
        (">&-", "", "told\n"),
        ("2>&-", "done \\udcff\n", ""),
        ("<&-", "done \\udcff\n", "told\n"),
        ("<&- >&- 2>&-", "", ""),
        ("2>/dev/full", "done \\udcff\n", ""),
    ],
)
def test_what_is_closed_reads_as_empty_and_swallows_what_is_written(tmp_path, redirection, out, err):
    """No file takes the number of a closed stream."""
    assert shell(redirection, tmp_path / "file") == (0, out, err, "(True, '')")


def test_full_output_is_one_line(tmp_path):
    code, _, err, _ = shell(">/dev/full", tmp_path / "file")
    expected = "error: standard output cannot be written to (No space left on device): free space, or send it elsewhere"
    assert code == 2 and err.splitlines() == ["told", expected]


@pytest.mark.parametrize("words", ["--version", "train --help_config", "sizes --help"])
def test_a_command_whose_output_is_full(words):
    command = ["sh", "-c", f'exec "$0" -m gmlp_flax {words} >/dev/full', sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: standard output cannot be written to (No space left on device)")


def test_messages_that_nobody_reads_do_not_end_a_program(tmp_path):
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "file")]
    with os.fdopen(theirs, "wb") as stream:
        done = subprocess.run(command, cwd=ROOT, input=b"x", stdout=subprocess.PIPE, stderr=stream, timeout=60)
    assert done.returncode == 0 and done.stdout == b"done \\udcff\n"
