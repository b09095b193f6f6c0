"""Local and remote files: read, written, listed and moved, with errors of one line (see
storage)."""

import bz2
import contextlib
import glob as local_glob
import gzip
import io
import lzma
import os
import re
import secrets
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from gmlp_flax.errors import DataError, listed
from gmlp_flax.io import storage
from gmlp_flax.io.storage import ABSENT, call, file_errors, is_remote, retry, storage_error

T = TypeVar("T")
BUFFER = 1 << 20
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)  # raised by what is damaged
_DECOMPRESSORS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".xz": lambda raw: _Streams(raw, lzma.LZMADecompressor),
    ".bz2": lambda raw: _Streams(raw, bz2.BZ2Decompressor),
    ".zst": lambda raw: _zstandard(raw),
}
COMPRESSIONS = tuple(_DECOMPRESSORS)  # suffixes of compressed files
# A vocabulary of a million pieces has some 20 MB, and no index or list of names is longer.
SMALL = 64 << 20
MOST = 1 << 30  # bytes that are held at once: a small compressed file can hold more than the memory
RUN_FILE = "run.json"  # says of the folder that it is in whose run it is
COMMIT_MARK = "commit_success.txt"  # Orbax writes it last to a checkpoint
# c4-train.00000-of-01024.json.gz
SHARD = re.compile(r"^(?P<stem>.*?)[-_.]?(?P<number>\d+)-of-(?P<count>\d+)")
# fsspec's names for a stamp that changes with a file's content, the most reliable first.
_VERSIONS = ("etag", "ETag", "md5Hash", "generation", "mtime", "updated", "LastModified", "created")


class File(NamedTuple):
    """One file of a data set.

    Attributes:
        path: for `open_file`.
        name: the path below the folder that was searched, with `/`; the base name if a single file
            was given.
        size: bytes, before decompression.
        version: changes when the file does: its modification time or, for a remote file, the
            store's tag.
    """

    path: str
    name: str
    size: int
    version: str


def join(folder: str, *names: str) -> str:
    """The path of a file in a local or remote folder."""
    if is_remote(folder):
        return "/".join([folder.rstrip("/"), *names])
    return os.path.join(folder, *names)


def user_path(path: str | os.PathLike[str]) -> str:
    """A path as a user gives it, with the home folder in the place of ~ or ~USER at its start: no
    shell expands it behind `--workdir=`, and Python does not. Raises DataError if it is no
    path."""
    if not isinstance(path, str | os.PathLike):
        raise DataError(f"a path is {type(path).__name__} {path!r:.60}: expected text")
    return os.path.expanduser(os.fspath(path))


def absolute(path: str | os.PathLike[str]) -> str:
    """The path, independent of the current folder; see also `user_path`."""
    name = user_path(path)
    return name.rstrip("/") if is_remote(name) else os.path.abspath(name)


def compression(path: str) -> str:
    """The suffix among COMPRESSIONS that `path` ends with, or ''."""
    for kind in COMPRESSIONS:
        if path.lower().endswith(kind):
            return kind
    return ""


def suffix(path: str) -> str:
    """The suffix of `path` in small letters, without that of its compression: ".jsonl" of
    "A.JSONL.gz"; or ''."""
    return os.path.splitext(path.lower().removesuffix(compression(path)))[1]


def count_by_suffix(names: Iterable[str]) -> str:
    """How many files have each suffix, for messages: ".txt 3, .xml 1"; "" without files."""
    counts: Counter[str] = Counter()
    for name in names:
        _, ending = os.path.splitext(name)
        counts[ending.lower() or "no suffix"] += 1
    return listed([f"{kind} {count:,}" for kind, count in counts.most_common()], 4)


def exists(path: str | os.PathLike) -> bool:
    """Whether there is a file or a folder. A bucket itself is taken to exist, as asking for it
    needs another permission.

    Raises FileError if the disk or the store does not answer; so do the functions below.
    """
    if is_remote(path):
        _, _, name = os.fspath(path).partition("://")
        if "/" not in name.strip("/"):
            return True
    return _ask(path, lambda system, name: bool(system.info(name)), False)


def is_folder(path: str) -> bool:
    """Whether there is a folder at `path`."""
    return _ask(path, lambda system, name: system.isdir(name), False)


def _ask(path: str | os.PathLike, action: Callable[[Any, str], T], absent: T) -> T:
    """As `storage.call`; `absent` if there is no such file."""
    try:
        return call(path, action)
    except ABSENT:
        return absent


def find_files(path: str) -> tuple[File, ...]:
    """The file `path`, or all files below the folder `path`, ordered by name, without hidden files
    and without those of run folders (with a run.json) in it.

    Raises:
        DataError: there is nothing at `path`, or a file or the store cannot be reached.
    """
    if not exists(path):
        raise DataError(f"nothing at {path!r}: expected a file or a folder; check the path")
    if is_remote(path):
        files = call(path, lambda system, root: list(_find_remote(path, system, root)))
    else:
        files = list(_find_local(path))
    visible = [file for file in files if not _is_hidden(file)]
    outside = _outside_of_runs(visible)
    return tuple(sorted(outside, key=lambda file: file.name.split("/")))


def _outside_of_runs(files: Sequence[File]) -> list[File]:
    """The files that are in no run folder below the folder that was listed."""
    ending = f"/{RUN_FILE}"
    runs = tuple(file.name.removesuffix(RUN_FILE) for file in files if file.name.endswith(ending))
    return [file for file in files if not file.name.startswith(runs)]


def _is_hidden(file: File) -> bool:
    """Whether a file, or a folder that it is in, is hidden."""
    return any(part.startswith(".") for part in file.name.split("/"))


def _find_local(path: str) -> Iterator[File]:
    """As fsspec's `find`, but through links to folders as well."""
    root = os.path.dirname(path) or "."
    paths = [path]
    if os.path.isdir(path):
        root = path
        paths = []
        for folder, _, names in walk(path):
            paths.extend(os.path.join(folder, name) for name in names)
    for file in paths:
        with file_errors(f"reading {file}"):
            status = os.stat(file)
        yield File(file, os.path.relpath(file, root), status.st_size, str(status.st_mtime_ns))


def _find_remote(path: str, system: Any, root: str) -> Iterator[File]:
    if system.isfile(root):
        yield _remote_file(path, os.path.basename(root), system.info(root))
        return
    for name, info in system.find(root, detail=True).items():
        inside = name.removeprefix(root).strip("/")
        yield _remote_file(join(path, inside), inside, info)


def _remote_file(path: str, name: str, info: Mapping[str, Any]) -> File:
    """A file with what fsspec says of it."""
    versions = [str(info[key]) for key in _VERSIONS if info.get(key)]
    return File(path, name, int(info["size"]), versions[0] if versions else "")


def walk(path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk` through links as well, but not into run folders (with a run.json); raises DataError
    for a folder that cannot be read, or that is inside itself."""

    def refuse(error: OSError) -> None:
        raise storage_error(f"reading {error.filename}", error) from error

    for folder, folders, names in os.walk(path, onerror=refuse, followlinks=True):
        if os.path.relpath(folder, path).count(os.sep) >= 30:
            raise DataError(
                f"{folder}: more than 30 folders in each other; remove a link to a folder around it"
            )
        folders[:] = [name for name in folders if not _is_run(os.path.join(folder, name))]
        yield folder, folders, names


def _is_run(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, RUN_FILE))


def check_shards(path: str, files: Iterable[File]) -> None:
    """Raises DataError if one of a set of numbered files in the folder `path` is not among its
    files."""
    sets: dict[tuple[str, str, str], set[int]] = {}
    for file in files:
        folder, name = os.path.split(file.name)
        shard = SHARD.match(name)
        if shard:
            stem = os.path.join(folder, shard["stem"])
            kind = suffix(name) + compression(name)
            numbers = sets.setdefault((stem, shard["count"], kind), set())
            numbers.add(int(shard["number"]))
    for (stem, count, _), numbers in sets.items():
        missing = int(count) - sum(number < int(count) for number in numbers)
        if missing > 0:
            first = 0
            while first in numbers:
                first += 1
            raise DataError(
                f"{path!r}: {missing} of the {int(count)} shards of {stem!r} are missing, such as "
                f"{first:0{len(count)}d}-of-{count}; copy the rest, or give single files"
            )


def subfolders(path: str) -> tuple[str, ...]:
    """Names of the folders directly in `path`, sorted; () if there is no such folder."""
    names = []
    if is_remote(path):
        for entry in _ask(path, lambda system, name: system.ls(name, detail=True), []):
            if entry["type"] == "directory":
                names.append(os.path.basename(entry["name"].rstrip("/")))
    else:
        for name in listdir(path):
            if os.path.isdir(os.path.join(path, name)):
                names.append(name)
    return tuple(sorted(names))


def listdir(folder: str) -> list[str]:
    """The names in a folder, sorted; nothing if there is no such folder."""

    def names(system: Any, root: str) -> list[str]:
        inside = []
        for path in system.ls(root, detail=False):
            name = path.rstrip("/").removeprefix(root.rstrip("/")).strip("/")
            if name and "/" not in name:
                inside.append(name)
        return sorted(inside)

    return _ask(folder, names, [])


def glob(pattern: str) -> list[str]:
    """The paths that a glob pattern matches, sorted; ~ is the home folder."""
    if not is_remote(pattern):
        return sorted(local_glob.glob(os.path.expanduser(pattern)))

    def matches(system: Any, name: str) -> list[str]:
        has_wildcard = any(sign in name for sign in "*?[")
        return system.glob(name) if has_wildcard else [name]

    scheme, _, _ = pattern.partition("://")
    paths = call(pattern, matches)
    return sorted(f"{scheme}://{path.strip('/')}" for path in paths)


def expand(name: str, suffixes: Sequence[str]) -> list[str]:
    """The files that a name stands for: itself; the files below a folder that end in one of the
    suffixes, in any case; or what a glob pattern matches. A name for which there is nothing comes
    back as it is.

    Raises:
        DataError: the folder has no such file, or cannot be read.
    """
    if not is_folder(name):
        return [name] if exists(name) else glob(name) or [name]
    paths = []
    for file in find_files(name):
        _, ending = os.path.splitext(file.path)
        if ending.lower() in suffixes:
            paths.append(file.path)
    if not paths:
        raise DataError(f"{name} has no file of these: {', '.join(suffixes)}; give files")
    return paths


@contextmanager
def open_file(path: str, decompress: bool = True, buffer: int = BUFFER) -> Iterator[BinaryIO]:
    """Opens a file for reading, by default decompressing one of COMPRESSIONS; errors inside the
    block name the file.

    Files that are not compressed can seek. A local file is read `buffer` bytes at a time. Raises
    DataError if the file cannot be read, or is a truncated or damaged archive.
    """
    kind = compression(path) if decompress else ""
    with ExitStack() as stack:
        raw = stack.enter_context(_open_raw(path, buffer))
        try:
            yield stack.enter_context(_decompress(raw, kind)) if kind else raw
        except _DAMAGE as error:
            if kind and getattr(error, "errno", None) is None:
                raise DataError(
                    f"{path}: truncated or not a {kind} archive ({error}); copy it again"
                ) from error
            raise storage_error(f"reading {path}", error) from error


def _decompress(raw: BinaryIO, kind: str) -> BinaryIO:
    """The content of a compressed file, which cannot seek; reading it raises one of _DAMAGE if the
    file is damaged."""
    if not raw.read(1):
        raise EOFError("the file is empty")  # gzip accepts it as an empty archive
    raw.seek(0)
    return io.BufferedReader(_DECOMPRESSORS[kind](raw), BUFFER)


def _zstandard(raw: BinaryIO) -> Any:
    import pyarrow  # slow, and Python has no reader of its own before 3.14

    return pyarrow.CompressedInputStream(raw, "zstd")


class _Streams(io.RawIOBase):
    """The content of a file of one or more compressed streams, with zeros between them if any;
    `decompressor()` makes the decompressor of one. bz2.BZ2File and lzma.LZMAFile drop all that
    follows a good stream if it does not begin as another, damaged or not."""

    def __init__(self, raw: BinaryIO, decompressor: Callable[[], Any]):
        self._raw = raw
        self._decompressor = decompressor
        self._stream = decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase; raises EOFError if the last stream has no end."""
        while True:
            data = b""
            if self._stream.eof:
                data = self._next_stream()
                if not data:
                    return 0
                self._stream = self._decompressor()
            elif self._stream.needs_input:
                data = self._raw.read(BUFFER)
                if not data:
                    raise EOFError("its end is missing")
            content = self._stream.decompress(data, len(buffer))
            if content:
                buffer[: len(content)] = content
                return len(content)

    def _next_stream(self) -> bytes:
        """The first bytes of the stream after one that has ended, without zeros before it; empty
        after the last one."""
        data = self._stream.unused_data.lstrip(b"\0")
        while not data:
            block = self._raw.read(BUFFER)
            if not block:
                break
            data = block.lstrip(b"\0")
        return data


def _open_raw(path: str, buffer: int) -> Any:
    try:
        if not is_remote(path):
            return open(path, "rb", buffering=buffer)
        return call(path, lambda system, name: system.open(name, "rb"))
    # ValueError: a zero byte, or a character that no file's name has
    except (OSError, ValueError) as error:
        raise storage_error(f"reading {path}", error) from error


def read(path: str) -> bytes | None:
    """A file's content; None if there is no such file."""
    return _ask(path, lambda system, name: system.cat_file(name), None)


def read_small(path: str | os.PathLike, most: int = SMALL, decompress: bool = False) -> bytes:
    """The content of a file that is read whole: a config, a vocabulary, an index, a document.
    Raises DataError if it cannot be read, is no plain file, or has more than `most` bytes,
    unpacked."""
    path = os.fspath(path)
    # A pipe without a writer would hang where it is opened.
    if not is_remote(path) and os.path.exists(path) and not os.path.isfile(path):
        raise DataError(f"{path}: expected a plain file, not a folder, a device or a pipe")
    with open_file(path, decompress) as file:
        size = most if decompress or is_remote(path) else min(os.path.getsize(path), most)
        content = file.read(size + 1)  # which takes so much memory at once, however little there is
    if len(content) > most:
        raise DataError(
            f"{path} has more than {most:,} bytes: check the path, or cut it into several files"
        )
    return content


def read_range(path: str, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of a file, in one read or request; raises FileError if the file cannot be
    read."""
    if is_remote(path):
        return call(path, lambda system, name: system.cat_file(name, start=start, end=stop))
    with open_file(path, decompress=False, buffer=0) as file:
        file.seek(start)
        return file.read(stop - start)


@contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a new local path; the file written there gets the name `path` at the end of the block,
    unless it raises.

    Readers find the old file or the whole new one, also after a power cut. The folder is made if it
    is missing. An OSError is not translated.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())  # else a power cut may leave the new name with nothing in it
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file completely or not at all, and makes its folder if it is missing."""
    if is_remote(path):
        call(path, lambda system, name: system.pipe_file(name, content), "writing")
        return

    def attempt() -> None:
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)

    _change(attempt, f"writing {path}")


def upload(path: Path, folder: str) -> None:
    """Moves a local file to a remote folder; raises FileError if it cannot be written to."""
    call(join(folder, path.name), lambda system, name: system.put_file(str(path), name), "writing")
    path.unlink()


class StagingFolder:
    """For libraries that write to disks alone: `path` is the folder itself, or a temporary one for
    a bucket's."""

    def __init__(self, folder: str):
        self._folder = folder
        self.path = tempfile.mkdtemp(prefix="gmlp_flax_") if is_remote(folder) else folder

    def close(self) -> None:
        """Moves what was written to the bucket."""
        if self.path != self._folder:
            call(
                self._folder,
                lambda system, name: system.put(f"{self.path}/", f"{name}/", recursive=True),
                "writing",
            )
            shutil.rmtree(self.path)


def make_folder(folder: str) -> None:
    """Makes a folder and those above it, unless they exist. A bucket has none to make."""
    if not is_remote(folder):
        _change(lambda: os.makedirs(folder, exist_ok=True), f"making {folder}")


def move(path: str, target: str) -> str:
    """Moves a file or a folder to `target`, or beside it to TARGET.1, TARGET.2, ... if that is
    taken; returns where.

    In a bucket each file is copied, then the old ones are deleted.
    """
    free = target
    number = 0
    while exists(free):
        number += 1
        free = f"{target}.{number}"
    if is_remote(path):

        def copy(system: Any, name: str) -> None:
            _, root = storage.file_system(free)
            for file in system.find(name):
                system.cp_file(file, root + file.removeprefix(name))

        call(path, copy, "writing")
        remove_all(path)
        return free
    make_folder(os.path.dirname(free))
    _change(lambda: os.rename(path, free), f"moving {path} to {free}")
    return free


def remove(path: str) -> None:
    """Deletes a file, if there is one."""
    with contextlib.suppress(*ABSENT):
        call(path, lambda system, name: system.rm_file(name), "deleting")


def remove_all(path: str) -> None:
    """Deletes a remote file, or all files of a remote folder; of a checkpoint Orbax's mark goes
    first."""

    def delete(system: Any, name: str) -> None:
        def is_no_mark(file: str) -> bool:
            return not file.endswith(f"/{COMMIT_MARK}")

        for file in sorted(system.find(name), key=is_no_mark):
            with contextlib.suppress(FileNotFoundError):
                system.rm_file(file)

    call(path, delete, "deleting")


def _change(action: Callable[[], object], doing: str) -> None:
    """As `retry`, if what is absent or in the way is an error as well."""
    with file_errors(doing):
        retry(action, doing)
