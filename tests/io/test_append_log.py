import errno
import os

import pytest

from gmlp_flax.errors import RunError, StorageError
from gmlp_flax.io import append_log, buckets, run_files

PATH = "memory://segments/metrics.jsonl"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(run_files, "PAUSES", (0.0, 0.0, 0.0))


def test_a_log_is_a_file(tmp_path):
    path = str(tmp_path / "a" / "b")
    assert append_log.read(path) is None and append_log.age(path) is None
    run_files.write(path, b"one")
    log = append_log.begin(path, b"two")
    log.write(b" and three")
    assert run_files.read(path) == append_log.read(path) == b"two and three" and -5 < append_log.age(path) < 60
    log.close()


def test_partial_write_is_a_full_disk(tmp_path):
    class Full:
        name = "there"

        def write(self, content):
            return len(content) - 1

    log = append_log.begin(str(tmp_path / "log"), b"")
    log.close()
    log._file = Full()
    with pytest.raises(RunError, match="^writing there failed .*: free space"):
        log.write(b"line")


def test_a_flushed_log_goes_on(tmp_path):
    """It was closed, as a mounted bucket wants it, and opened again."""
    log = append_log.begin(str(tmp_path / "log"), b"a\n")
    for line in (b"b\n", b"c\n"):
        log.write(line)
        before = log._file
        log.flush()
        assert before.closed
    log.close()
    assert (tmp_path / "log").read_bytes() == b"a\nb\nc\n"


def test_an_error_of_fsync_is_not_tried_again(tmp_path, monkeypatch):
    """The system tells it once, and what was to be written may be lost all the same."""
    log, left = append_log.begin(str(tmp_path / "log"), b""), [errno.EIO]

    def fsync(_):
        if left:
            raise OSError(left.pop(), "")

    log.write(b"line")
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match="^writing .*/log failed .Input/output error.: nothing was moved or deleted"):
        log.flush()
    log.close()


@pytest.fixture(autouse=True)
def empty():
    buckets.remove_all("memory://segments")


def parts():
    return buckets.names(f"{PATH}.parts")


def test_lines_are_written_as_objects_and_joined_at_the_end(monkeypatch):
    written = []
    write = buckets.write
    monkeypatch.setattr(buckets, "write", lambda path, content: written.append(len(content)) or write(path, content))
    log = append_log.begin(PATH, b"0\n")
    for number in range(1, 6):
        log.write(f"{number}\n".encode())
        log.flush()
    assert append_log.read(PATH) == b"0\n1\n2\n3\n4\n5\n" and buckets.read(PATH) == b"0\n"
    assert written == [2] * 6  # no line is written twice
    log.close()
    assert buckets.read(PATH) == append_log.read(PATH) == b"0\n1\n2\n3\n4\n5\n" and parts() == []


def test_lines_of_a_few_seconds_are_one_object(monkeypatch):
    log = append_log.begin(PATH, b"")
    log.write(b"1\n")
    log.write(b"2\n")
    assert append_log.read(PATH) == b""
    monkeypatch.setattr(append_log, "HOLD", -1.0)
    log.write(b"3\n")
    assert append_log.read(PATH) == b"1\n2\n3\n"
    (folder,) = parts()
    assert buckets.names(f"{PATH}.parts/{folder}") == ["000000"]
    log.flush()
    assert buckets.names(f"{PATH}.parts/{folder}") == ["000000"]


def test_many_parts_are_joined(monkeypatch):
    monkeypatch.setattr(append_log, "MOST", 3)
    log, lines = append_log.begin(PATH, b""), []
    for number in range(11):
        lines.append(f"{number}\n".encode())
        log.write(lines[-1])
        log.flush()
        assert append_log.read(PATH) == b"".join(lines)
        assert sum(len(buckets.names(f"{PATH}.parts/{each}")) for each in parts()) <= 3


@pytest.mark.parametrize("first", [b"", b"0\n"])
@pytest.mark.parametrize("kept", [b"", b"0\n", b"0\n1\n"])
def test_a_killed_run_begins_anew(first, kept):
    """Whatever is kept, nothing of the lines that are dropped comes back."""
    killed = append_log.begin(PATH, first)
    killed.write(b"1\n")
    killed.flush()
    log = append_log.begin(PATH, kept)
    assert append_log.read(PATH) == kept and parts() == []
    log.write(b"5\n")
    log.flush()
    assert append_log.read(PATH) == kept + b"5\n"


def test_killed_between_the_file_and_its_old_parts(monkeypatch):
    killed = append_log.begin(PATH, b"0\n")
    killed.write(b"1\n")
    killed.flush()
    monkeypatch.setattr(buckets, "remove_all", lambda folder: None)
    append_log.begin(PATH, b"0\n1\n")
    assert append_log.read(PATH) == b"0\n1\n"


def test_absent():
    assert append_log.read(PATH) is None and append_log.age(PATH) is None
    append_log.begin(PATH, b"").close()
    assert -5 < append_log.age(PATH) < 60
