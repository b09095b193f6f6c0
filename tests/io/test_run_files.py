import errno
import os

import pytest

from gmlp_flax.errors import RunError, StorageError
from gmlp_flax.io import run_files


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(run_files, "PAUSES", (0.0, 0.0, 0.0))


def test_files(tmp_path):
    path = str(tmp_path / "a" / "b")
    assert run_files.read(path) is None and not run_files.exists(path) and run_files.names(str(tmp_path / "a")) == []
    run_files.write(path, b"one")
    run_files.write(path, b"two")
    assert run_files.read(path) == b"two" and run_files.names(str(tmp_path / "a")) == ["b"]
    assert not run_files.create(path, b"three") and run_files.read(path) == b"two"
    assert not run_files.replace(path, b"four", b"five") and run_files.replace(path, b"two", b"four")
    run_files.remove(path)
    run_files.remove(path)
    assert run_files.create(path, b"three") and run_files.read(path) == b"three"


@pytest.mark.parametrize("name", ["runs/\udcff", "a\nb", "a\0b", "\x7f"])
def test_name_that_no_run_folder_can_have(name):
    """Training would end at its first checkpoint, with TensorStore's words."""
    with pytest.raises(RunError, match=r"^'.*' cannot name a run folder: expected UTF-8 without control characters$"):
        run_files.absolute(name)
    assert run_files.absolute("größer 中\u00a0") == f"{os.getcwd()}/größer 中\u00a0"


@pytest.mark.parametrize(("name", "reason"), [("file", "File exists"), ("file/below", "Not a directory")])
def test_file_in_the_place_of_a_folder(tmp_path, name, reason):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=rf"^writing .*/{name}/figure.png failed \({reason}\): give another folder$"):
        run_files.write(str(tmp_path / name / "figure.png"), b"")


def test_move_never_overwrites(tmp_path):
    for content in (b"1", b"2", b"3"):
        run_files.write(str(tmp_path / "new" / "file"), content)
        run_files.move(str(tmp_path / "new"), str(tmp_path / "aside" / "5"))
    assert run_files.names(str(tmp_path / "aside")) == ["5", "5.1", "5.2"]
    assert [run_files.read(str(tmp_path / "aside" / name / "file")) for name in ("5", "5.1", "5.2")] == [
        b"1",
        b"2",
        b"3",
    ]


def test_what_lies_on_another_device_is_copied_whole_and_once(tmp_path, monkeypatch):
    """As a folder of checkpoints that is mounted: it cannot be renamed, and stays as an empty folder."""
    mounted, rename, failures = str(tmp_path / "mounted"), os.rename, [errno.EIO, errno.EIO]
    run_files.write(f"{mounted}/8/data", b"weights")
    os.symlink("8/data", f"{mounted}/link")

    def across(path, place):
        if path == mounted:
            raise OSError(errno.EXDEV, "")
        if failures:
            raise OSError(failures.pop(), "")
        rename(path, place)

    monkeypatch.setattr(os, "rename", across)
    monkeypatch.setattr(os.path, "ismount", lambda path: path == mounted)
    place = run_files.move(mounted, str(tmp_path / "before-1" / "checkpoints"))
    assert run_files.read(f"{place}/8/data") == b"weights" and os.readlink(f"{place}/link") == "8/data"
    assert os.listdir(mounted) == [] and os.listdir(tmp_path / "before-1") == ["checkpoints"] and not failures


def test_only_empty_folders_are_deleted(tmp_path):
    for name in ("empty", "full"):
        run_files.make_folder(str(tmp_path / name))
    run_files.write(str(tmp_path / "full" / "file"), b"")
    for name in ("empty", "full", "gone"):
        run_files.remove_if_empty(str(tmp_path / name))
    assert os.listdir(tmp_path) == ["full"]


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.EIO, StorageError, "nothing was moved or deleted; run the same command again"),
        (errno.ESTALE, StorageError, "nothing was moved"),
        (errno.EMFILE, StorageError, "nothing was moved"),
        (errno.ETIMEDOUT, StorageError, "nothing was moved"),
        (errno.ENOMEM, StorageError, "nothing was moved"),
        (errno.ENAMETOOLONG, RunError, "give a shorter path"),
        (errno.EACCES, RunError, "check it and its permissions"),
        (errno.EROFS, RunError, "check it and its permissions"),
        (errno.ENOSPC, RunError, "free space"),
        (errno.EDQUOT, RunError, "free space"),
        (errno.EFBIG, RunError, "free space"),
    ],
)
def test_each_error_says_what_helps(number, kind, words):
    """Space is asked for only if space is the cause."""

    def fails():
        raise OSError(number, "x")

    with pytest.raises(RunError) as caught:
        run_files.patiently(fails, "reading there")
    assert type(caught.value) is kind and str(caught.value).startswith(
        f"reading there failed ({os.strerror(number)}): {words}"
    )
    assert ("free space" in str(caught.value)) == (number in run_files.FULL)


def test_error_that_passes():
    tries = []

    def passes():
        tries.append(1)
        if len(tries) < 4:
            raise OSError(errno.EIO, "x")
        return "read"

    assert run_files.patiently(passes, "") == "read" and len(tries) == 4


def test_a_folder_that_another_process_has_removed(tmp_path):
    with pytest.raises(
        StorageError, match="^writing .*/gone/x failed .No such file or directory.: run the same command again"
    ):
        run_files.create(str(tmp_path / "gone" / "x"), b"")
