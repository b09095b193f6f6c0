import bz2
import gzip
import lzma
import os
import sys

import fsspec
import pyarrow as pa
import pytest

from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from tests.data import writers
from tests.failures import failure

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


@pytest.fixture(params=["local", "remote"])
def folder(request, tmp_path):
    """The path of an empty folder, local or in fsspec's memory."""
    if request.param == "local":
        return str(tmp_path)
    return writers.remote(tmp_path)


def write(path: str, data: bytes) -> str:
    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        file.write(data)
    return path


def read(path: str) -> bytes:
    with files.opened(path) as stream:
        return stream.read()


def test_files_are_found_in_the_order_of_names(folder):
    for name in ("b/2.txt", "b/c/1.txt", "a.txt", "b.txt", ".hidden", "b/.git/x.txt"):
        write(files.join(folder, *name.split("/")), name.encode())
    found = files.find_files(folder)
    assert [file.name for file in found] == ["a.txt", "b/2.txt", "b/c/1.txt", "b.txt"]
    assert [file.size for file in found] == [5, 7, 9, 5]
    assert [read(file.path).decode() for file in found] == [file.name for file in found]
    assert [file.name for file in files.find_files(found[1].path)] == ["2.txt"]
    assert files.subfolders(folder) == ("b",)
    assert files.subfolders(files.join(folder, "nowhere")) == ()
    assert files.exists(folder) and not files.exists(files.join(folder, "nowhere"))


def test_version_changes_with_the_file(folder):
    path = write(files.join(folder, "a.txt"), b"one")
    (before,) = files.find_files(path)
    assert files.find_files(path) == (before,)
    write(path, b"two")
    if not files.is_remote(path):
        os.utime(path, (1, 1))
    (after,) = files.find_files(path)
    assert after.version != before.version
    assert after.size == before.size


@pytest.mark.parametrize("suffix", COMPRESS)
def test_unpacking(folder, suffix):
    data = os.urandom(1000) * 2500
    path = write(files.join(folder, "a.jsonl" + suffix), COMPRESS[suffix](data))
    assert files.packing(path) == suffix
    assert read(path) == data
    with files.opened(path, unpack=False) as stream:
        assert stream.read() == stored(path)
    with files.local_copy(path) as copy:
        assert os.path.getsize(copy) == len(stored(path))
    assert os.path.exists(copy) == (not files.is_remote(path))


def stored(path: str) -> bytes:
    with fsspec.open(path, "rb") as file:
        return file.read()


@pytest.mark.parametrize("suffix", files.PACKINGS)
def test_damaged_archives(folder, suffix):
    path = files.join(folder, "a.txt" + suffix)
    whole = COMPRESS[suffix](os.urandom(100_000))
    flipped = bytearray(whole)
    flipped[50_000] ^= 1
    cases = [whole[:-20], whole[: len(whole) // 2], b"plain text", b"", bytes(flipped)]
    if suffix == ".zst":  # pyarrow's have no checksum, other than those of the command zstd
        cases.pop()
    for data in cases:
        message = failure(read, write(path, data))
        assert message.startswith(f"{path}: truncated or not a {suffix} archive (")
        assert message.endswith("copy or download it again")


@pytest.mark.parametrize("suffix", files.PACKINGS)
def test_several_streams_in_one_file(folder, suffix):
    """As pbzip2 and Wikipedia's dumps have them. What follows the first is read, or told to be damaged."""
    one, two = COMPRESS[suffix](b"one" * 1000), COMPRESS[suffix](b"two" * 1000)
    padding = b"" if suffix == ".zst" else bytes(8)
    path = write(files.join(folder, "a.txt" + suffix), one + padding + two + padding)
    assert read(path) == b"one" * 1000 + b"two" * 1000
    for data in (one + b"X" + two[1:], one + two[:5]):
        assert failure(read, write(path, data)).startswith(f"{path}: truncated or not a {suffix} archive (")


def test_range(folder):
    path = write(files.join(folder, "a"), bytes(range(100)))
    if files.is_remote(path):
        assert files.read_range(path, 10, 13) == b"\x0a\x0b\x0c"
    with files.opened(path) as stream:
        stream.seek(50)
        assert stream.read(2) == b"\x32\x33"


def test_missing(folder):
    path = files.join(folder, "nowhere")
    assert failure(files.find_files, path) == f"nothing at {path!r}: expected a file or a folder; check the path"
    assert path in failure(read, path)


def test_unreadable_file(tmp_path):
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone")
    assert "a.txt: cannot be read (No such file or directory)" in failure(files.find_files, str(tmp_path))


def test_gs_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.delitem(
        sys.modules["fsspec.registry"]._registry, "gs", raising=False
    )  # where it stays once it was found
    message = failure(files.find_files, "gs://bucket/c4")
    why = "import of gcsfs halted; None in sys.modules"
    assert (
        message == f"gs://bucket/c4: gs:// needs gcsfs, which cannot be imported ({why}); pip install 'gmlp_flax[gcs]'"
    )


def test_unknown_scheme():
    assert "nosuch://c4: cannot be reached (ValueError: Protocol not known: nosuch" in failure(
        files.find_files, "nosuch://c4"
    )


def test_store_errors_name_the_path(monkeypatch):
    class Refused(Exception):
        pass

    def refuse(*args, **kwargs):
        raise Refused("no\ncredentials")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", refuse)
    message = failure(files.find_files, "memory://corpus/a")
    assert message.startswith("memory://corpus/a: cannot be reached (Refused: no credentials); check")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/dev/zero", "/dev/zero: a device or a pipe; expected a plain file"),
        ("/", "/: a folder; expected a plain file"),
        ("a\0b", "'a\\x00b' is no name of a file"),
        ("\ud800", "'\\ud800' is no name of a file"),
        ("x" * 5000, "cannot be read (File name too long)"),
        ("nowhere", "nowhere: cannot be read (No such file or directory)"),
    ],
)
def test_what_is_no_small_file(path, message):
    assert message in failure(files.read_small, path)


def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "a device or a pipe" in failure(files.read_small, tmp_path / "pipe")


def test_a_pipe_among_the_files_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    os.mkfifo(tmp_path / "b.txt")
    with pytest.raises(DataError, match="/b.txt: is a pipe or a device, not a file; move it away"):
        files.find_files(str(tmp_path))


def test_a_small_file_has_a_limit(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert files.read_small(tmp_path / "a", 5) == b"12345"
    assert "a: more than 4 bytes, which no such file has" in failure(files.read_small, tmp_path / "a", 4)


def test_folders_that_contain_themselves(tmp_path):
    for name in "ab":
        (tmp_path / name).symlink_to(tmp_path)
    assert "more than 30 folders in each other; remove a link" in failure(files.find_files, str(tmp_path))
