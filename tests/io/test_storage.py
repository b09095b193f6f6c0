"""Errors of disks and object stores, and which of them are retried."""

import errno
import os
import re
import sys
from unittest import mock

import fsspec.core
import pytest

from gmlp_flax.errors import DataError, FileError, RunError, StorageError, install
from gmlp_flax.io import files, locks, storage
from tests.failures import raised


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(storage, "PAUSES", (0.0, 0.0, 0.0))


TRANSIENT = (errno.EIO, errno.ESTALE, errno.ENOMEM)
PERMANENT = (errno.ENAMETOOLONG, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENOENT)


@pytest.mark.parametrize("number", TRANSIENT + PERMANENT, ids=errno.errorcode.get)
def test_transient_errors_are_storage_errors(number):
    kind = PermissionError if number == errno.ENOENT else OSError
    failing = mock.Mock(side_effect=kind(number, "x"))
    with pytest.raises(FileError) as caught:
        storage.retry(failing, "reading there")
    error = caught.value
    is_transient = isinstance(error, StorageError)
    assert is_transient == (number in TRANSIENT)
    reason = os.strerror(number)
    assert str(error).startswith(f"reading there failed ({reason}): ")


def test_transient_errors_are_retried():
    error = OSError(errno.EIO, "x")
    read = mock.Mock(side_effect=[error, error, error, "content"])
    assert storage.retry(read, "") == "content"
    assert read.call_count == 4


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (PermissionError("AccessDenied"), FileError, "permission denied"),
        (OSError("https://storage.googleapis.com/b/x: 401"), FileError, "renew the credentials"),
        (OSError("ExpiredToken: The provided token has expired"), FileError, "credentials"),
        (ImportError("Please install s3fs"), FileError, install("s3")),
        (TimeoutError("no answer\nfor 30 s"), StorageError, "(TimeoutError: no answer for 30 s)"),
        (OSError("x" * 9999), StorageError, "xxx"),
        # Numbers in names and counts are not status codes.
        (OSError("503 for gs://b/ids-00403-of-01024"), StorageError, ""),
        (ConnectionError("received 401 bytes"), StorageError, ""),
    ],
)
def test_errors_of_stores_are_converted(error, kind, words):
    converted = storage.storage_error("reading s3://runs/x", error)
    message = str(converted)
    assert type(converted) is kind
    assert len(message) < 500
    assert "\n" not in message
    assert message.startswith("reading s3://runs/x failed (")
    assert words in message


def test_missing_gcsfs_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    # fsspec keeps the class after its first use.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "gs", raising=False)
    advice = re.escape(install("gcs"))
    with pytest.raises(FileError, match=rf"gs://bucket/c4 failed .*{advice}"):
        files.find_files("gs://bucket/c4")


def test_missing_permissions_are_reported_in_one_line(store):
    def write_file(path):
        files.write(path, b"")

    store.faults({"kind": "403", "times": 100})
    denied = "gs://test/x failed .permission denied: .*storage.objects.create"
    for act in (files.read, files.exists, files.listdir, write_file):
        with pytest.raises(RunError, match=denied) as caught:
            act("gs://test/x")
        assert "\n" not in str(caught.value)
        assert not isinstance(caught.value, StorageError)


def test_missing_buckets_are_reported(store):
    path = "gs://nobody/x"
    missing = f"^writing {path} failed: there is no bucket 'nobody'"
    with pytest.raises(RunError, match=missing):
        files.write(path, b"x")
    with pytest.raises(RunError, match=missing):
        locks.compare_and_swap(path, None, b"x")
    assert files.listdir("gs://nobody/x") == []
    assert not files.exists(path)


@pytest.mark.parametrize("path", ["gs://", "s3:///"])
def test_paths_without_a_bucket_are_refused_before_any_request(path, monkeypatch):
    def request(path):
        pytest.fail("a request would be made")

    monkeypatch.setattr(fsspec.core, "url_to_fs", request)
    message = raised(DataError, files.find_files, path)
    assert message.startswith(f"'{path}' names no bucket: expected {path[:2]}://BUCKET/PATH")
