"""Disks and stores: fsspec's file systems, retries, and the one-line error if these do not help.

fsspec opens a path with a scheme (`gs://` through gcsfs, `s3://` through s3fs, `memory://`); every
other path is local. An action that a local disk refuses is retried a few times. The clients of
stores retry by themselves: gcsfs six times, over half a minute.
"""

import errno
import functools
import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gmlp_flax.errors import DataError, FileError, StorageError, UserError, install

T = TypeVar("T")
PAUSES = (0.1, 0.5, 2.0)  # seconds before each further attempt on a local disk
ABSENT = (FileNotFoundError, NotADirectoryError)
# a file is gone, or something else is in its place
MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FOR_THE_USER = (
    *MISSING,
    *FULL,
    errno.EEXIST,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)
_AT_ONCE = (*FULL, errno.ENAMETOOLONG)  # no use to try again

EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3"}  # by scheme
CONNECT = 10.0  # seconds to wait for a connection
SILENCE = 30.0  # seconds to wait for the next bytes of an answer
_MESSAGE = 240  # characters of a library's own words
_REFUSED = re.compile(
    r"Forbidden|AccessDenied|PermissionError|\b40[13]\b|Invalid Credentials|RefreshError"
    r"|DefaultCredentialsError|NoCredentialsError|Expired ?Token|[Tt]oken (?:has )?expired"
)
# numbers in these are no HTTP codes
_NAMES = re.compile(r"\S*(?:/|%2F)\S*|\b\d[\d,]* (?:of \d[\d,]* )?bytes")


def is_remote(path: str | os.PathLike) -> bool:
    """Whether the path has a scheme, so that fsspec opens it."""
    name = os.fspath(path)
    return "://" in name


def retry(action: Callable[[], T], doing: str) -> T:
    """Calls `action` until the disk allows it.

    Raises:
        FileNotFoundError, NotADirectoryError, FileExistsError: at once.
        FileError: an error that stays, in a line that begins with `doing`; StorageError if it may
            pass later.
    """
    for pause in (*PAUSES, None):
        try:
            return action()
        except (*ABSENT, FileExistsError):
            raise
        # ValueError: what no path has, such as a zero byte
        except (OSError, MemoryError, ValueError) as error:
            number = errno_of(error)
            is_permanent = isinstance(error, ValueError) or number in _AT_ONCE
            if pause is None or is_permanent:
                raise storage_error(doing, error) from error
            time.sleep(pause)
    raise AssertionError("unreachable")


def storage_error(doing: str, error: BaseException) -> FileError:
    """The error to raise for one of a disk or a store, in one line: StorageError if it may pass."""
    if isinstance(error, FileError):
        return error
    if isinstance(error, ImportError):
        reason, advice = _missing_package(doing, error)
        return _failure(FileError, doing, reason, advice)
    number = errno_of(error)
    is_local = "://" not in doing
    message = f"{type(error).__name__}: {error}"
    words = " ".join(message.split())
    reason = os.strerror(number) if number and is_local else words
    if number in MISSING:
        return FileError(f"{doing} failed ({reason[:_MESSAGE]}): check the path")
    is_of_path = isinstance(error, ValueError) and is_local
    if number in _FOR_THE_USER or is_of_path:
        advice = "check the path, its permissions and the free space"
        return _failure(FileError, doing, reason, advice)
    without_names = _NAMES.sub("", words)
    if _REFUSED.search(without_names):
        advice = (
            "renew the credentials (gcloud auth application-default login), or grant the account "
            "access"
        )
        return _failure(FileError, doing, f"permission denied: {words}", advice)
    return _failure(StorageError, doing, reason, "nothing was moved or deleted")


def _failure(kind: type[FileError], doing: str, reason: str, advice: str) -> FileError:
    short_reason = reason[:_MESSAGE]
    return kind(f"{doing} failed ({short_reason}): {advice}; run the same command again")


def _missing_package(doing: str, error: ImportError) -> tuple[str, str]:
    """Why a store cannot be reached without its package, and what to do."""
    before, _, _ = doing.partition("://")
    _, _, scheme = before.rpartition(" ")
    cause = error.__cause__ or error
    reason = f"{scheme}:// needs a package that cannot be imported: {cause}"
    advice = "install it"
    if scheme in EXTRAS:
        advice = install(EXTRAS[scheme])
    return reason, advice


def errno_of(error: BaseException) -> int | None:
    """The system's number of an error; TensorStore writes it into its message."""
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        return number
    if isinstance(error, FileNotFoundError):  # of a store
        return errno.ENOENT
    message = str(error)
    written = re.search(r"(?:\[OS error |os_error_code=')(?P<number>\d+)", message)
    if written:
        return int(written["number"])
    for full in FULL:
        words = os.strerror(full)
        if words in message:  # some messages have only the words
            return full
    return None


@contextmanager
def file_errors(doing: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turns an OSError of the block, or one of the other `kinds`, into a FileError of one line that
    begins with `doing`."""
    try:
        yield
    except (OSError, *kinds) as error:
        raise storage_error(doing, error) from error


def call(path: str | os.PathLike, action: Callable[[Any, str], T], doing: str = "reading") -> T:
    """What `action(system, name)` returns, with fsspec's file system for a path and the path's name
    there.

    On a local disk `retry` calls it. Errors of a store become one line, except for FileExistsError
    and, unless `doing` is "writing", FileNotFoundError.
    """
    path = os.fspath(path)
    if not path:  # which would be the current folder
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if not is_remote(path):
        from fsspec.implementations.local import LocalFileSystem  # slow

        def act() -> T:
            system = LocalFileSystem()
            name = os.path.abspath(path)
            return action(system, name)

        return retry(act, f"{doing} {path}")
    try:
        system, name = file_system(path)
        return action(system, name)
    except FileNotFoundError as error:
        if doing != "writing":
            raise
        _, _, object_path = path.partition("://")
        bucket, _, _ = object_path.partition("/")
        raise FileError(
            f"{doing} {path} failed: there is no bucket {bucket!r}; make it, or check the name"
        ) from error
    except (FileExistsError, UserError):
        raise
    except Exception as error:
        raise storage_error(f"{doing} {path}", error) from error


def file_system(path: str) -> tuple[Any, str]:
    """fsspec's file system for a path, and the path's name there; it raises whatever the store's
    package raises."""
    scheme, _, name = path.partition("://")
    has_bucket = name.strip("/") != ""
    if scheme in EXTRAS and not has_bucket:  # the store would be asked for it, for minutes
        raise DataError(f"{path!r} names no bucket: expected {scheme}://BUCKET/PATH")
    configure(scheme)
    import fsspec.core  # slow, and only remote paths need it

    return fsspec.core.url_to_fs(path)


@functools.cache
def configure(scheme: str) -> None:
    """Sets fsspec's own options, which Orbax shares. Listings are not cached, as other processes
    write too."""
    if scheme not in EXTRAS:
        return
    import fsspec.config

    protocol = "gcs" if scheme == "gs" else scheme
    options = fsspec.config.conf.setdefault(protocol, {})
    options.setdefault("use_listings_cache", False)
    if EXTRAS[scheme] == "gcs":
        _configure_gcs(options)


def _configure_gcs(options: dict[str, Any]) -> None:
    # Else the first request to a bucket asks a separate service about it, for up to a minute.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import aiohttp

    if os.environ.get("STORAGE_EMULATOR_HOST"):
        options.setdefault("token", "anon")  # an emulator asks for no credentials
    timeout = aiohttp.ClientTimeout(sock_connect=CONNECT, sock_read=SILENCE)
    options.setdefault("requests_timeout", timeout)
    # it prints a traceback of each error that it raises
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL + 1)
    logging.getLogger("google.auth").setLevel(logging.ERROR)
    # aiohttp warns of more than 1 MB; fsspec's event loop has a thread of its own.
    warnings.filterwarnings("ignore", "Sending a large body directly", ResourceWarning)
