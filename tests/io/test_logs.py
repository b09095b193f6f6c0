"""Files that grow by lines, and what a user reads while waiting."""

import errno
import os
import time

import pytest

from gmlp_flax.errors import FileError, StorageError
from gmlp_flax.io import files, logs, storage
from tests.failures import raised

PATH = "memory://segments/metrics.jsonl"


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(storage, "PAUSES", (0.0, 0.0, 0.0))
    files.remove_all("memory://segments")


def test_a_log_is_a_file(tmp_path):
    path = str(tmp_path / "a" / "b")
    assert files.read(path) is None
    files.write(path, b"one")
    log = logs.begin(path, b"two")
    log.write(b" and three")
    assert files.read(path) == b"two and three"
    log.flush()
    log.write(b" and four")
    log.close()
    assert files.read(path) == b"two and three and four"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux")
def test_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "write", lambda path, content: None)
    log = logs.begin("/dev/full", b"")
    assert "writing /dev/full failed (No space left" in raised(FileError, log.write, b"line")
    log.close()


def test_an_error_of_fsync_is_not_tried_again(tmp_path, monkeypatch):
    """The system tells it once, and what was to be written may be lost all the same."""
    log = logs.begin(str(tmp_path / "log"), b"")
    left = [errno.EIO]

    def fsync(_):
        if left:
            raise OSError(left.pop(), "")

    log.write(b"line")
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match="^writing .*/log failed .Input/output error."):
        log.flush()
    log.close()


def test_in_a_bucket_lines_of_a_few_seconds_are_written_together(monkeypatch):
    files.write(PATH, b"what was there")
    log = logs.begin(PATH, b"0\n")
    log.write(b"1\n")
    assert files.read(PATH) == b"0\n"
    log.flush()
    assert files.read(PATH) == b"0\n1\n"
    monkeypatch.setattr(logs, "HOLD", -1.0)
    log.write(b"2\n")
    assert files.read(PATH) == b"0\n1\n2\n"
    monkeypatch.setattr(logs, "HOLD", 5.0)
    log.write(b"3\n")
    log.close()
    assert files.read(PATH) == b"0\n1\n2\n3\n"
    assert files.listdir("memory://segments") == ["metrics.jsonl"]


def test_says_what_is_done_and_how_long_it_has_taken(monkeypatch):
    monkeypatch.setattr(logs, "BEAT", 0.01)
    told = []
    with logs.heartbeat("compiling", told.append):
        while len(told) < 3:
            time.sleep(0.001)
    assert told[0] == "compiling"
    assert set(told[1:]) == {"compiling: 0 s so far"}
    after = len(told)
    time.sleep(0.05)
    assert len(told) == after, "it ends with the work"


def test_silence_before_the_work_does_not_count(monkeypatch):
    """As in a notebook, whose last line may be an hour old."""
    monkeypatch.setattr(logs, "BEAT", 0.2)
    logs.to_stderr("an old line")
    time.sleep(0.25)
    told = []
    began = time.monotonic()
    with logs.heartbeat("loading", told.append, at_once=False):
        while not told:
            time.sleep(0.001)
    assert time.monotonic() - began >= 0.2


def test_what_is_soon_done_need_not_be_said(monkeypatch):
    monkeypatch.setattr(logs, "BEAT", 0.01)
    told = []
    with logs.heartbeat("evaluating", told.append, at_once=False):
        while not told:
            time.sleep(0.001)
    assert set(told) == {"evaluating: 0 s so far"}


def test_the_innermost_speaks_for_all(monkeypatch):
    monkeypatch.setattr(logs, "BEAT", 0.02)
    told = []
    with logs.heartbeat("planning", told.append, at_once=False):
        with logs.heartbeat("compiling", told.append, at_once=False):
            while len(told) < 3:
                time.sleep(0.001)
        inside = list(told)
        while len(told) < len(inside) + 2:
            time.sleep(0.001)
    assert set(inside) == {"compiling: 0 s so far"}
    assert set(told[len(inside) :]) == {"planning: 0 s so far"}


def test_many_short_waits_are_no_long_silence(monkeypatch):
    """None of them lasts, but together they do."""
    monkeypatch.setattr(logs, "BEAT", 0.1)
    told = []
    logs.to_stderr("the last line")
    began = time.monotonic()
    while not told:
        with logs.heartbeat("reading", told.append, at_once=False):
            time.sleep(0.03)
    assert 0.1 <= time.monotonic() - began < 2


def test_an_error_passes_through(capsys):
    with pytest.raises(ZeroDivisionError), logs.heartbeat("dividing"):
        1 / 0  # noqa: B018
    assert capsys.readouterr().err == "dividing\n"
