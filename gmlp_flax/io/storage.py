"""Disks and stores: fsspec's file systems, what is tried again, and the one-line error if that does
not help.

A path with a scheme (`gs://` through gcsfs, `s3://` through s3fs, `memory://`) is opened by fsspec;
every other path is local. An error of a local disk is tried again a few times. The clients of
stores try again by themselves: gcsfs six times, over half a minute.
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
    r"Forbidden|AccessDenied|PermissionError|\b40[13]\b|Invalid Credentials|RefreshError|DefaultCredentialsError"
    r"|NoCredentialsError|Expired ?Token|[Tt]oken (?:has )?expired"
)
# numbers in these are no HTTP codes
_NAMES = re.compile(r"\S*(?:/|%2F)\S*|\b\d[\d,]* (?:of \d[\d,]* )?bytes")


def is_remote(path: str | os.PathLike) -> bool:
    """Whether the path has a scheme, so that fsspec opens it."""
    return "://" in os.fspath(path)


def retry(action: Callable[[], T], doing: str) -> T:
    """Calls `action` until the disk lets it.

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
            if pause is None or errno_of(error) in _AT_ONCE or isinstance(error, ValueError):
                raise storage_error(doing, error) from error
            time.sleep(pause)
    raise AssertionError("unreachable")


def storage_error(doing: str, error: BaseException) -> FileError:
    """The error to raise for one of a disk or a store, in one line: StorageError if it may pass."""
    if isinstance(error, FileError):
        return error
    number = errno_of(error)
    is_local = "://" not in doing
    words = " ".join(f"{type(error).__name__}: {error}".split())
    kind: type[FileError] = FileError
    reason = os.strerror(number) if number and is_local else words
    if isinstance(error, ImportError):
        before, _, _ = doing.partition("://")
        _, _, scheme = before.rpartition(" ")
        reason = f"{scheme}:// needs a package that cannot be imported: {error.__cause__ or error}"
        advice = install(EXTRAS[scheme]) if scheme in EXTRAS else "install it"
    elif number in MISSING:
        advice = "check the path"
    elif number in _FOR_THE_USER or (isinstance(error, ValueError) and is_local):
        advice = "check the path, its permissions and the free space"
    elif _REFUSED.search(_NAMES.sub("", words)):
        reason = f"permission denied: {words}"
        advice = (
            "renew the credentials (gcloud auth application-default login), or grant the account "
            "access"
        )
    else:
        kind = StorageError
        advice = "nothing was moved or deleted"
    return kind(f"{doing} failed ({reason[:_MESSAGE]}): {advice}; run the same command again")


def errno_of(error: BaseException) -> int | None:
    """The system's number of an error; TensorStore writes it into its message."""
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        return number
    if isinstance(error, FileNotFoundError):  # of a store
        return errno.ENOENT
    written = re.search(r"(?:\[OS error |os_error_code=')(?P<number>\d+)", str(error))
    if written:
        return int(written["number"])
    for full in FULL:
        if os.strerror(full) in str(error):  # some messages have only the words
            return full
    return None


@contextmanager
def file_errors(doing: str, *more: type[Exception]) -> Iterator[None]:
    """Turns an OSError of the block, or one of `more`, into a FileError of one line that begins
    with `doing`."""
    try:
        yield
    except (OSError, *more) as error:
        raise storage_error(doing, error) from error


def call(path: str | os.PathLike, action: Callable[[Any, str], T], doing: str = "reading") -> T:
    """What `action(system, name)` returns, with fsspec's file system for a path and the path's name
    there.

    On a local disk `retry` calls it. What a store raises becomes one line, except FileNotFoundError
    unless `doing` is "writing", and FileExistsError.
    """
    path = os.fspath(path)
    if not path:  # which would be the current folder
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if not is_remote(path):
        from fsspec.implementations.local import LocalFileSystem  # slow

        return retry(lambda: action(LocalFileSystem(), os.path.abspath(path)), f"{doing} {path}")
    try:
        return action(*file_system(path))
    except FileNotFoundError as error:
        if doing != "writing":
            raise
        _, _, name = path.partition("://")
        bucket, _, _ = name.partition("/")
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
    if scheme in EXTRAS and not name.strip("/"):  # which the store would be asked for, for minutes
        raise DataError(f"{path!r} names no bucket: expected {scheme}://BUCKET/PATH")
    configure(scheme)
    import fsspec.core  # slow, and only remote paths need it

    return fsspec.core.url_to_fs(path)


@functools.cache
def configure(scheme: str) -> None:
    """Tells fsspec's own settings, which Orbax shares, not to remember listings, as other processes
    write too."""
    if scheme not in EXTRAS:
        return
    import fsspec.config

    options = fsspec.config.conf.setdefault("gcs" if scheme == "gs" else scheme, {})
    options.setdefault("use_listings_cache", False)
    if EXTRAS[scheme] == "gcs":
        # Else the first request to a bucket asks a service of its own about it, for up to a minute.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        import aiohttp

        if os.environ.get("STORAGE_EMULATOR_HOST"):
            options.setdefault("token", "anon")  # an emulator asks for no credentials
        options.setdefault(
            "requests_timeout", aiohttp.ClientTimeout(sock_connect=CONNECT, sock_read=SILENCE)
        )
        # it prints a traceback of each error that it raises
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL + 1)
        logging.getLogger("google.auth").setLevel(logging.ERROR)
        # aiohttp says so of more than 1 MB; fsspec's event loop has a thread of its own.
        warnings.filterwarnings("ignore", "Sending a large body directly", ResourceWarning)
