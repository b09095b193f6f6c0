"""Local and remote files: finding, opening and unpacking them, with errors of one line.

A path with a scheme (`gs://bucket/c4`, `s3://`, `memory://`) goes through fsspec; every other path is local. `gs://`
needs the extra `gcs`. Nothing is kept on disk: `local_copy` serves readers that accept only file names.
"""

import bz2
import gzip
import io
import lzma
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from gmlp_flax.errors import DataError
from gmlp_flax.io import buckets, cache
from gmlp_flax.io.buckets import file_system, is_remote

_UNPACKERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".xz": lambda raw: _Streams(raw, lzma.LZMADecompressor),
    ".bz2": lambda raw: _Streams(raw, bz2.BZ2Decompressor),
    ".zst": lambda raw: _zstandard(raw),
}
PACKINGS = tuple(_UNPACKERS)
_BUFFER = 1 << 20
_DEEPEST = 30  # folders in each other
# A vocabulary of a million pieces has some 20 MB, and no index or list of names is longer.
SMALL = 64 << 20
MOST = 1 << 30  # bytes that are held at once: a small packed file can hold more than the memory
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


def packing(path: str) -> str:
    """The suffix among PACKINGS that `path` ends with, or ''."""
    return next((packed for packed in PACKINGS if path.lower().endswith(packed)), "")


def suffix(path: str) -> str:
    """The suffix of `path` in small letters, without that of its packing: ".jsonl" of "A.JSONL.gz"; or ''."""
    return os.path.splitext(path.lower().removesuffix(packing(path)))[1]


def join(folder: str, *names: str) -> str:
    """The path of a file in a local or remote folder."""
    return "/".join([folder.rstrip("/"), *names]) if is_remote(folder) else os.path.join(folder, *names)


def exists(path: str) -> bool:
    """Whether there is a file or folder at `path`; raises DataError if the store cannot be reached."""
    if not is_remote(path):
        return os.path.exists(path)
    with _remote_errors(path):
        return buckets.exists(path)


def is_folder(path: str) -> bool:
    """Whether there is a folder at `path`; raises DataError if the store cannot be reached."""
    if not is_remote(path):
        return os.path.isdir(path)
    with _remote_errors(path):
        system, name = file_system(path)
        return system.isdir(name)


def find_files(path: str) -> tuple[File, ...]:
    """The file `path`, or all files below the folder `path`, ordered by name and without hidden files.

    Raises:
        DataError: there is nothing at `path`, or a file or the store cannot be reached.
    """
    found = _find_remote(path) if is_remote(path) else _find_local(path)
    if found is None:
        raise DataError(f"nothing at {path!r}: expected a file or a folder; check the path")
    shown = (file for file in found if not any(part.startswith(".") for part in file.name.split("/")))
    return tuple(sorted(shown, key=lambda file: file.name.split("/")))


def subfolders(path: str) -> tuple[str, ...]:
    """Names of the folders directly in `path`, sorted; () if there is no such folder."""
    if not is_remote(path):
        return tuple(sorted(next(walk(path))[1])) if os.path.isdir(path) else ()
    with _remote_errors(path):
        system, root = file_system(path)
        entries = system.ls(root, detail=True) if system.isdir(root) else []
        return tuple(sorted(os.path.basename(e["name"].rstrip("/")) for e in entries if e["type"] == "directory"))


@contextmanager
def opened(path: str, unpack: bool = True, buffer: int = _BUFFER) -> Iterator[BinaryIO]:
    """Opens a file for reading, unpacking one of PACKINGS on the fly; errors inside the block name the file.

    Files that are not packed can seek. A local file is read `buffer` bytes at a time.

    Raises:
        DataError: the file cannot be read, or it is a truncated or damaged archive.
    """
    packed = packing(path) if unpack else ""
    try:
        with ExitStack() as stack:
            stream = stack.enter_context(_raw(path, buffer))
            if packed:
                stream = stack.enter_context(_unpacked(stream, packed))
            yield stream
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise _damaged(path, packed, error) from error
    except OSError as error:
        if packed and error.errno is None:  # from the unpacking of .bz2 and .zst
            raise _damaged(path, packed, error) from error
        reason = error.strerror or str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"{path}: cannot be read ({reason}); check the file and its permissions") from error


def read_small(path: str | os.PathLike, most: int = SMALL) -> bytes:
    """The content of a file that is read whole: a config, a vocabulary, an index. Not a device, a pipe or a folder.

    Raises:
        DataError: the file cannot be read, is no plain file, or has more than `most` bytes.
    """
    path = os.fspath(path)
    # A pipe without a writer would hang where it is opened.
    if not is_remote(path) and os.path.exists(path) and not os.path.isfile(path):
        kind = "a folder" if os.path.isdir(path) else "a device or a pipe"
        raise DataError(f"{path}: {kind}; expected a plain file")
    with opened(path, unpack=False) as file:
        size = most if is_remote(path) else min(os.path.getsize(path), most)
        content = file.read(size + 1)  # which takes so much memory at once, however little there is
    if len(content) > most:
        raise DataError(f"{path}: more than {most:,} bytes, which no such file has; check the path")
    return content


def read_range(path: str, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of a file, in one read or request; raises DataError if the file cannot be read."""
    if not is_remote(path):
        with opened(path, unpack=False, buffer=0) as file:
            file.seek(start)
            return file.read(stop - start)
    with _remote_errors(path):
        system, name = file_system(path)
        return system.cat_file(name, start=start, end=stop)


def write(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file completely or not at all; raises DataError if that fails."""
    if is_remote(path):
        with _remote_errors(os.fspath(path)):
            buckets.write(os.fspath(path), content)
    else:
        cache.write_atomically(path, lambda file: file.write(content))


def move_to(folder: str, paths: Iterable[Path]) -> None:
    """Moves local files to a remote folder, in this order; raises DataError if it cannot be written to."""
    for path in paths:
        target = join(folder, path.name)
        with _remote_errors(target):
            buckets.upload(path, target)
        path.unlink()


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
        try:
            return open(path, "rb", buffering=buffer)
        except ValueError as error:  # a zero byte, or a character that no file's name has
            raise DataError(f"{path!r} is no name of a file ({error})") from error
    with _remote_errors(path):
        system, name = file_system(path)
        return system.open(name, "rb")


def _damaged(path: str, packed: str, error: Exception) -> DataError:
    return DataError(f"{path}: truncated or not a {packed} archive ({error}); copy or download it again")


def _unpacked(raw: BinaryIO, packed: str) -> BinaryIO:
    if not raw.read(1):
        raise EOFError("the file is empty")  # gzip accepts it as an empty archive
    raw.seek(0)
    return io.BufferedReader(_UNPACKERS[packed](raw), _BUFFER)


def _zstandard(raw: BinaryIO) -> Any:
    import pyarrow  # slow, and Python has no reader of its own before 3.14

    return pyarrow.CompressedInputStream(raw, "zstd")


class _Streams(io.RawIOBase):
    """The content of a file of one or more compressed streams, with zeros between them if any.

    bz2.BZ2File and lzma.LZMAFile drop all that follows a good stream if it does not begin as another, damaged or not.

    Args:
        raw: the file.
        decompressor: makes the decompressor of one stream.
    """

    def __init__(self, raw: BinaryIO, decompressor: Callable[[], Any]):
        self._raw, self._decompressor, self._stream = raw, decompressor, decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase; raises EOFError if the last stream has no end."""
        while True:
            data = b""
            if self._stream.eof:
                data = self._stream.unused_data.lstrip(b"\0")
                while not data and (more := self._raw.read(_BUFFER)):
                    data = more.lstrip(b"\0")
                if not data:
                    return 0
                self._stream = self._decompressor()
            elif self._stream.needs_input and not (data := self._raw.read(_BUFFER)):
                raise EOFError("its end is missing")
            if unpacked := self._stream.decompress(data, len(buffer)):
                buffer[: len(unpacked)] = unpacked
                return len(unpacked)


def _find_local(path: str) -> list[File] | None:
    if os.path.isfile(path):
        return [_local_file(path, os.path.basename(path))]
    if not os.path.isdir(path):
        return None
    return [
        _local_file(file, os.path.relpath(file, path).replace(os.sep, "/"))
        for folder, _, names in walk(path)
        for file in (os.path.join(folder, name) for name in names)
    ]


def walk(path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk` through links as well; raises DataError for a folder that cannot be read, or that is inside itself."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror}); check the folder and its permissions")

    for found in os.walk(path, onerror=refuse, followlinks=True):
        if os.path.relpath(found[0], path).count(os.sep) >= _DEEPEST:
            raise DataError(
                f"{found[0]}: more than {_DEEPEST} folders in each other; remove a link to a folder around it"
            )
        yield found


def _local_file(path: str, name: str) -> File:
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the file and its permissions") from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: is a pipe or a device, not a file; move it away")
    return File(path, name, status.st_size, str(status.st_mtime_ns))


def _find_remote(path: str) -> list[File] | None:
    with _remote_errors(path):
        system, root = file_system(path)
        if not buckets.exists(path):
            return None
        if system.isfile(root):
            return [_remote_file(path, os.path.basename(root), system.info(root))]
        found = system.find(root, detail=True)
        names = {name: name.removeprefix(root).strip("/") for name in found}
        return [_remote_file(join(path, names[name]), names[name], info) for name, info in found.items()]


def _remote_file(path: str, name: str, info: dict[str, Any]) -> File:
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    return File(path, name, int(info["size"]), version)


@contextmanager
def _remote_errors(path: str) -> Iterator[None]:
    """Names the path in all that a store raises."""
    try:
        yield
    except Exception as error:
        raise DataError(str(buckets.explained(path, error))) from error
