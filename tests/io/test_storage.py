"""Errors of disks and of stores, the stores' conditions, and what is tried again."""

import errno
import os
import re
import sys
from unittest import mock

import fsspec.core
import pytest

from gmlp_flax.errors import DataError, FileError, RunError, StorageError, install
from gmlp_flax.io import files, locks, storage


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(storage, "PAUSES", (0.0, 0.0, 0.0))


PASSING = (errno.EIO, errno.ESTALE, errno.ENOMEM)
STAYING = (errno.ENAMETOOLONG, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENOENT)


@pytest.mark.parametrize("number", PASSING + STAYING, ids=errno.errorcode.get)
def test_each_error_says_whether_it_may_pass(number):
    error = OSError(number, "x") if number != errno.ENOENT else PermissionError(number, "x")
    with pytest.raises(FileError) as caught:
        storage.retry(mock.Mock(side_effect=error), "reading there")
    assert isinstance(caught.value, StorageError) == (number in PASSING)
    assert str(caught.value).startswith(f"reading there failed ({os.strerror(number)}): ")


def test_error_that_passes():
    passes = mock.Mock(side_effect=[*3 * [OSError(errno.EIO, "x")], "read"])
    assert storage.retry(passes, "") == "read"
    assert passes.call_count == 4


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (PermissionError("AccessDenied"), FileError, "permission denied"),
        (OSError("https://storage.googleapis.com/b/x: 401"), FileError, "renew the credentials"),
        (OSError("ExpiredToken: The provided token has expired"), FileError, "credentials"),
        (ImportError("Please install s3fs"), FileError, install("s3")),
        (TimeoutError("no answer\nfor 30 s"), StorageError, "(TimeoutError: no answer for 30 s)"),
        (OSError("x" * 9999), StorageError, "xxx"),
        # Numbers in names and counts are no codes.
        (OSError("503 for gs://b/ids-00403-of-01024"), StorageError, ""),
        (ConnectionError("received 401 bytes"), StorageError, ""),
    ],
)
def test_errors_of_stores(error, kind, words):
    told = storage.storage_error("reading s3://runs/x", error)
    assert type(told) is kind
    assert len(str(told)) < 500
    assert "\n" not in str(told)
    assert str(told).startswith("reading s3://runs/x failed (")
    assert words in str(told)


def test_gs_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    # Where it stays once it was found.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "gs", raising=False)
    advice = re.escape(install("gcs"))
    with pytest.raises(FileError, match=rf"gs://bucket/c4 failed .*{advice}"):
        files.find_files("gs://bucket/c4")


def test_missing_permission_is_one_line(store):
    store.faults({"kind": "403", "times": 100})
    for act in (files.read, files.exists, files.listdir, lambda path: files.write(path, b"")):
        with pytest.raises(
            RunError, match="gs://test/x failed .permission denied: .*storage.objects.create"
        ) as caught:
            act("gs://test/x")
        assert "\n" not in str(caught.value)
        assert not isinstance(caught.value, StorageError)


def test_bucket_that_does_not_exist(store):
    for act in (files.write, lambda path, content: locks.compare_and_swap(path, None, content)):
        with pytest.raises(
            RunError, match="^writing gs://nobody/x failed: there is no bucket 'nobody'"
        ):
            act("gs://nobody/x", b"x")
    assert files.listdir("gs://nobody/x") == []
    assert not files.exists("gs://nobody/x")


@pytest.mark.parametrize("path", ["gs://", "s3:///"])
def test_a_path_without_a_bucket_is_refused_before_the_store_is_asked(path, monkeypatch):
    monkeypatch.setattr(
        fsspec.core, "url_to_fs", lambda path: pytest.fail("the store would be asked")
    )
    with pytest.raises(
        DataError, match=f"^'{path}' names no bucket: expected {path[:2]}://BUCKET/PATH"
    ):
        files.find_files(path)
