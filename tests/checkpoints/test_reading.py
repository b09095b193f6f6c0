import errno
from unittest import mock

import pytest

from gmlp_flax.checkpoints import reading
from gmlp_flax.errors import RunError, StorageError
from gmlp_flax.io import storage
from tests.failures import raised


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(storage, "PAUSES", (0.0,))


@pytest.mark.parametrize(
    ("error", "is_transient"),
    [
        (ValueError("DATA_LOSS: checksum mismatch"), False),
        (FileNotFoundError(errno.ENOENT, "gone"), False),
        (ValueError("NOT_FOUND: Error opening [os_error_code='2']"), False),
        (OSError("no number"), False),
        (MemoryError(), True),
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (OSError(errno.EACCES, "x"), True),
        (ValueError("INTERNAL: Error reading [os_error_code='5']"), True),
        (ValueError("PERMISSION_DENIED: x"), True),
        (ValueError("RESOURCE_EXHAUSTED: Out of memory"), True),
        (ValueError("UNAVAILABLE: 503"), True),
    ],
)
def test_errors_of_content_are_damage(tmp_path, error, is_transient):
    """Errors of storage are not."""
    assert reading.is_transient(error) == is_transient
    fails = mock.Mock(side_effect=error)
    with pytest.raises(RunError) as caught:
        reading.read(str(tmp_path), fails)
    assert isinstance(caught.value, reading.Damaged) != is_transient
    assert str(tmp_path) in str(caught.value)


def test_causes_of_errors_are_reported(tmp_path):
    """Orbax wraps errors in other errors."""

    def fails():
        try:
            raise OSError(errno.ESTALE, "stale")
        except OSError as error:
            raise ValueError("could not restore") from error

    message = raised(StorageError, reading.read, str(tmp_path), fails)
    assert "Stale file handle" in message


def test_errors_of_this_package_are_not_retried(tmp_path):
    refuses = mock.Mock(side_effect=RunError("no"))
    assert raised(RunError, reading.read, str(tmp_path), refuses) == "no"
    assert refuses.call_count == 1


def test_deleted_checkpoints_are_not_damaged(tmp_path):
    fails = mock.Mock(side_effect=ValueError("NOT_FOUND: Directory does not exist"))
    with pytest.raises(StorageError, match="/7 was deleted, perhaps by its run"):
        reading.read(str(tmp_path / "7"), fails)
