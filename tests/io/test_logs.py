"""Files that grow by lines, and what a user reads while waiting."""

import errno
import os
import time

import pytest

from gmlp_flax.errors import FileError, StorageError
from gmlp_flax.io import files, logs, storage

PATH = "memory://segments/metrics.jsonl"


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(storage, "PAUSES", (0.0, 0.0, 0.0))
    files.remove_all("memory://segments")


def test_a_log_is_a_file(tmp_path):
    path = str(tmp_path / "a" / "b")
    assert logs.read(path) is None and logs.age(path) is None
    files.write(path, b"one")
    log = logs.begin(path, b"two")
    log.write(b" and three")
    assert files.read(path) == logs.read(path) == b"two and three" and -5 < logs.age(path) < 60
    log.flush()
    log.write(b" and four")
    log.close()
    assert logs.read(path) == b"two and three and four"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux")
def test_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "write", lambda path, content: None)
    log = logs.begin("/dev/full", b"")
    with pytest.raises(FileError, match="writing /dev/full failed .No space left"):
        log.write(b"line")
    log.close()


def test_an_error_of_fsync_is_not_tried_again(tmp_path, monkeypatch):
    """The system tells it once, and what was to be written may be lost all the same."""
    log, left = logs.begin(str(tmp_path / "log"), b""), [errno.EIO]

    def fsync(_):
        if left:
            raise OSError(left.pop(), "")

    log.write(b"line")
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match="^writing .*/log failed .Input/output error."):
        log.flush()
    log.close()


def parts():
    return files.listdir(f"{PATH}.parts")


def test_lines_are_written_as_objects_and_joined_at_the_end(monkeypatch):
    written = []
    write = files.write
    monkeypatch.setattr(files, "write", lambda path, content: written.append(len(content)) or write(path, content))
    log = logs.begin(PATH, b"0\n")
    for number in range(1, 6):
        log.write(f"{number}\n".encode())
        log.flush()
    assert logs.read(PATH) == b"0\n1\n2\n3\n4\n5\n" and files.read(PATH) == b"0\n"
    assert written == [2] * 6  # no line is written twice
    log.close()
    assert files.read(PATH) == logs.read(PATH) == b"0\n1\n2\n3\n4\n5\n" and parts() == []


def test_lines_of_a_few_seconds_are_one_object(monkeypatch):
    log = logs.begin(PATH, b"")
    log.write(b"1\n")
    log.write(b"2\n")
    assert logs.read(PATH) == b""
    monkeypatch.setattr(logs, "HOLD", -1.0)
    log.write(b"3\n")
    assert logs.read(PATH) == b"1\n2\n3\n" and -5 < logs.age(PATH) < 60
    (folder,) = parts()
    log.flush()
    assert files.listdir(f"{PATH}.parts/{folder}") == ["000000"]


def test_many_parts_are_joined(monkeypatch):
    monkeypatch.setattr(logs, "MOST", 3)
    log, lines = logs.begin(PATH, b""), []
    for number in range(11):
        lines.append(f"{number}\n".encode())
        log.write(lines[-1])
        log.flush()
        assert logs.read(PATH) == b"".join(lines)
        assert sum(len(files.listdir(f"{PATH}.parts/{folder}")) for folder in parts()) <= 3


@pytest.mark.parametrize("first", [b"", b"0\n"])
@pytest.mark.parametrize("kept", [b"", b"0\n", b"0\n1\n"])
def test_a_killed_run_begins_anew(first, kept):
    """Whatever is kept, nothing of the lines that are dropped comes back."""
    killed = logs.begin(PATH, first)
    killed.write(b"1\n")
    killed.flush()
    log = logs.begin(PATH, kept)
    assert logs.read(PATH) == kept and parts() == []
    log.write(b"5\n")
    log.flush()
    assert logs.read(PATH) == kept + b"5\n"


def test_killed_between_the_file_and_its_old_parts(monkeypatch):
    killed = logs.begin(PATH, b"0\n")
    killed.write(b"1\n")
    killed.flush()
    monkeypatch.setattr(files, "remove_all", lambda folder: None)
    logs.begin(PATH, b"0\n1\n")
    assert logs.read(PATH) == b"0\n1\n"


def test_says_what_is_done_and_how_long_it_has_taken(monkeypatch):
    monkeypatch.setattr(logs, "BEAT", 0.01)
    told = []
    with logs.heartbeat("compiling", told.append):
        while len(told) < 3:
            time.sleep(0.001)
    assert told[0] == "compiling" and set(told[1:]) == {"compiling: 0 s so far"}
    after = len(told)
    time.sleep(0.05)
    assert len(told) == after, "it ends with the work"


def test_an_error_passes_through(capsys):
    with pytest.raises(ZeroDivisionError), logs.heartbeat("dividing"):
        1 / 0  # noqa: B018
    assert capsys.readouterr().err == "dividing\n"
