"""Fingerprints identify data without reading all of it."""

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
    found = files.find_files(str(folder))
    return fingerprints.of_files(found)


def sha256(*values):
    """The digest of values, each preceded by its length."""
    framed = b""
    for value in values:
        framed += len(value).to_bytes(8, "little") + value
    return hashlib.sha256(framed).hexdigest()[:16]


def test_fingerprints_have_counts_names_and_content(tmp_path):
    found = fingerprint(write(tmp_path / "a", x=b"12", y=b"345"))
    content = sha256(b"12", b"345")
    assert found == {
        "files": 2,
        "bytes": 5,
        "names": sha256(b"x", b"y"),
        "content": sha256(b"[2, 3]", content.encode()),
    }


def test_fingerprints_do_not_depend_on_paths_and_times(tmp_path):
    here = write(tmp_path / "a", x=b"12", y=b"345", empty=b"")
    there = shutil.copytree(here, tmp_path / "b")
    os.utime(there / "x", (1, 1))
    assert fingerprint(here) == fingerprint(there)


def changed_facts(folder, change) -> set[str]:
    """The facts of a folder's fingerprint that a change alters."""
    before = fingerprint(folder)
    change()
    after = fingerprint(folder)
    return {name for name in after if after[name] != before[name]}


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        pytest.param("x", b"13", {"content"}, id="other content"),
        pytest.param("x", b"123", {"bytes", "content"}, id="another size"),
        pytest.param("z", b"6", {"files", "bytes", "names", "content"}, id="a new file"),
    ],
)
def test_written_files_change_the_fingerprint(tmp_path, name, content, expected):
    path = write(tmp_path / "a", x=b"12", y=b"345")
    changed = changed_facts(path, lambda: (path / name).write_bytes(content))
    assert changed == expected


def test_renamed_files_change_the_names(tmp_path):
    path = write(tmp_path / "a", x=b"12", y=b"345")
    changed = changed_facts(path, lambda: (path / "x").rename(path / "w"))
    assert changed == {"names"}


@pytest.mark.parametrize("size", [0, 1, 5, 6, 9, 10, 11, 30])
def test_both_ends_of_a_file_are_read(tmp_path, monkeypatch, size):
    monkeypatch.setattr(fingerprints, "END", 5)
    path = tmp_path / "x"
    content = bytes(range(size))
    path.write_bytes(content)
    (file,) = files.find_files(str(path))
    if size <= 5:
        assert fingerprints.ends(file) == content
    else:
        assert fingerprints.ends(file) == content[:5] + content[-5:]


def test_only_both_ends_of_large_files_are_read(tmp_path, monkeypatch):
    zeros = bytes(1 << 20)
    small = {f"y{number}": b"1" for number in range(300)}
    path = write(tmp_path / "a", x=zeros, **small)
    before = fingerprint(path)
    read_range = files.read_range
    sizes = []

    def counting(*arguments):
        content = read_range(*arguments)
        sizes.append(len(content))
        return content

    monkeypatch.setattr(files, "read_range", counting)
    (path / "x").write_bytes(zeros[:-1] + b"1")
    after = fingerprint(path)
    assert after["content"] != before["content"]
    assert sum(sizes) < 200_000
    assert len(sizes) <= fingerprints.SAMPLE + 1


def test_missing_files_are_named(tmp_path):
    path = write(tmp_path / "a", x=b"12")
    found = files.find_files(str(path))
    (path / "x").unlink()
    assert str(path / "x") in failure(fingerprints.of_files, found)


def test_names_may_be_invalid_unicode(tmp_path):
    """File names are bytes on Linux; a copy with the same names has the same fingerprint."""
    path = write(tmp_path / "a", x=b"12")
    name = os.fsencode(path) + b"/caf\xe9"
    with open(name, "wb") as file:
        file.write(b"3")
    copy = shutil.copytree(path, tmp_path / "b")
    assert fingerprint(path) == fingerprint(copy)


def test_fingerprints_of_texts_are_digests_of_their_checksums():
    texts = ["one", "", "€ \ud800", "one"]
    checksums = []
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        checksums.append(zlib.crc32(content))
    packed = np.array(checksums, "<u4").tobytes()
    assert fingerprints.of_texts(texts) == sha256(packed)


def test_the_order_of_texts_changes_the_fingerprint():
    assert fingerprints.of_texts(["one", ""]) != fingerprints.of_texts(["", "one"])


def test_digests_depend_on_where_values_end():
    digests = set()
    for values in (["ab", "c"], ["a", "bc"], ["abc"]):
        digests.add(fingerprints.digest(values))
    assert len(digests) == 3


def test_digests_of_text_are_those_of_its_bytes():
    assert fingerprints.digest(["é"]) == fingerprints.digest(["é".encode()])


@pytest.mark.parametrize(
    ("count", "most", "positions"),
    [(3, 64, [0, 1, 2]), (0, 64, []), (1, 1, [0]), (10, 1, [0]), (10, 3, [0, 4, 9])],
)
def test_positions_are_spread(count, most, positions):
    assert fingerprints.spread(count, most) == positions


def test_spread_positions_have_both_ends():
    positions = fingerprints.spread(10**6)
    assert len(positions) == fingerprints.SAMPLE
    assert positions[0] == 0
    assert positions[-1] == 10**6 - 1
