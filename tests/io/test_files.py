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


def names_of(found) -> list[str]:
    return [file.name for file in found]


@pytest.fixture
def filled_folder(folder):
    """A folder of files, each with its name as content."""
    for name in ("b/2.txt", "b/c/1.txt", "a.txt", "b.txt", ".hidden", "b/.git/x.txt"):
        path = files.join(folder, *name.split("/"))
        write(path, name.encode())
    return folder


def test_files_are_found_in_the_order_of_names(filled_folder):
    found = files.find_files(filled_folder)
    assert names_of(found) == ["a.txt", "b/2.txt", "b/c/1.txt", "b.txt"]
    for file in found:
        content = read(file.path)
        assert content == file.name.encode()
        assert file.size == len(content)


def test_a_single_file_is_found_by_its_path(filled_folder):
    path = files.join(filled_folder, "b", "2.txt")
    assert names_of(files.find_files(path)) == ["2.txt"]


def test_subfolders_are_visible_folders(filled_folder):
    nowhere = files.join(filled_folder, "nowhere")
    assert files.subfolders(filled_folder) == ("b",)
    assert files.subfolders(nowhere) == ()
    assert files.exists(filled_folder)
    assert not files.exists(nowhere)


def test_run_folders_inside_a_folder_are_skipped(tmp_path):
    names = ("a/1.png", "a/run1/run.json", "a/run1/figures/2.png", "run/run.json", "run2/3.png")
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = files.find_files(str(tmp_path))
    assert names_of(found) == ["a/1.png", "run2/3.png"]
    _, folders, _ = next(files.walk(str(tmp_path)))
    assert sorted(folders) == ["a", "run2"]
    in_run = files.find_files(str(tmp_path / "a" / "run1"))
    assert names_of(in_run) == ["figures/2.png", "run.json"]


def test_remote_run_folders_are_skipped():
    memory = fsspec.filesystem("memory")
    for name in ("a/1.png", "a/run1/run.json", "a/run1/figures/2.png"):
        memory.pipe(f"/found/{name}", b"")
    found = files.find_files("memory://found")
    assert names_of(found) == ["a/1.png"]


def test_home_folders_are_expanded(monkeypatch):
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


def test_ranges_of_files_are_read(folder):
    path = write(files.join(folder, "a"), bytes(range(100)))
    if files.is_remote(path):
        assert files.read_range(path, 10, 13) == b"\x0a\x0b\x0c"
    with files.open_file(path) as stream:
        stream.seek(50)
        assert stream.read(2) == b"\x32\x33"


def test_missing_paths_are_refused(folder):
    path = files.join(folder, "nowhere")
    message = failure(files.find_files, path)
    assert message == f"nothing at {path!r}: expected a file or a folder; check the path"
    assert path in failure(read, path)


def test_broken_links_are_named(tmp_path):
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone")
    message = failure(files.find_files, str(tmp_path))
    assert "a.txt failed (No such file or directory)" in message


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
def test_paths_that_are_not_small_files_are_refused(path, message):
    assert message in failure(files.read_small, path)


def test_pipes_are_not_small_files(tmp_path):
    """Reading a pipe without a writer would block."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert "expected a plain file" in failure(files.read_small, path)


def test_small_files_have_a_limit(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert files.read_small(path, 5) == b"12345"
    assert "a has more than 4 bytes" in failure(files.read_small, path, 4)


def test_folders_that_contain_themselves_are_refused(tmp_path):
    for name in "ab":
        (tmp_path / name).symlink_to(tmp_path)
    assert "more than 30 nested folders" in failure(files.find_files, str(tmp_path))


def test_missing_shards_are_counted(tmp_path):
    folder = str(tmp_path)
    for number in (0, 1, 4):
        (tmp_path / f"en.noblocklist-{number:05d}-of-00005.jsonl").touch()
    (tmp_path / "en.noblocklist-00000-of-00001.parquet").touch()  # another set of shards
    for count, missing in ((2, "00002-of-00005"), (1, "00003-of-00005")):
        message = failure(files.check_shards, folder, files.find_files(folder))
        assert f"{count} of the 5 shards" in message
        assert missing in message
        (tmp_path / f"en.noblocklist-{missing}.jsonl").touch()
    files.check_shards(folder, files.find_files(folder))


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


def test_files_are_written_and_listed(place):
    folder = files.join(place, "a")
    path = files.join(folder, "b")
    assert files.read(path) is None
    assert files.listdir(place) == []
    assert not files.exists(path)
    files.write(path, b"one")
    files.write(path, b"two")
    files.write(files.join(place, "c"), b"")
    assert files.read(path) == b"two"
    assert files.listdir(place) == ["a", "c"]
    assert files.listdir(folder) == ["b"]
    assert files.exists(path)
    assert files.exists(folder)
    assert not files.exists(files.join(place, "ab"))


def test_files_are_moved_and_deleted(place):
    files.write(files.join(place, "a", "b"), b"two")
    files.write(files.join(place, "c"), b"")
    moved = f"{place}-moved"
    assert files.move(place, moved) == moved
    assert files.listdir(place) == []
    assert files.read(files.join(moved, "a", "b")) == b"two"
    assert files.glob(f"{place}-mov*/a") == [f"{moved}/a"]
    for _ in range(2):  # deleting a missing file is no error
        files.remove(files.join(moved, "c"))
    assert files.listdir(moved) == ["a"]
    if files.is_remote(place):
        files.remove_all(moved)
        assert not files.exists(moved)


def test_atomic_path_writes_all_or_nothing(tmp_path):
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


def write_file(path):
    files.write(path, b"")


@pytest.mark.parametrize("act", [write_file, files.make_folder])
def test_files_in_place_of_a_folder_are_permanent_errors(tmp_path, act):
    (tmp_path / "file").touch()
    path = str(tmp_path / "file" / "a" / "b")
    with pytest.raises(FileError, match=r"file/a/b failed \(Not a directory\): ") as caught:
        act(path)
    assert not isinstance(caught.value, StorageError)


def test_move_never_overwrites(tmp_path):
    new = tmp_path / "new"
    aside = tmp_path / "aside"
    for content in (b"1", b"2", b"3"):
        files.write(new / "file", content)
        files.move(str(new), str(aside / "5"))
    assert files.listdir(str(aside)) == ["5", "5.1", "5.2"]
    for name, content in (("5", b"1"), ("5.1", b"2"), ("5.2", b"3")):
        moved = aside / name / "file"
        assert moved.read_bytes() == content


def test_staged_files_are_moved_to_the_bucket():
    staged = files.StagingFolder("memory://test/staged")
    files.write(os.path.join(staged.path, "a", "b"), b"trace")
    staged.close()
    assert files.read("memory://test/staged/a/b") == b"trace"
    assert not os.path.exists(staged.path)
