import time

import fsspec.core
import pytest

from gmlp_flax.errors import RunError, StorageError
from gmlp_flax.io import buckets


@pytest.fixture(params=["gs://test/buckets", "memory://test/buckets"])
def folder(request):
    """A folder of a bucket, or of fsspec's memory; empty."""
    if request.param.startswith("gs"):
        request.getfixturevalue("store")
    buckets.remove_all(request.param)
    return request.param


def test_files(folder):
    path = f"{folder}/a/b"
    with pytest.raises(FileNotFoundError):
        buckets.read(path)
    assert not buckets.exists(path) and buckets.names(folder) == []
    buckets.write(path, b"one")
    buckets.write(path, b"two")
    buckets.write(f"{folder}/c", b"")
    assert (
        buckets.read(path) == b"two" and buckets.names(folder) == ["a", "c"] and buckets.names(f"{folder}/a") == ["b"]
    )
    assert buckets.exists(path) and buckets.exists(f"{folder}/a") and not buckets.exists(f"{folder}/ab")
    assert -5 < buckets.age(path) < 60
    buckets.move(folder, f"{folder}-moved")
    assert buckets.names(folder) == [] and buckets.read(f"{folder}-moved/a/b") == b"two"
    assert buckets.matching(f"{folder}-mov*/a") == [f"{folder}-moved/a"]
    buckets.remove(f"{folder}-moved/c")
    assert buckets.names(f"{folder}-moved") == ["a"]
    buckets.remove_all(f"{folder}-moved")
    assert not buckets.exists(f"{folder}-moved")


def test_only_one_creates_and_only_the_last_content_is_replaced(folder):
    path = f"{folder}/lease"
    assert not buckets.replace(path, b"", b"x") and not buckets.exists(path)
    assert buckets.create(path, b"mine") and not buckets.create(path, b"yours")
    assert buckets.read(path) == b"mine"
    assert not buckets.replace(path, b"yours", b"theirs") and buckets.replace(path, b"mine", b"ours")
    assert buckets.read(path) == b"ours"


def test_write_in_between_is_noticed(store, monkeypatch):
    """Somebody writes after the content was compared, and before it is replaced."""
    path, put = "gs://test/between", buckets._put_if_unchanged
    buckets.write(path, b"old")

    def late(*arguments):
        buckets.write(path, b"another's")
        put(*arguments)

    monkeypatch.setattr(buckets, "_put_if_unchanged", late)
    assert not buckets.replace(path, b"old", b"new") and buckets.read(path) == b"another's"


@pytest.mark.parametrize("kind", ["503", "drop", "lost"])
def test_what_passes_is_tried_again(store, kind):
    """If the answer to a first attempt is lost, the second one meets what the first has written."""
    path = f"gs://test/again-{kind}"
    for act in (lambda: buckets.create(path, b"1"), lambda: buckets.replace(path, b"1", b"2")):
        store.faults({"kind": kind, "method": "POST"})
        assert act() and store.met() == {kind: 1}
    assert buckets.read(path) == b"2"


@pytest.mark.parametrize(
    ("kind", "times", "seconds", "words"),
    [
        ("401", 1000, 2, "does not accept the credentials"),
        ("503", 1000, 4, r"cannot be reached \(HttpError: Backend Error, 503\)"),
        ("drop", 1000, 4, "cannot be reached .ServerDisconnectedError"),
        ("503", 2, 4, ""),
        ("401", 1, 2, ""),
    ],
)
def test_a_first_request_is_given_up_soon(store, monkeypatch, kind, times, seconds, words):
    monkeypatch.setattr(buckets, "START", 2.0)
    buckets._greet.cache_clear()
    store.faults({"kind": kind, "times": times})
    began = time.monotonic()
    if words:
        with pytest.raises(RunError, match=f"^gs://test/x: .*{words}"):
            buckets.exists("gs://test/x")
    else:
        assert not buckets.exists("gs://test/x") and store.met() == {kind: times}
    assert time.monotonic() - began < seconds
    store.faults()
    assert not buckets.exists("gs://test/x")
    monkeypatch.setattr(buckets, "START", 0.0)
    assert buckets.read_joined("gs://test/x") == b"", "a bucket is greeted once"


def test_the_search_for_credentials_is_part_of_the_wait(store, monkeypatch):
    """Without any, gcsfs looks for them for a quarter of a minute."""
    found = fsspec.core.url_to_fs

    def slow(path):
        time.sleep(2)
        return found(path)

    monkeypatch.setattr(buckets, "START", 2.0)
    monkeypatch.setattr(fsspec.core, "url_to_fs", slow)
    buckets._greet.cache_clear()
    store.faults({"kind": "503", "times": 1000})
    with pytest.raises(StorageError, match="^gs://test/x: cannot be reached"):
        buckets.exists("gs://test/x")
    assert store.met() == {"503": 1}, "asked again"
    store.faults()
    buckets._greet.cache_clear()


@pytest.mark.parametrize(
    ("kind", "words"), [("403", "permission denied .*storage.objects.create access.*right to read and write")]
)
def test_what_does_not_pass_is_one_line(store, kind, words):
    store.faults({"kind": kind, "times": 100})
    for act in (buckets.read, buckets.exists, buckets.names, lambda path: buckets.write(path, b"")):
        began = time.monotonic()
        with pytest.raises(RunError, match=f"^gs://test/x: {words}") as caught:
            act("gs://test/x")
        assert "\n" not in str(caught.value) and time.monotonic() - began < 5
        assert not isinstance(caught.value, StorageError)


def test_bucket_that_does_not_exist(store):
    for act in (buckets.write, buckets.create):
        with pytest.raises(RunError, match="^gs://nobody/x: there is no bucket 'nobody'; make it, or check the name$"):
            act("gs://nobody/x", b"")
    assert buckets.names("gs://nobody/x") == [] and not buckets.exists("gs://nobody/x")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (PermissionError("AccessDenied"), RunError, "permission denied"),
        (RuntimeError("RefreshError: reauthentication is needed"), RunError, "does not accept the credentials"),
        (TimeoutError("no answer\nfor 30 s"), StorageError, r"cannot be reached \(TimeoutError: no answer for 30 s\)"),
        (
            ImportError("Please install s3fs"),
            RunError,
            r"^s3://runs/x: s3:// needs s3fs, which cannot be imported \(Please install s3fs\); pip install 'gmlp_flax\[s3\]'$",
        ),
        (OSError("x" * 9999), StorageError, "cannot be reached"),
    ],
)
def test_explained(error, kind, words):
    found = buckets.explained("s3://runs/x", error)
    assert type(found) is kind and len(str(found)) < 500 and "\n" not in str(found)
    with pytest.raises(kind, match=words):
        raise found


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("writing gs://b/run/checkpoints%2F140100/d: no answer"),
        OSError("503 for gs://b/ids-00403-of-01024"),
        ConnectionError("received 24030 of 140401 bytes"),
        ConnectionError("received 401 bytes"),
    ],
)
def test_numbers_in_names_and_counts_are_no_codes(error):
    """These pass, and so may be tried again."""
    assert isinstance(buckets.explained("gs://b/x", error), StorageError)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("Forbidden, 403"), "permission denied"),
        (OSError("https://storage.googleapis.com/b/x: 401"), "does not accept the credentials"),
        (OSError("ExpiredToken: The provided token has expired"), "does not accept the credentials"),
    ],
)
def test_codes_are_found_beside_names(error, words):
    found = buckets.explained("gs://b/x", error)
    assert words in str(found) and not isinstance(found, StorageError)
