import hashlib
import os
import shutil

import pytest

from gmlp_flax.data import fingerprints
from gmlp_flax.io import files


def folder(path, **contents):
    path.mkdir()
    for name, content in contents.items():
        (path / name).write_bytes(content)
    return path


def of(path):
    return fingerprints.of_files(files.find_files(str(path)))


def test_counts_names_and_content(tmp_path):
    found = of(folder(tmp_path / "a", x=b"12", y=b"345"))
    names = hashlib.sha256(
        b"".join(len(name).to_bytes(8, "little") + name for name in (b"x", b"y"))
    ).hexdigest()
    assert (found["files"], found["bytes"], found["names"]) == (2, 5, names[:16])


def test_other_places_and_times_change_nothing(tmp_path):
    here = folder(tmp_path / "a", x=b"12", y=b"345", empty=b"")
    there = shutil.copytree(here, tmp_path / "b")
    os.utime(there / "x", (1, 1))
    assert of(here) == of(there)


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
    path = folder(tmp_path / "a", x=b"12", y=b"345")
    before = of(path)
    change(path)
    after = of(path)
    assert {name for name in after if after[name] != before[name]} == differs


def test_both_ends_of_large_files_are_read_and_no_more(tmp_path, monkeypatch):
    path = folder(tmp_path / "a", x=bytes(1 << 20), **{f"y{i}": b"1" for i in range(300)})
    before, read, sizes = of(path), files.read_range, []

    def counting(*arguments):
        sizes.append(len(content := read(*arguments)))
        return content

    monkeypatch.setattr(files, "read_range", counting)
    (path / "x").write_bytes(bytes((1 << 20) - 1) + b"1")
    assert of(path)["content"] != before["content"]
    assert sum(sizes) < 200_000 and len(sizes) <= fingerprints.SAMPLE + 1


def test_positions_are_spread():
    assert fingerprints.spread(3) == [0, 1, 2] and fingerprints.spread(0) == []
    assert fingerprints.spread(10**6)[::63] == [0, 10**6 - 1]
