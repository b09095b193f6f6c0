"""Local and remote files: finding, opening and unpacking them, with errors of one line.

A path with a scheme (`gs://bucket/c4`, `s3://`, `memory://`) goes through fsspec; every other path is local. `gs://`
needs the extra `gcs`. Nothing is kept on disk: `local_copy` serves readers that accept only file names.
"""

import gzip
import io
import lzma
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, NamedTuple

from gmlp_flax.errors import DataError, install

PACKINGS = (".gz", ".xz")

_UNPACKERS = {".gz": lambda raw: gzip.GzipFile(fileobj=raw), ".xz": lzma.LZMAFile}
_BUFFER = 1 << 20
# fsspec's names for a stamp that changes with a file's content, the most reliable first.
_VERSIONS = ("etag", "ETag", "md5Hash", "generation", "mtime", "updated", "LastModified", "created")


class File(NamedTuple):
    """One file of a data set.

    Attributes:
        path: the file's path, for `opened`.
        name: its path below the folder that was searched, with `/`; its base name if a single file was given.
        size: bytes, before unpacking.
        version: changes when the file does: its modification time or, for a remote file, the store's tag.
    """

    path: str
    name: str
    size: int
    version: str


def is_remote(path: str) -> bool:
    """Whether the path has a scheme, so that fsspec opens it."""
    return "://" in path


def packing(path: str) -> str:
    """The suffix among PACKINGS that `path` ends with, or ''."""
    return next((suffix for suffix in PACKINGS if path.lower().endswith(suffix)), "")


def join(folder: str, *names: str) -> str:
    """The path of a file in a local or remote folder."""
    return "/".join([folder.rstrip("/"), *names]) if is_remote(folder) else os.path.join(folder, *names)


def exists(path: str) -> bool:
    """Whether there is a file or folder at `path`; raises DataError if the store cannot be reached."""
    if not is_remote(path):
        return os.path.exists(path)
    with _remote_errors(path):
        system, name = _file_system(path)
        return system.exists(name)


def find_files(path: str) -> tuple[File, ...]:
    """The file `path`, or all files below the folder `path`, ordered by name and without hidden files.

    Raises:
        DataError: there is nothing at `path`, or a file or the store cannot be reached.
    """
    found = _find_remote(path) if is_remote(path) else _find_local(path)
    if found is None:
        raise DataError(f"no text at {path!r}: expected a file or a folder; check the path")
    shown = (file for file in found if not any(part.startswith(".") for part in file.name.split("/")))
    return tuple(sorted(shown, key=lambda file: file.name.split("/")))


def subfolders(path: str) -> tuple[str, ...]:
    """Names of the folders directly in `path`, sorted; () if there is no such folder."""
    if not is_remote(path):
        return tuple(sorted(entry.name for entry in os.scandir(path) if entry.is_dir())) if os.path.isdir(path) else ()
    with _remote_errors(path):
        system, root = _file_system(path)
        entries = system.ls(root, detail=True) if system.isdir(root) else []
        return tuple(sorted(os.path.basename(e["name"].rstrip("/")) for e in entries if e["type"] == "directory"))


@contextmanager
def opened(path: str, unpack: bool = True, buffer: int = _BUFFER) -> Iterator[BinaryIO]:
    """Opens a file for reading, unpacking .gz and .xz on the fly; errors inside the block name the file.

    Files that are not packed can seek. A local file is read `buffer` bytes at a time.

    Raises:
        DataError: the file cannot be read, or it is a truncated or damaged archive.
    """
    suffix = packing(path) if unpack else ""
    try:
        with ExitStack() as stack:
            stream = stack.enter_context(_raw(path, buffer))
            if suffix:
                stream = stack.enter_context(_unpacked(stream, suffix))
            yield stream
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: truncated or not a {suffix} archive ({error}); copy or download it again") from error
    except OSError as error:
        reason = error.strerror or str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"{path}: cannot be read ({reason}); check the file and its permissions") from error


def read_range(path: str, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of a file, in one read or request; raises DataError if the file cannot be read."""
    if not is_remote(path):
        with opened(path, unpack=False, buffer=0) as file:
            file.seek(start)
            return file.read(stop - start)
    with _remote_errors(path):
        system, name = _file_system(path)
        return system.cat_file(name, start=start, end=stop)


@contextmanager
def local_copy(path: str) -> Iterator[str]:
    """Yields the path itself or, for a remote file, the path of a copy that is deleted at the end of the block."""
    if not is_remote(path):
        yield path
        return
    with tempfile.NamedTemporaryFile(prefix="gmlp_flax_", suffix="_" + os.path.basename(path)) as copy:
        with opened(path, unpack=False) as stream:
            shutil.copyfileobj(stream, copy, _BUFFER)
        copy.flush()
        yield copy.name


def _raw(path: str, buffer: int = _BUFFER) -> Any:
    if not is_remote(path):
        return open(path, "rb", buffering=buffer)
    with _remote_errors(path):
        system, name = _file_system(path)
        return system.open(name, "rb")


def _unpacked(raw: BinaryIO, suffix: str) -> BinaryIO:
    if not raw.read(1):
        raise EOFError("the file is empty")  # gzip accepts it as an empty archive
    raw.seek(0)
    return io.BufferedReader(_UNPACKERS[suffix](raw), _BUFFER)


def _find_local(path: str) -> list[File] | None:
    if os.path.isfile(path):
        return [_local_file(path, os.path.basename(path))]
    if not os.path.isdir(path):
        return None
    return [
        _local_file(file, os.path.relpath(file, path).replace(os.sep, "/"))
        for folder, _, names in os.walk(path, followlinks=True)
        for file in (os.path.join(folder, name) for name in names)
    ]


def _local_file(path: str, name: str) -> File:
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the file and its permissions") from error
    return File(path, name, status.st_size, str(status.st_mtime_ns))


def _find_remote(path: str) -> list[File] | None:
    with _remote_errors(path):
        system, root = _file_system(path)
        if not system.exists(root):
            return None
        if system.isfile(root):
            return [_remote_file(path, os.path.basename(root), system.info(root))]
        found = system.find(root, detail=True)
        names = {name: name.removeprefix(root).strip("/") for name in found}
        return [_remote_file(join(path, names[name]), names[name], info) for name, info in found.items()]


def _remote_file(path: str, name: str, info: dict[str, Any]) -> File:
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    return File(path, name, int(info["size"]), version)


def _file_system(path: str) -> tuple[Any, str]:
    import fsspec.core  # slow, and only remote data need it

    return fsspec.core.url_to_fs(path)


@contextmanager
def _remote_errors(path: str) -> Iterator[None]:
    """Names the path in all that a store raises: each store has its own errors, above all for credentials."""
    try:
        yield
    except ImportError as error:
        package = install("gcs") if path.startswith(("gs://", "gcs://")) else str(error).partition("\n")[0]
        raise DataError(f"{path}: its scheme needs a package that is not installed; {package}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")
        raise DataError(f"{path}: cannot be reached ({reason}); check the address and the credentials") from error
