import multiprocessing
import os
import pickle
import time
from pathlib import Path

import fsspec
import pytest

from gmlp_flax.io import files, local_cache
from gmlp_flax.io.local_cache import Copy
from tests.failures import failure


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the copies, which may have 1,000 bytes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(local_cache.GIGABYTES, "1e-6")
    return tmp_path / "gmlp_flax" / "remote"


def remote(name, size=400):
    """A file in fsspec's memory."""
    with fsspec.open(f"memory://copies/{name}", "wb") as file:
        file.write(name.encode() * (size // len(name)))
    return files.find_files(f"memory://copies/{name}")[0]


def names(cache):
    return sorted(path.name.partition("-")[2] for path in cache.iterdir() if not path.name.startswith("."))


def test_a_file_is_copied_once(cache, monkeypatch):
    file = remote("a")
    with Copy(file) as copy:
        assert Path(copy.path).read_bytes() == b"a" * 400
    monkeypatch.setattr(files, "opened", None)
    with Copy(file) as copy, pickle.loads(pickle.dumps(copy)) as other:
        assert other.path == copy.path and Path(other.path).read_bytes() == b"a" * 400


def test_a_copy_of_another_user_is_read(cache, monkeypatch):
    """Its time cannot be set, as on a cache that is mounted for reading."""

    def refuse(_):
        raise PermissionError(1, "")

    file = remote("a")
    with Copy(file), monkeypatch.context() as patched:
        patched.setattr(os, "utime", refuse)
        with Copy(file) as copy:
            assert copy.read() == b"a" * 400


def test_a_changed_file_is_another_copy(cache):
    before, after = remote("a"), remote("a", 300)
    with Copy(after) as copy:
        assert os.path.getsize(copy.path) == 300
    assert "400 were expected" in failure(Copy, before)  # it is gone


def test_local_files_are_not_copied(cache, tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    with local_cache.of(str(tmp_path / "x")) as copy:
        assert copy.path == str(tmp_path / "x")
    assert not cache.exists()


def test_those_used_longest_ago_make_room(cache):
    a, b, c = (remote(name) for name in "abc")
    for file in (a, b, a, c):
        Copy(file).close()
        time.sleep(0.02)
    assert names(cache) == ["a", "c"]


def test_what_is_held_stays(cache):
    a, b, c, d = (remote(name) for name in "abcd")
    with Copy(a) as held:
        for file in (b, c, d):
            Copy(file).close()
            time.sleep(0.02)
        assert names(cache) == ["a", "d"] and Path(held.path).read_bytes() == b"a" * 400


def test_file_that_has_no_room(cache):
    message = failure(Copy, remote("a", 1001))
    assert "has 1,001 bytes and copies may have 1,000 in all: set GMLP_CACHE_GB to more gigabytes" in message


@pytest.mark.parametrize("given", ["", "0", "-1", "nan", "inf", "much"])
def test_limit_that_makes_no_sense(cache, monkeypatch, given):
    monkeypatch.setenv(local_cache.GIGABYTES, given)
    assert f"GMLP_CACHE_GB is {given!r}: expected a number of gigabytes" in failure(local_cache.limit)


def test_half_a_copy_is_made_again(cache):
    file = remote("a")
    with Copy(file) as copy:
        path = copy.path
    os.rename(path, path + ".part")
    with open(path + ".part", "ab") as part:
        part.write(b"more")
    with Copy(file) as copy:
        assert Path(copy.path).read_bytes() == b"a" * 400


def _read(folder, numbers, found):
    os.environ |= {"XDG_CACHE_HOME": str(folder), local_cache.GIGABYTES: "1e-6"}
    for number in numbers:
        with Copy(files.find_files(f"gs://test/copies/{number}")[0]) as copy, open(copy.path, "rb") as file:
            if file.read() != str(number).encode() * 200:
                found.put(number)
    found.put("done")


def test_several_processes_share_the_copies(store, cache, tmp_path):
    """Three processes read eight files of which five have room, in other orders; none is ever half there or gone."""
    for number in range(8):
        with fsspec.open(f"gs://test/copies/{number}", "wb") as file:
            file.write(str(number).encode() * 200)
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    orders = [[(start + step * place) % 8 for place in range(24)] for start, step in ((0, 1), (3, 3), (7, 5))]
    processes = [context.Process(target=_read, args=(tmp_path, order, found)) for order in orders]
    for process in processes:
        process.start()
    assert [found.get(timeout=200) for _ in processes] == ["done"] * 3
    for process in processes:
        process.join(10)
    assert sum(path.stat().st_size for path in cache.iterdir() if not path.name.startswith(".")) <= 1000


def test_the_folder_is_listed_when_it_is_full_and_not_for_each_copy(cache, monkeypatch):
    """Of many small copies a tenth is deleted at once, the oldest."""
    listed, whole = [], local_cache._delete_oldest
    monkeypatch.setattr(local_cache, "_delete_oldest", lambda *given: listed.append(1) or whole(*given))
    for number in range(60):
        file = remote(f"{number:02}", 40)
        Copy(file).close()
        os.utime(next(cache.glob(f"*-{number:02}")), (number, number))
        assert sum(path.stat().st_size for path in cache.iterdir() if path.name != ".lock") <= 1000
    assert len(listed) <= 1 + (60 - 25) // 2 + 1 and names(cache)[-1] == "59"
