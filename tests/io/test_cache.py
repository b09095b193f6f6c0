import errno
import os
import re
import stat

import pytest

from gmlp_flax.errors import DataError
from gmlp_flax.io.cache import cached_file, default_folder, write_atomically


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == f"{tmp_path}/gmlp_flax"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == f"{tmp_path}/.cache/gmlp_flax"


def test_built_once_and_rebuilt_when_damaged(tmp_path):
    built = []

    def build(file):
        built.append(1)
        file.write(b"content")

    path = tmp_path / "deep" / "a.bin"
    for damage in (b"content", b"cOntent", b"conten", b""):
        assert cached_file(path, build).read_bytes() == b"content"
        path.write_bytes(damage)
    assert cached_file(path, build).read_bytes() == b"content"
    assert len(built) == 4
    assert sorted(file.name for file in path.parent.iterdir()) == ["a.bin", "a.bin.sha256"]


def test_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def fail(file):
        file.write(b"half")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot write '.*file/a.bin' .*; give a folder that can be written to"):
        cached_file(tmp_path / "file" / "a.bin", lambda file: None)


def test_a_failure_leaves_no_folder(tmp_path):
    def fail(file):
        raise DataError("no text")

    with pytest.raises(DataError, match="^no text$"):
        write_atomically(tmp_path / "a" / "b" / "c", fail)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free space and run again"),
        (errno.EDQUOT, "free space and run again"),
        (errno.EACCES, "give a folder that can be written to"),
        (errno.EIO, "give a folder that can be written to"),
    ],
)
def test_space_is_named_only_if_it_is_the_cause(tmp_path, number, advice):
    def fail(file):
        raise OSError(number, os.strerror(number))

    with pytest.raises(DataError, match=re.escape(f"({os.strerror(number)}); {advice}")):
        write_atomically(tmp_path / "a", fail)


def test_a_device_or_a_pipe_is_not_replaced(tmp_path):
    """Root could: /dev/full was once a tokenizer."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "link", "folder"):
        with pytest.raises(
            DataError, match=r"^cannot write '.*' \(a folder, a device or a pipe\); give a folder that can be"
        ):
            write_atomically(tmp_path / name, lambda file: file.write(b"x"))
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode) and sorted(os.listdir(tmp_path)) == [
        "folder",
        "link",
        "pipe",
    ]
