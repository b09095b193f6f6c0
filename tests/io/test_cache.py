"""Caches: files that are built once, copies of remote files, and values in memory."""

import multiprocessing
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import fsspec
import pytest

from gmlp_flax.io import cache as cache_lib
from gmlp_flax.io import files
from gmlp_flax.io.cache import LocalCopy, ResultCache, cached_file, default_folder
from tests.failures import failure, raised


def test_default_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == f"{tmp_path}/gmlp_flax"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == f"{tmp_path}/.cache/gmlp_flax"


def test_files_are_built_once_and_rebuilt_when_damaged(tmp_path):
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
    names_in_cache = sorted(file.name for file in path.parent.iterdir())
    assert names_in_cache == ["a.bin", "a.bin.sha256"]


def test_the_most_recently_used_values_are_kept():
    made = []

    def make(key):
        made.append(key)
        return key * 10

    cache = ResultCache(make, 2)
    results = [cache(key) for key in (1, 2, 1, 3, 1, 2)]
    assert results == [10, 20, 10, 30, 10, 20]
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
    with ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(cache, "slow") for _ in range(4)]
        assert cache("quick") == "quick"
        release.set()
        results = [future.result() for future in slow]
    assert results == ["slow"] * 4
    assert sorted(made) == ["quick", "slow"]


def test_errors_are_not_cached():
    make = mock.Mock(side_effect=[ValueError("first"), "second"])
    cache = ResultCache(make, 2)
    assert "first" in raised(ValueError, cache, 0)
    assert cache(0) == "second"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the copies, with a limit of 1,000 bytes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(cache_lib.GIGABYTES, "1e-6")
    return tmp_path / "gmlp_flax" / "remote"


def remote(name, size=400):
    """A file in fsspec's memory."""
    path = f"memory://copies/{name}"
    repeats = size // len(name)
    with fsspec.open(path, "wb") as file:
        file.write(name.encode() * repeats)
    (found,) = files.find_files(path)
    return found


def content(copy: LocalCopy) -> bytes:
    return Path(copy.path).read_bytes()


def copies(cache) -> list[Path]:
    """The files in the cache that are not hidden."""
    return [path for path in cache.iterdir() if not path.name.startswith(".")]


def names(cache):
    found = []
    for path in copies(cache):
        _, _, name = path.name.partition("-")
        found.append(name)
    return sorted(found)


def test_remote_files_are_copied_once(cache, monkeypatch):
    file = remote("a")
    with LocalCopy(file) as copy:
        assert content(copy) == b"a" * 400
    monkeypatch.setattr(files, "open_file", None)
    with LocalCopy(file) as copy, pickle.loads(pickle.dumps(copy)) as other:
        assert other.path == copy.path
        assert content(other) == b"a" * 400


def test_copies_of_another_user_are_read(cache, monkeypatch):
    """Its time cannot be set, as in a cache that is mounted read-only."""
    file = remote("a")
    denied = mock.Mock(side_effect=PermissionError(1, ""))
    with LocalCopy(file), monkeypatch.context() as patched:
        patched.setattr(os, "utime", denied)
        with LocalCopy(file) as copy:
            assert content(copy) == b"a" * 400


def test_changed_files_are_copied_again(cache):
    before = remote("a")
    after = remote("a", 300)
    with LocalCopy(after) as copy:
        assert os.path.getsize(copy.path) == 300
    assert "400 were expected" in failure(LocalCopy, before)  # that version no longer exists


def test_open_and_newest_copies_are_kept(cache):
    with LocalCopy(remote("a")) as held:
        for name in "bcd":
            LocalCopy(remote(name)).close()
            time.sleep(0.02)
        assert names(cache) == ["a", "d"]
        assert content(held) == b"a" * 400


def test_local_files_are_not_copied(cache, tmp_path):
    LocalCopy(remote("a")).close()
    path = str(tmp_path / "x")
    Path(path).write_bytes(b"x")
    with LocalCopy(path) as copy:
        assert copy.path == path
        assert names(cache) == ["a"]


def test_files_larger_than_the_cache_are_refused(cache):
    message = failure(LocalCopy, remote("a", 1001))
    for words in ("1,001 bytes", "1,000", "GMLP_CACHE_GB"):
        assert words in message


@pytest.mark.parametrize("value", ["0", "nan", "inf", "much"])
def test_invalid_limits_are_refused(cache, monkeypatch, value):
    monkeypatch.setenv(cache_lib.GIGABYTES, value)
    message = failure(cache_lib.limit)
    assert f"GMLP_CACHE_GB is {value!r}: expected a number of gigabytes" in message


def test_incomplete_copies_are_made_again(cache):
    file = remote("a")
    with LocalCopy(file) as copy:
        path = copy.path
    part_path = path + ".part"
    os.rename(path, part_path)
    with open(part_path, "ab") as part:
        part.write(b"more")
    with LocalCopy(file) as copy:
        assert content(copy) == b"a" * 400


def read_eight_files(start, step, began):
    """Reads each file three times, from `start` on in this step."""
    for position in range(24):
        number = (start + step * position) % 8
        (file,) = files.find_files(f"gs://test/copies/{number}")
        with LocalCopy(file) as copy:
            assert content(copy) == str(number).encode() * 200
        began.set()


@pytest.mark.slow
def test_processes_share_the_copies(store, cache):
    """Two processes read eight files, of which five fit into the cache, in different orders. No
    copy is incomplete or missing."""
    for number in range(8):
        files.write(f"gs://test/copies/{number}", str(number).encode() * 200)
    context = multiprocessing.get_context("spawn")
    began = context.Event()
    other = context.Process(target=read_eight_files, args=(3, 3, began))
    other.start()
    assert began.wait(100)
    read_eight_files(0, 1, began)
    other.join(100)
    assert other.exitcode == 0
    size = sum(path.stat().st_size for path in copies(cache))
    assert size <= 1000


def test_many_small_copies_stay_near_the_limit(cache, monkeypatch):
    monkeypatch.setenv(cache_lib.GIGABYTES, "1e-5")
    for number in range(700):
        file = remote(f"{number:03}", 21)
        LocalCopy(file).close()
        if number % 50 == 49:
            size = sum(path.stat().st_size for path in cache.iterdir())
            assert size < 12_000
