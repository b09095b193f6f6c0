import os
import pathlib

import fsspec
import pytest

from gmlp_flax.errors import FileError, StorageError
from gmlp_flax.io import files
from tests.failures import failure


def write(path: str, data: bytes) -> str:
    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        file.write(data)
    return path


def read(path: str) -> bytes:
    with files.open_file(path) as stream:
        return stream.read()


def test_files_are_found_in_the_order_of_names(folder):
    for name in ("b/2.txt", "b/c/1.txt", "a.txt", "b.txt", ".hidden", "b/.git/x.txt"):
        write(files.join(folder, *name.split("/")), name.encode())
    found = files.find_files(folder)
    assert [file.name for file in found] == ["a.txt", "b/2.txt", "b/c/1.txt", "b.txt"]
    assert [file.size for file in found] == [5, 7, 9, 5]
    got = [read(file.path).decode() for file in found]
    assert got == [file.name for file in found]
    got = [file.name for file in files.find_files(found[1].path)]
    assert got == ["2.txt"]
    assert files.subfolders(folder) == ("b",)
    assert files.subfolders(files.join(folder, "nowhere")) == ()
    assert files.exists(folder)
    assert not files.exists(files.join(folder, "nowhere"))


def test_files_of_runs_are_no_data(tmp_path):
    for name in (
        "a/1.png",
        "a/run1/run.json",
        "a/run1/figures/2.png",
        "run/run.json",
        "run2/3.png",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    got = [file.name for file in files.find_files(str(tmp_path))]
    assert got == ["a/1.png", "run2/3.png"]
    _, folders, _ = next(files.walk(str(tmp_path)))
    assert sorted(folders) == ["a", "run2"]
    run = files.find_files(str(tmp_path / "a" / "run1"))
    assert [file.name for file in run] == ["figures/2.png", "run.json"]
    store = fsspec.filesystem("memory")
    for name in ("a/1.png", "a/run1/run.json", "a/run1/figures/2.png"):
        store.pipe(f"/found/{name}", b"")
    assert [file.name for file in files.find_files("memory://found")] == ["a/1.png"]


def test_a_path_from_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/her")
    assert files.user_path("~/runs/t") == "/home/her/runs/t"
    assert files.absolute(pathlib.Path("~/runs")) == "/home/her/runs"
    for path in ("runs/~", "gs://bucket/~x", "~nobody-of-this-name/x"):
        assert files.user_path(path) == path
    for value in (None, 3, b"runs", ["runs"]):
        assert type(value).__name__ in failure(files.user_path, value)


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


def test_range(folder):
    path = write(files.join(folder, "a"), bytes(range(100)))
    if files.is_remote(path):
        assert files.read_range(path, 10, 13) == b"\x0a\x0b\x0c"
    with files.open_file(path) as stream:
        stream.seek(50)
        assert stream.read(2) == b"\x32\x33"


def test_missing(folder):
    path = files.join(folder, "nowhere")
    assert (
        failure(files.find_files, path)
        == f"nothing at {path!r}: expected a file or a folder; check the path"
    )
    assert path in failure(read, path)


def test_unreadable_file(tmp_path):
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone")
    assert "a.txt failed (No such file or directory)" in failure(files.find_files, str(tmp_path))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/dev/zero", "/dev/zero: expected a plain file"),
        ("/", "/: expected a plain file"),
        ("a\0b", "failed (ValueError: "),
        ("\ud800", "failed (UnicodeEncodeError: "),
        ("x" * 5000, "failed (File name too long)"),
        ("nowhere", "reading nowhere failed (No such file or directory)"),
    ],
)
def test_what_is_no_small_file(path, message):
    assert message in failure(files.read_small, path)


def test_a_small_file_has_a_limit(tmp_path):
    """And a pipe without a writer is not waited for."""
    os.mkfifo(tmp_path / "pipe")
    assert "expected a plain file" in failure(files.read_small, tmp_path / "pipe")
    (tmp_path / "a").write_bytes(b"12345")
    assert files.read_small(tmp_path / "a", 5) == b"12345"
    assert "a has more than 4 bytes" in failure(files.read_small, tmp_path / "a", 4)


def test_folders_that_contain_themselves(tmp_path):
    for name in "ab":
        (tmp_path / name).symlink_to(tmp_path)
    assert "more than 30 nested folders" in failure(files.find_files, str(tmp_path))


def test_missing_shards_are_counted(tmp_path):
    for number in (0, 1, 4):
        (tmp_path / f"en.noblocklist-{number:05d}-of-00005.jsonl").touch()
    (tmp_path / "en.noblocklist-00000-of-00001.parquet").touch()  # a set of its own
    for count, missing in ((2, "00002-of-00005"), (1, "00003-of-00005")):
        message = failure(files.check_shards, str(tmp_path), files.find_files(str(tmp_path)))
        assert f"{count} of the 5 shards" in message
        assert missing in message
        (tmp_path / f"en.noblocklist-{missing}.jsonl").touch()
    files.check_shards(str(tmp_path), files.find_files(str(tmp_path)))


@pytest.fixture(params=["local", "memory://test/writing", "gs://test/writing"])
def place(request, tmp_path):
    """An empty folder on a disk, in fsspec's memory, or in a bucket."""
    if request.param == "local":
        return str(tmp_path / "writing")
    if request.param.startswith("gs"):
        request.getfixturevalue("store")
    files.remove_all(request.param)
    files.remove_all(f"{request.param}-moved")
    return request.param


def test_files_are_written_listed_moved_and_deleted(place):
    path = files.join(place, "a", "b")
    assert files.read(path) is None
    assert files.listdir(place) == []
    assert not files.exists(path)
    files.write(path, b"one")
    files.write(path, b"two")
    files.write(files.join(place, "c"), b"")
    assert files.read(path) == b"two"
    assert files.listdir(place) == ["a", "c"]
    assert files.listdir(files.join(place, "a")) == ["b"]
    assert files.exists(path)
    assert files.exists(files.join(place, "a"))
    assert not files.exists(files.join(place, "ab"))
    assert files.move(place, f"{place}-moved") == f"{place}-moved"
    assert files.listdir(place) == []
    assert files.read(files.join(f"{place}-moved", "a", "b")) == b"two"
    assert files.glob(f"{place}-mov*/a") == [f"{place}-moved/a"]
    for _ in range(2):
        files.remove(files.join(f"{place}-moved", "c"))
    assert files.listdir(f"{place}-moved") == ["a"]
    if files.is_remote(place):
        files.remove_all(f"{place}-moved")
        assert not files.exists(f"{place}-moved")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "a.bin"
    files.write(path, b"old")
    with pytest.raises(KeyError), files.atomic_path(path) as temporary:
        temporary.write_bytes(b"half")
        raise KeyError
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["a.bin"]
    with files.atomic_path(path) as temporary:
        temporary.write_bytes(b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["a.bin"]


@pytest.mark.parametrize("act", [files.write, lambda path, content: files.make_folder(path)])
def test_file_in_the_place_of_a_folder(tmp_path, act):
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"file/a/b failed \(Not a directory\): ") as caught:
        act(str(tmp_path / "file" / "a" / "b"), b"")
    assert not isinstance(caught.value, StorageError)


def test_move_never_overwrites(tmp_path):
    for content in (b"1", b"2", b"3"):
        files.write(tmp_path / "new" / "file", content)
        files.move(str(tmp_path / "new"), str(tmp_path / "aside" / "5"))
    assert files.listdir(str(tmp_path / "aside")) == ["5", "5.1", "5.2"]
    assert [(tmp_path / "aside" / name / "file").read_bytes() for name in ("5", "5.1", "5.2")] == [
        b"1",
        b"2",
        b"3",
    ]


def test_what_is_staged_is_moved_to_the_bucket():
    staged = files.StagingFolder("memory://test/staged")
    files.write(os.path.join(staged.path, "a", "b"), b"trace")
    staged.close()
    assert files.read("memory://test/staged/a/b") == b"trace"
    assert not os.path.exists(staged.path)
