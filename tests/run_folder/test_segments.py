import pytest

from gmlp_flax.data.storage import buckets
from gmlp_flax.run_folder import segments
from gmlp_flax.run_folder.segments import Segments, read_segmented, segmented_age

PATH = "memory://segments/metrics.jsonl"


@pytest.fixture(autouse=True)
def empty():
    buckets.remove_all("memory://segments")


def parts():
    return buckets.names(f"{PATH}.parts")


def test_lines_are_written_as_objects_and_joined_at_the_end(monkeypatch):
    written = []
    write = buckets.write
    monkeypatch.setattr(buckets, "write", lambda path, content: written.append(len(content)) or write(path, content))
    log = Segments(PATH, b"0\n")
    for number in range(1, 6):
        log.write(f"{number}\n".encode())
        log.flush()
    assert read_segmented(PATH) == b"0\n1\n2\n3\n4\n5\n" and buckets.read(PATH) == b"0\n"
    assert written == [2] * 6  # no line is written twice
    log.close()
    assert buckets.read(PATH) == read_segmented(PATH) == b"0\n1\n2\n3\n4\n5\n" and parts() == []


def test_lines_of_a_few_seconds_are_one_object(monkeypatch):
    log = Segments(PATH, b"")
    log.write(b"1\n")
    log.write(b"2\n")
    assert read_segmented(PATH) == b""
    monkeypatch.setattr(segments, "HOLD", -1.0)
    log.write(b"3\n")
    assert read_segmented(PATH) == b"1\n2\n3\n"
    (folder,) = parts()
    assert buckets.names(f"{PATH}.parts/{folder}") == ["000000"]
    log.flush()
    assert buckets.names(f"{PATH}.parts/{folder}") == ["000000"]


def test_many_parts_are_joined(monkeypatch):
    monkeypatch.setattr(segments, "MOST", 3)
    log, lines = Segments(PATH, b""), []
    for number in range(11):
        lines.append(f"{number}\n".encode())
        log.write(lines[-1])
        log.flush()
        assert read_segmented(PATH) == b"".join(lines)
        assert sum(len(buckets.names(f"{PATH}.parts/{each}")) for each in parts()) <= 3


@pytest.mark.parametrize("first", [b"", b"0\n"])
@pytest.mark.parametrize("kept", [b"", b"0\n", b"0\n1\n"])
def test_a_killed_run_begins_anew(first, kept):
    """Whatever is kept, nothing of the lines that are dropped comes back."""
    killed = Segments(PATH, first)
    killed.write(b"1\n")
    killed.flush()
    log = Segments(PATH, kept)
    assert read_segmented(PATH) == kept and parts() == []
    log.write(b"5\n")
    log.flush()
    assert read_segmented(PATH) == kept + b"5\n"


def test_killed_between_the_file_and_its_old_parts(monkeypatch):
    killed = Segments(PATH, b"0\n")
    killed.write(b"1\n")
    killed.flush()
    monkeypatch.setattr(buckets, "remove_all", lambda folder: None)
    Segments(PATH, b"0\n1\n")
    assert read_segmented(PATH) == b"0\n1\n"


def test_absent():
    assert read_segmented(PATH) is None and segmented_age(PATH) is None
    Segments(PATH, b"").close()
    assert -5 < segmented_age(PATH) < 60
