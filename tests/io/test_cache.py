"""Files that are built once, copies of remote files, and values in memory."""

import multiprocessing
import os
import pickle
import threading
import time
from pathlib import Path
from unittest import mock

import fsspec
import pytest

from gmlp_flax.io import cache as cache_lib
from gmlp_flax.io import files
from gmlp_flax.io.cache import LocalCopy, ResultCache, cached_file, default_folder
from tests.failures import failure, raised


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == f"{tmp_path}/gmlp_flax"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == f"{tmp_path}/.cache/gmlp_flax"


def test_built_once_and_rebuilt_when_damaged(tmp_path):
    built = []

    def build():
        built.append(1)
        return b"content"

    path = tmp_path / "deep" / "a.bin"
    for damage in (b"content", b"cOntent", b"conten", b""):
        assert cached_file(path, build).read_bytes() == b"content"
        path.write_bytes(damage)
    assert cached_file(path, build).read_bytes() == b"content"
    assert len(built) == 4
    got = sorted(file.name for file in path.parent.iterdir())
    assert got == ["a.bin", "a.bin.sha256"]


def test_keeps_the_last_asked_for():
    made = []
    cache = ResultCache(lambda key: made.append(key) or key * 10, 2)
    got = [cache(key) for key in (1, 2, 1, 3, 1, 2)]
    assert got == [10, 20, 10, 30, 10, 20]
    assert made == [1, 2, 3, 2]


def test_threads_share_one_call_and_do_not_wait_for_other_keys():
    made = []
    release = threading.Event()

    def make(key):
        made.append(key)
        if key == "slow":
            assert release.wait(10)
        return key

    cache = ResultCache(make, 2)
    found = []
    threads = [threading.Thread(target=lambda: found.append(cache("slow"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert cache("quick") == "quick"
    release.set()
    for thread in threads:
        thread.join()
    assert found == ["slow"] * 4
    assert sorted(made) == ["quick", "slow"]


def test_an_error_is_not_kept():
    cache = ResultCache(mock.Mock(side_effect=[ValueError("first"), "second"]), 2)
    assert "first" in raised(ValueError, cache, 0)
    assert cache(0) == "second"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the copies, which may have 1,000 bytes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(cache_lib.GIGABYTES, "1e-6")
    return tmp_path / "gmlp_flax" / "remote"


def remote(name, size=400):
    """A file in fsspec's memory."""
    with fsspec.open(f"memory://copies/{name}", "wb") as file:
        file.write(name.encode() * (size // len(name)))
    return files.find_files(f"memory://copies/{name}")[0]


def names(cache):
    return sorted(
        path.name.partition("-")[2] for path in cache.iterdir() if not path.name.startswith(".")
    )


def test_a_file_is_copied_once(cache, monkeypatch):
    file = remote("a")
    with LocalCopy(file) as copy:
        assert Path(copy.path).read_bytes() == b"a" * 400
    monkeypatch.setattr(files, "open_file", None)
    with LocalCopy(file) as copy, pickle.loads(pickle.dumps(copy)) as other:
        assert other.path == copy.path
        assert Path(other.path).read_bytes() == b"a" * 400


def test_a_copy_of_another_user_is_read(cache, monkeypatch):
    """Its time cannot be set, as on a cache that is mounted for reading."""
    file = remote("a")
    with LocalCopy(file), monkeypatch.context() as patched:
        patched.setattr(os, "utime", mock.Mock(side_effect=PermissionError(1, "")))
        with LocalCopy(file) as copy:
            assert Path(copy.path).read_bytes() == b"a" * 400


def test_a_changed_file_is_another_copy(cache):
    before = remote("a")
    after = remote("a", 300)
    with LocalCopy(after) as copy:
        assert os.path.getsize(copy.path) == 300
    assert "400 were expected" in failure(LocalCopy, before)  # it is gone


def test_what_is_held_stays_and_of_the_rest_the_youngest(cache, tmp_path):
    a, b, c, d = (remote(name) for name in "abcd")
    with LocalCopy(a) as held:
        for file in (b, c, d):
            LocalCopy(file).close()
            time.sleep(0.02)
        assert names(cache) == ["a", "d"]
        assert Path(held.path).read_bytes() == b"a" * 400
    (tmp_path / "x").write_bytes(b"x")
    with LocalCopy(str(tmp_path / "x")) as copy:  # local files are not copied
        assert copy.path == str(tmp_path / "x")
        assert names(cache) == ["a", "d"]


def test_file_that_has_no_room(cache):
    message = failure(LocalCopy, remote("a", 1001))
    for words in ("1,001 bytes", "1,000", "GMLP_CACHE_GB"):
        assert words in message


@pytest.mark.parametrize("given", ["0", "nan", "inf", "much"])
def test_limit_that_makes_no_sense(cache, monkeypatch, given):
    monkeypatch.setenv(cache_lib.GIGABYTES, given)
    assert f"GMLP_CACHE_GB is {given!r}: expected a number of gigabytes" in failure(cache_lib.limit)


def test_half_a_copy_is_made_again(cache):
    file = remote("a")
    with LocalCopy(file) as copy:
        path = copy.path
    os.rename(path, path + ".part")
    with open(path + ".part", "ab") as part:
        part.write(b"more")
    with LocalCopy(file) as copy:
        assert Path(copy.path).read_bytes() == b"a" * 400


def _read(start, step, began):
    for place in range(24):
        number = (start + step * place) % 8
        with (
            LocalCopy(files.find_files(f"gs://test/copies/{number}")[0]) as copy,
            open(copy.path, "rb") as file,
        ):
            assert file.read() == str(number).encode() * 200
        began.set()


def test_several_processes_share_the_copies(store, cache):
    """This one and another read eight files of which five have room, in other orders; none is half
    there or gone."""
    for number in range(8):
        files.write(f"gs://test/copies/{number}", str(number).encode() * 200)
    context = multiprocessing.get_context("spawn")
    began = context.Event()
    other = context.Process(target=_read, args=(3, 3, began))
    other.start()
    assert began.wait(100)
    _read(0, 1, began)
    other.join(100)
    assert other.exitcode == 0
    assert (
        sum(path.stat().st_size for path in cache.iterdir() if not path.name.startswith("."))
        <= 1000
    )


def test_of_many_small_copies_few_have_the_folder_listed(cache, monkeypatch):
    monkeypatch.setenv(cache_lib.GIGABYTES, "1e-5")
    for number in range(700):
        LocalCopy(remote(f"{number:03}", 21)).close()
        if number % 50 == 49:
            assert sum(path.stat().st_size for path in cache.iterdir()) < 12_000
