"""Files that grow by lines, and messages during long waits."""

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


def test_logs_are_files(tmp_path):
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
def test_full_disks_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "write", lambda path, content: None)
    log = logs.begin("/dev/full", b"")
    assert "writing /dev/full failed (No space left" in raised(FileError, log.write, b"line")
    log.close()


def test_errors_of_fsync_are_not_retried(tmp_path, monkeypatch):
    """The system reports it only once, although the data may be lost."""
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


def test_lines_of_a_few_seconds_are_uploaded_together(monkeypatch):
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


def test_heartbeats_say_what_is_done_and_for_how_long(monkeypatch):
    monkeypatch.setattr(logs, "BEAT", 0.01)
    messages = []
    with logs.heartbeat("compiling", messages.append):
        while len(messages) < 3:
            time.sleep(0.001)
    assert messages[0] == "compiling"
    assert set(messages[1:]) == {"compiling: 0 s so far"}
    after = len(messages)
    time.sleep(0.05)
    assert len(messages) == after, "it ends with the work"


def test_silence_before_the_work_is_not_counted(monkeypatch):
    """The last line of a notebook may be an hour old."""
    monkeypatch.setattr(logs, "BEAT", 0.2)
    logs.to_stderr("an old line")
    time.sleep(0.25)
    messages = []
    began = time.monotonic()
    with logs.heartbeat("loading", messages.append, at_once=False):
        while not messages:
            time.sleep(0.001)
    assert time.monotonic() - began >= 0.2


def test_short_waits_may_have_no_message(monkeypatch):
    monkeypatch.setattr(logs, "BEAT", 0.01)
    messages = []
    with logs.heartbeat("evaluating", messages.append, at_once=False):
        while not messages:
            time.sleep(0.001)
    assert set(messages) == {"evaluating: 0 s so far"}


def test_only_the_innermost_heartbeat_is_shown(monkeypatch):
    monkeypatch.setattr(logs, "BEAT", 0.02)
    messages = []
    with logs.heartbeat("planning", messages.append, at_once=False):
        with logs.heartbeat("compiling", messages.append, at_once=False):
            while len(messages) < 3:
                time.sleep(0.001)
        inside = list(messages)
        while len(messages) < len(inside) + 2:
            time.sleep(0.001)
    assert set(inside) == {"compiling: 0 s so far"}
    assert set(messages[len(inside) :]) == {"planning: 0 s so far"}


def test_many_short_waits_are_one_long_wait(monkeypatch):
    """Each is short, but together they are long."""
    monkeypatch.setattr(logs, "BEAT", 0.1)
    messages = []
    logs.to_stderr("the last line")
    began = time.monotonic()
    while not messages:
        with logs.heartbeat("reading", messages.append, at_once=False):
            time.sleep(0.03)
    assert 0.1 <= time.monotonic() - began < 2


def test_heartbeats_do_not_catch_errors(capsys):
    with pytest.raises(ZeroDivisionError), logs.heartbeat("dividing"):
        1 / 0  # noqa: B018
    assert capsys.readouterr().err == "dividing\n"
