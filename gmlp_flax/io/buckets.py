"""Files of an object store (`gs://` through gcsfs, `s3://` through s3fs), and the errors of all stores in one line.

A store has no folders: one is a common beginning of names, is there as soon as a file in it is, and is moved file by file.
A file is written whole or not at all. The clients themselves try again, with growing pauses, what a store refuses for a
moment: gcsfs six times, over half a minute. Only the first request is given up sooner: see `_greet`.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import re
import time
import urllib.parse
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gmlp_flax.errors import RunError, StorageError, install

EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3"}  # by scheme
START = 12.0  # seconds to wait for the first answer of a store
CONNECT, SILENCE = 10.0, 30.0  # seconds to wait for a connection, and for the next bytes of an answer
FINISHED = "commit_success.txt"  # Orbax's mark of a checkpoint that is whole
_MESSAGE = 240  # characters of a store's own words
_DENIED = re.compile(r"Forbidden|AccessDenied|PermissionError|\b403\b")
_CREDENTIALS = re.compile(
    r"Invalid Credentials|\b401\b|RefreshError|DefaultCredentialsError|NoCredentialsError|Expired ?Token|[Tt]oken (?:has )?expired"
)
_NAMES = re.compile(r"\S*(?:/|%2F)\S*|\b\d[\d,]* (?:of \d[\d,]* )?bytes")  # where numbers are no codes
# fsspec's names for when a file was written.
_TIMES = ("mtime", "updated", "LastModified", "created")


def is_remote(path: str | os.PathLike) -> bool:
    """Whether the path has a scheme, so that fsspec opens it."""
    return "://" in os.fspath(path)


def file_system(path: str) -> tuple[Any, str]:
    """fsspec's file system for a path, and the path's name there; it raises whatever the store's package raises."""
    scheme = path.partition("://")[0]
    _configure(scheme)
    import fsspec.core  # slow, and only remote paths need it

    if EXTRAS.get(scheme) == "gcs":
        _greet(scheme, bucket_of(path))
    return fsspec.core.url_to_fs(path)


@functools.cache
def _greet(scheme: str, bucket: str) -> None:
    """Asks a bucket once for a sign of life, so that a command learns within `START` seconds that there is none.

    Later requests are tried again for longer, by gcsfs itself: then there is work to lose. Credentials that are refused twice
    are no passing fault. Whether there is such a bucket and such a right, the request tells that needs it.
    """
    import fsspec.asyn
    import fsspec.core

    begun, refused = time.monotonic(), 0
    system, _ = fsspec.core.url_to_fs(f"{scheme}://{bucket}")  # it looks for credentials, for seconds if there are none
    from gcsfs.retry import is_retriable

    for pause in itertools.chain((0.5, 1, 2, 4), itertools.repeat(5)):
        try:
            left = START - (time.monotonic() - begun)
            once = type(system)._request.__wrapped__  # without gcsfs's own attempts
            fsspec.asyn.sync(system.loop, once, system, "GET", "b/{}/o", bucket, maxResults=1, timeout=max(left, 1))
            return
        except Exception as error:
            refused += _says(_CREDENTIALS, f"{type(error).__name__}: {error}")
            late = time.monotonic() - begun + pause > START
            if refused > 1 or (late and (is_retriable(error) or isinstance(error, TimeoutError))):
                raise
            if not refused and not is_retriable(error):
                return
        time.sleep(pause)


@functools.cache
def _configure(scheme: str) -> None:
    """Tells fsspec's own settings, which Orbax's paths share, not to remember listings, as other processes write too."""
    import fsspec.config

    options = fsspec.config.conf.setdefault("gcs" if scheme == "gs" else scheme, {})
    if EXTRAS.get(scheme) == "gcs":
        # Else the first request to a bucket asks a service of its own about it, for up to a minute.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        import aiohttp

        if os.environ.get("STORAGE_EMULATOR_HOST"):
            options.setdefault("token", "anon")  # an emulator asks for no credentials
        options.setdefault("requests_timeout", aiohttp.ClientTimeout(sock_connect=CONNECT, sock_read=SILENCE))
    if scheme in EXTRAS:
        options.setdefault("use_listings_cache", False)
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL + 1)  # it prints a traceback of each error that it raises
        logging.getLogger("google.auth").setLevel(logging.ERROR)
        # aiohttp says so of more than 1 MB; fsspec's event loop has a thread of its own.
        warnings.filterwarnings("ignore", "Sending a large body directly", ResourceWarning)


@contextmanager
def explaining(path: str) -> Iterator[None]:
    """Raises what a store raises as RunError, or as StorageError if it may pass, in one line that begins with the path.

    FileNotFoundError and FileExistsError go through.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, RunError):
        raise
    except Exception as error:
        raise explained(path, error) from error


def _says(signs: re.Pattern[str], words: str) -> bool:
    """Whether an error of a store has one of the signs, but for the names of files and counts of bytes in it."""
    return bool(signs.search(_NAMES.sub("", words)))


def explained(path: str, error: BaseException) -> RunError:
    """The error to raise for one of a store's."""
    if isinstance(error, RunError):
        return error
    words = f"{type(error).__name__}: {error}"
    line = " ".join(words.split())
    line = line if len(line) <= _MESSAGE else f"{line[:_MESSAGE]} ..."
    if isinstance(error, ImportError):
        scheme = path.partition("://")[0]
        extra, why = EXTRAS.get(scheme), " ".join(str(error.__cause__ or error).split())[:_MESSAGE]
        if not extra:
            return RunError(f"{path}: {scheme}:// needs a package that cannot be imported ({why})")
        return RunError(f"{path}: {scheme}:// needs {extra}fs, which cannot be imported ({why}); {install(extra)}")
    if _says(_CREDENTIALS, words):
        return RunError(
            f"{path}: the store does not accept the credentials ({line}); renew them, with gcloud auth "
            "application-default login or the service account's key, and run the same command again"
        )
    if _says(_DENIED, words):
        return RunError(f"{path}: permission denied ({line}); give the account the right to read and write the bucket")
    return StorageError(f"{path}: cannot be reached ({line}); check the address and the credentials")


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """As `explaining`; what is written to and not found is the bucket."""
    with explaining(path):
        try:
            yield
        except FileNotFoundError as error:
            raise RunError(f"{path}: there is no bucket {bucket_of(path)!r}; make it, or check the name") from error


def bucket_of(path: str) -> str:
    """The name of a path's bucket."""
    return path.partition("://")[2].partition("/")[0]


def read(path: str) -> bytes:
    """A file's content; raises FileNotFoundError if there is no such file."""
    with explaining(path):
        system, name = file_system(path)
        return system.cat_file(name)


def read_joined(folder: str) -> bytes:
    """The contents of all files of a folder, joined in the order of their names; nothing if there is none."""
    with explaining(folder):
        system, name = file_system(folder)
        found = system.find(name)
        contents = system.cat(found) if found else {}  # many at a time
        return b"".join(contents[each] for each in sorted(contents))


def write(path: str, content: bytes) -> None:
    """Writes a file."""
    with _writing(path):
        system, name = file_system(path)
        system.pipe_file(name, content)


def upload(source: str | os.PathLike, path: str) -> None:
    """Writes a local file's content to a file."""
    with _writing(path):
        system, name = file_system(path)
        system.put_file(os.fspath(source), name)


def create(path: str, content: bytes) -> bool:
    """Writes a file unless there is one, and returns whether it did; the store decides, so only one of many does."""
    with _writing(path):
        system, name = file_system(path)
        try:
            system.pipe_file(name, content, mode="create")
        except FileExistsError:
            # If the answer to a first attempt was lost, the second one finds what the first has written.
            return system.cat_file(name) == content
        return True


def replace(path: str, old: bytes, new: bytes) -> bool:
    """Writes a file that has the content `old`, and returns whether it did.

    On gs:// and s3:// the store sees to it that nobody else writes in between.
    """
    with explaining(path):
        system, name = file_system(path)
        try:
            version = system.info(name)  # before the content, so that a change after it is seen
            if system.cat_file(name) != old:
                return False
            _put_if_unchanged(system, name, version, new)
        except FileNotFoundError:
            return False
        except FileExistsError:
            return system.cat_file(name) == new  # see `create`
        return True


def _put_if_unchanged(system: Any, name: str, version: dict[str, Any], content: bytes) -> None:
    """Raises FileExistsError if the file is not this version of it any more."""
    if "generation" in version:
        bucket, key, _ = system.split_path(name)
        system.call(
            "POST",
            f"{system._location}/upload/storage/v1/b/{urllib.parse.quote(bucket, safe='')}/o",
            uploadType="media",
            name=key,
            ifGenerationMatch=version["generation"],
            data=content,
            headers={"Content-Type": "application/octet-stream"},
        )
    elif "ETag" in version:
        bucket, key, _ = system.split_path(name)
        try:
            system.call_s3("put_object", Bucket=bucket, Key=key, Body=content, IfMatch=version["ETag"])
        except OSError as error:
            raise FileExistsError(name) if "PreconditionFailed" in str(error) else error from error
    else:
        system.pipe_file(name, content)


def names(folder: str) -> list[str]:
    """What is in a folder, sorted; nothing if there is no such folder."""
    with explaining(folder):
        system, name = file_system(folder)
        try:
            found = system.ls(name, detail=False)
        except FileNotFoundError:
            return []
        inside = (each.rstrip("/").removeprefix(name.rstrip("/")).strip("/") for each in found)
        return sorted(each for each in inside if each and "/" not in each)


def exists(path: str) -> bool:
    """Whether there is a file or a folder. A bucket itself counts as there, as asking for it takes another right."""
    if not path.partition("://")[2].strip("/").partition("/")[2]:
        return True
    with explaining(path):
        system, name = file_system(path)
        try:
            system.info(name)
        except FileNotFoundError:
            return False
        return True


def matching(pattern: str) -> list[str]:
    """The files and folders that a glob pattern matches, sorted."""
    with explaining(pattern):
        system, name = file_system(pattern)
        scheme = pattern.partition("://")[0]
        found = system.glob(name) if any(sign in name for sign in "*?[") else [name]
        return sorted(f"{scheme}://{each.strip('/')}" for each in found)


def age(path: str) -> float:
    """Seconds since a file was written; raises FileNotFoundError."""
    with explaining(path):
        system, name = file_system(path)
        found = system.info(name)
        return time.time() - next(found[key] for key in _TIMES if found.get(key)).timestamp()


def remove(path: str) -> None:
    """Deletes a file; raises FileNotFoundError."""
    with explaining(path):
        system, name = file_system(path)
        system.rm_file(name)


def remove_all(folder: str) -> None:
    """Deletes all files of a folder; first Orbax's mark of a finished checkpoint, then the upper ones."""
    with explaining(folder):
        system, name = file_system(folder)
        for file in sorted(
            system.find(name), key=lambda each: (not each.endswith(f"/{FINISHED}"), each.count("/"), each)
        ):
            try:
                system.rm_file(file)
            except FileNotFoundError:
                continue


def move(path: str, target: str) -> None:
    """Moves a file, or all files of a folder: each is copied, then the old ones are deleted."""
    with _writing(path):
        system, name = file_system(path)
        goal = file_system(target)[1]
        for file in system.find(name):
            system.cp_file(file, goal + file.removeprefix(name))
    remove_all(path)


def read_all(folder: str) -> None:
    """Reads every byte of every file of a folder; raises RunError if the store does not let it."""
    with explaining(folder):
        system, name = file_system(folder)
        for file in system.find(name):
            try:
                system.cat_file(file)
            except FileNotFoundError:
                continue
