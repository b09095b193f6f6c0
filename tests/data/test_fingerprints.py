"""What recognises data without reading them all."""

import hashlib
import os
import shutil
import zlib

import numpy as np
import pytest

from gmlp_flax.data import fingerprints
from gmlp_flax.io import files
from tests.failures import failure


def write(folder, **contents):
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def fingerprint(folder):
    return fingerprints.of_files(files.find_files(str(folder)))


def sha256(*values):
    """Of values, each after its length."""
    framed = b""
    for value in values:
        framed += len(value).to_bytes(8, "little") + value
    return hashlib.sha256(framed).hexdigest()[:16]


def test_counts_names_and_content(tmp_path):
    found = fingerprint(write(tmp_path / "a", x=b"12", y=b"345"))
    content = sha256(b"12", b"345")
    assert found == {
        "files": 2,
        "bytes": 5,
        "names": sha256(b"x", b"y"),
        "content": sha256(b"[2, 3]", content.encode()),
    }


def test_other_places_and_times_change_nothing(tmp_path):
    here = write(tmp_path / "a", x=b"12", y=b"345", empty=b"")
    there = shutil.copytree(here, tmp_path / "b")
    os.utime(there / "x", (1, 1))
    assert fingerprint(here) == fingerprint(there)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda path: (path / "x").write_bytes(b"13"), {"content"}),
        (lambda path: (path / "x").write_bytes(b"123"), {"bytes", "content"}),
        (lambda path: (path / "x").rename(path / "w"), {"names"}),
        (lambda path: (path / "z").write_bytes(b"6"), {"files", "bytes", "names", "content"}),
    ],
)
def test_what_differs(tmp_path, change, differs):
    path = write(tmp_path / "a", x=b"12", y=b"345")
    before = fingerprint(path)
    change(path)
    after = fingerprint(path)
    got = {name for name in after if after[name] != before[name]}
    assert got == differs


@pytest.mark.parametrize("size", [0, 1, 5, 6, 9, 10, 11, 30])
def test_the_ends_of_a_file(tmp_path, monkeypatch, size):
    monkeypatch.setattr(fingerprints, "END", 5)
    content = bytes(range(size))
    (tmp_path / "x").write_bytes(content)
    (file,) = files.find_files(str(tmp_path / "x"))
    expected = content if size <= 5 else content[:5] + content[-5:]
    assert fingerprints.ends(file) == expected


def test_both_ends_of_large_files_are_read_and_no_more(tmp_path, monkeypatch):
    small = {f"y{number}": b"1" for number in range(300)}
    path = write(tmp_path / "a", x=bytes(1 << 20), **small)
    before = fingerprint(path)
    read_range = files.read_range
    sizes = []

    def counting(*arguments):
        content = read_range(*arguments)
        sizes.append(len(content))
        return content

    monkeypatch.setattr(files, "read_range", counting)
    (path / "x").write_bytes(bytes((1 << 20) - 1) + b"1")
    assert fingerprint(path)["content"] != before["content"]
    assert sum(sizes) < 200_000
    assert len(sizes) <= fingerprints.SAMPLE + 1


def test_a_file_that_is_gone(tmp_path):
    path = write(tmp_path / "a", x=b"12")
    found = files.find_files(str(path))
    (path / "x").unlink()
    assert str(path / "x") in failure(fingerprints.of_files, found)


def test_names_that_are_no_unicode(tmp_path):
    """Names of files are bytes on Linux; a copy of the same names is the same data."""
    path = write(tmp_path / "a", x=b"12")
    name = os.fsencode(path) + b"/caf\xe9"
    with open(name, "wb") as file:
        file.write(b"3")
    assert fingerprint(path) == fingerprint(shutil.copytree(path, tmp_path / "b"))


def test_texts():
    texts = ["one", "", "€ \ud800", "one"]
    checksums = [zlib.crc32(text.encode("utf-8", "surrogatepass")) for text in texts]
    expected = sha256(np.array(checksums, "<u4").tobytes())
    assert fingerprints.of_texts(texts) == expected
    assert fingerprints.of_texts(["one", ""]) != fingerprints.of_texts(["", "one"])


def test_a_digest_tells_where_values_end():
    digests = {fingerprints.digest(values) for values in (["ab", "c"], ["a", "bc"], ["abc"])}
    assert len(digests) == 3
    assert fingerprints.digest(["é"]) == fingerprints.digest(["é".encode()])


@pytest.mark.parametrize(
    ("count", "most", "positions"),
    [(3, 64, [0, 1, 2]), (0, 64, []), (1, 1, [0]), (10, 1, [0]), (10, 3, [0, 4, 9])],
)
def test_positions_are_spread(count, most, positions):
    assert fingerprints.spread(count, most) == positions


def test_both_ends_are_among_spread_positions():
    positions = fingerprints.spread(10**6)
    assert len(positions) == fingerprints.SAMPLE
    assert positions[0] == 0
    assert positions[-1] == 10**6 - 1
