"""Local and remote files: read, written, listed and moved, with one-line errors (see storage)."""

import contextlib
import functools
import glob as local_glob
import os
import re
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from gmlp_flax.errors import DataError, listed
from gmlp_flax.io import storage
from gmlp_flax.io.compression import (
    BUFFER,
    DAMAGE,
    compression,
    open_compressed,
    suffix,
)
from gmlp_flax.io.storage import ABSENT, call, file_errors, is_remote, retry, storage_error

T = TypeVar("T")
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
        root = folder.rstrip("/")
        return "/".join([root, *names])
    return os.path.join(folder, *names)


def user_path(path: str | os.PathLike[str]) -> str:
    """A path as a user writes it, with the home folder in place of a leading ~ or ~USER. Neither a
    shell, after `--workdir=`, nor Python expands these. Raises DataError if it is not a path."""
    is_path = isinstance(path, str | os.PathLike)
    if not is_path:
        kind = type(path).__name__
        raise DataError(f"a path is {kind} {path!r:.60}: expected text")
    text = os.fspath(path)
    return os.path.expanduser(text)


def absolute(path: str | os.PathLike[str]) -> str:
    """The path, independent of the current folder; see also `user_path`."""
    name = user_path(path)
    if is_remote(name):
        return name.rstrip("/")
    return os.path.abspath(name)


def count_by_suffix(names: Iterable[str]) -> str:
    """How many files have each suffix, for messages: ".txt 3, .xml 1"; "" without files."""
    counts: Counter[str] = Counter()
    for name in names:
        _, ending = os.path.splitext(name)
        kind = ending.lower() or "no suffix"
        counts[kind] += 1
    most_common_first = []
    for ending, count in counts.most_common():
        most_common_first.append(f"{ending} {count:,}")
    return listed(most_common_first, 4)


def exists(path: str | os.PathLike) -> bool:
    """Whether there is a file or a folder. A bucket itself is taken to exist, as asking for it
    needs another permission.

    Raises FileError if the disk or the store does not answer; so do the functions below.
    """
    if is_remote(path):
        _, _, name = os.fspath(path).partition("://")
        is_bucket = "/" not in name.strip("/")
        if is_bucket:
            return True
    return _ask(path, lambda system, name: bool(system.info(name)), absent=False)


def is_folder(path: str) -> bool:
    """Whether there is a folder at `path`."""
    return _ask(path, lambda system, name: system.isdir(name), absent=False)


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
        find_below = functools.partial(_find_remote, path)
        files = call(path, find_below)
    else:
        files = list(_find_local(path))
    visible = [file for file in files if not _is_hidden(file)]
    outside = _outside_of_runs(visible)
    outside.sort(key=lambda file: file.name.split("/"))
    return tuple(outside)


def _outside_of_runs(files: Sequence[File]) -> list[File]:
    """The files that are in no run folder below the folder that was listed."""
    runs = []
    for file in files:
        if file.name.endswith(f"/{RUN_FILE}"):
            runs.append(file.name.removesuffix(RUN_FILE))
    run_folders = tuple(runs)
    return [file for file in files if not file.name.startswith(run_folders)]


def _is_hidden(file: File) -> bool:
    """Whether a file, or a folder that it is in, is hidden."""
    parts = file.name.split("/")
    return any(part.startswith(".") for part in parts)


def _find_local(path: str) -> Iterator[File]:
    """As fsspec's `find`, but through links to folders as well."""
    if not os.path.isdir(path):
        root = os.path.dirname(path) or "."
        yield _local_file(path, root)
        return
    for folder, _, names in walk(path):
        for name in names:
            file_path = os.path.join(folder, name)
            yield _local_file(file_path, path)


def _local_file(path: str, root: str) -> File:
    """A file below the folder `root`, with its size and modification time."""
    with file_errors(f"reading {path}"):
        status = os.stat(path)
    name = os.path.relpath(path, root)
    version = str(status.st_mtime_ns)
    return File(path, name, status.st_size, version)


def _find_remote(path: str, system: Any, root: str) -> list[File]:
    if system.isfile(root):
        name = os.path.basename(root)
        info = system.info(root)
        return [_remote_file(path, name, info)]
    files = []
    info_by_path = system.find(root, detail=True)
    for path_in_store, info in info_by_path.items():
        name = path_in_store.removeprefix(root).strip("/")
        file_path = join(path, name)
        file = _remote_file(file_path, name, info)
        files.append(file)
    return files


def _remote_file(path: str, name: str, info: Mapping[str, Any]) -> File:
    """A file with what fsspec says of it."""
    stamps = map(info.get, _VERSIONS)
    present_stamps = filter(None, stamps)
    stamp = next(present_stamps, "")
    version = str(stamp)
    size = int(info["size"])
    return File(path, name, size, version)


def walk(path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk` that follows links, but does not enter run folders (with a run.json). Raises
    DataError for a folder that cannot be read, or that is inside itself."""

    def refuse(error: OSError) -> None:
        raise storage_error(f"reading {error.filename}", error) from error

    for folder, folders, names in os.walk(path, onerror=refuse, followlinks=True):
        relative = os.path.relpath(folder, path)
        depth = relative.count(os.sep)
        if depth >= 30:
            raise DataError(
                f"{folder}: more than 30 nested folders; remove a link to a folder around it"
            )
        entered = []
        for name in folders:
            subfolder = os.path.join(folder, name)
            if not _is_run(subfolder):
                entered.append(name)
        folders[:] = entered  # in place: these are walked next
        yield folder, folders, names


def _is_run(folder: str) -> bool:
    run_file = os.path.join(folder, RUN_FILE)
    return os.path.exists(run_file)


class _ShardSet(NamedTuple):
    """Files that are numbered as parts of one whole."""

    stem: str  # the path below the folder that was searched, up to the number
    count: str  # the number of files, with the leading zeros of its spelling
    kind: str  # the suffixes


def check_shards(path: str, files: Iterable[File]) -> None:
    """Raises DataError if one of a set of numbered files in the folder `path` is not among its
    files."""
    numbers_of: dict[_ShardSet, set[int]] = {}
    for file in files:
        folder, name = os.path.split(file.name)
        shard = SHARD.match(name)
        if not shard:
            continue
        shard_set = _ShardSet(
            stem=os.path.join(folder, shard["stem"]),
            count=shard["count"],
            kind=suffix(name) + compression(name),
        )
        number = int(shard["number"])
        numbers = numbers_of.setdefault(shard_set, set())
        numbers.add(number)
    for shard_set, numbers in numbers_of.items():
        _check_shard_set(path, shard_set, numbers)


def _check_shard_set(path: str, shard_set: _ShardSet, numbers: set[int]) -> None:
    """Raises DataError unless all files of a set are there, by their numbers."""
    count = int(shard_set.count)
    present = {number for number in numbers if number < count}
    missing = count - len(present)
    if missing == 0:
        return
    first_missing = 0
    while first_missing in present:
        first_missing += 1
    digits = len(shard_set.count)
    raise DataError(
        f"{path!r}: {missing} of the {count} shards of {shard_set.stem!r} are missing, such as "
        f"{first_missing:0{digits}d}-of-{shard_set.count}; copy the rest, or give single files"
    )


def subfolders(path: str) -> tuple[str, ...]:
    """Names of the folders directly in `path`, sorted; () if there is no such folder."""
    if is_remote(path):
        return _remote_subfolders(path)
    folders = []
    for name in listdir(path):
        folder = os.path.join(path, name)
        if os.path.isdir(folder):
            folders.append(name)
    return tuple(folders)


def _remote_subfolders(path: str) -> tuple[str, ...]:
    entries = _ask(path, lambda system, name: system.ls(name, detail=True), [])
    folders = []
    for entry in entries:
        if entry["type"] == "directory":
            folder = entry["name"].rstrip("/")
            name = os.path.basename(folder)
            folders.append(name)
    return tuple(sorted(folders))


def listdir(folder: str) -> list[str]:
    """The names in a folder, sorted; nothing if there is no such folder."""

    def names(system: Any, root: str) -> list[str]:
        inside = []
        parent = root.rstrip("/")
        for path in system.ls(root, detail=False):
            name = path.rstrip("/").removeprefix(parent).strip("/")
            if name and "/" not in name:
                inside.append(name)
        return sorted(inside)

    return _ask(folder, names, [])


def glob(pattern: str) -> list[str]:
    """The paths that a glob pattern matches, sorted; ~ is the home folder."""
    if not is_remote(pattern):
        expanded = os.path.expanduser(pattern)
        return sorted(local_glob.glob(expanded))
    scheme, _, rest = pattern.partition("://")
    has_wildcard = any(sign in rest for sign in "*?[")
    if has_wildcard:
        names = call(pattern, lambda system, name: system.glob(name))
    else:
        names = call(pattern, lambda _, name: [name])
    paths = []
    for name in names:
        path_in_store = name.strip("/")
        paths.append(f"{scheme}://{path_in_store}")
    return sorted(paths)


def expand(name: str, suffixes: Sequence[str]) -> list[str]:
    """The files that a name stands for: itself; the files below a folder that end in one of the
    suffixes, in any case; or what a glob pattern matches. A name for which there is nothing comes
    back as it is.

    Raises:
        DataError: the folder has no such file, or cannot be read.
    """
    if not is_folder(name):
        if exists(name):
            return [name]
        return glob(name) or [name]
    paths = []
    for file in find_files(name):
        _, ending = os.path.splitext(file.path)
        if ending.lower() in suffixes:
            paths.append(file.path)
    if not paths:
        expected = ", ".join(suffixes)
        raise DataError(f"{name} has no file of these: {expected}; give files")
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
        opened = _open_raw(path, buffer)
        raw = stack.enter_context(opened)
        try:
            if kind:
                unpacked = open_compressed(raw, kind)
                yield stack.enter_context(unpacked)
            else:
                yield raw
        except DAMAGE as error:
            is_of_system = getattr(error, "errno", None) is not None
            if kind and not is_of_system:
                raise DataError(
                    f"{path}: truncated or not a {kind} archive ({error}); copy it again"
                ) from error
            raise storage_error(f"reading {path}", error) from error


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
    return _ask(path, lambda system, name: system.cat_file(name), absent=None)


def read_small(path: str | os.PathLike, most: int = SMALL, decompress: bool = False) -> bytes:
    """The content of a file that is read whole: a config, a vocabulary, an index, a document.
    Raises DataError if it cannot be read, is not a plain file, or has more than `most` bytes,
    unpacked."""
    path = os.fspath(path)
    is_local = not is_remote(path)
    if is_local:
        _refuse_special(path)
    with open_file(path, decompress) as file:
        expected_size = most
        if is_local and not decompress:
            file_size = os.path.getsize(path)
            expected_size = min(file_size, most)
        # Allocates that much memory at once, however small the file.
        content = file.read(expected_size + 1)
    if len(content) > most:
        raise DataError(
            f"{path} has more than {most:,} bytes: check the path, or cut it into several files"
        )
    return content


def _refuse_special(path: str) -> None:
    """Raises DataError if something other than a plain file is at a local path: a pipe without a
    writer would hang where it is opened."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise DataError(f"{path}: expected a plain file, not a folder, a device or a pipe")


def read_range(path: str, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of a file, in one read or request; raises FileError if the file cannot be
    read."""
    if is_remote(path):

        def fetch(system: Any, name: str) -> bytes:
            return system.cat_file(name, start=start, end=stop)

        return call(path, fetch)
    size = stop - start
    with open_file(path, decompress=False, buffer=0) as file:
        file.seek(start)
        return file.read(size)


@contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a new local path; the file written there gets the name `path` at the end of the block,
    unless it raises.

    Readers find the old file or the whole new one, also after a power cut. The folder is made if it
    is missing. An OSError is not translated.
    """
    path = Path(path)
    unique = secrets.token_hex(4)
    temporary = path.with_name(f".{path.name}.{unique}.tmp")
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
    local_path = str(path)
    target = join(folder, path.name)
    call(target, lambda system, name: system.put_file(local_path, name), "writing")
    path.unlink()


class StagingFolder:
    """A folder for libraries that only write to disks: `path` is the folder itself or, for a folder
    of a bucket, a temporary one."""

    def __init__(self, folder: str):
        self._folder = folder
        self.path = folder
        if is_remote(folder):
            self.path = tempfile.mkdtemp(prefix="gmlp_flax_")

    def close(self) -> None:
        """Moves what was written to the bucket."""
        if self.path != self._folder:

            def upload_all(system: Any, name: str) -> None:
                system.put(f"{self.path}/", f"{name}/", recursive=True)

            call(self._folder, upload_all, "writing")
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
        _move_remote(path, free)
        return free
    parent = os.path.dirname(free)
    make_folder(parent)
    _change(lambda: os.rename(path, free), f"moving {path} to {free}")
    return free


def _move_remote(path: str, target: str) -> None:
    """Copies each file of a bucket, then deletes the old ones."""

    def copy(system: Any, name: str) -> None:
        _, target_root = storage.file_system(target)
        for file in system.find(name):
            relative = file.removeprefix(name)
            system.cp_file(file, target_root + relative)

    call(path, copy, "writing")
    remove_all(path)


def remove(path: str) -> None:
    """Deletes a file, if there is one."""
    with contextlib.suppress(*ABSENT):
        call(path, lambda system, name: system.rm_file(name), "deleting")


def remove_all(path: str) -> None:
    """Deletes a remote file, or all files of a remote folder; Orbax's mark of a checkpoint goes
    first."""

    def is_no_mark(file: str) -> bool:
        return not file.endswith(f"/{COMMIT_MARK}")

    def delete(system: Any, name: str) -> None:
        found = system.find(name)
        marks_first = sorted(found, key=is_no_mark)
        for file in marks_first:
            with contextlib.suppress(FileNotFoundError):
                system.rm_file(file)

    call(path, delete, "deleting")


def _change(action: Callable[[], object], doing: str) -> None:
    """As `retry`, for actions where an absent or an existing file is an error as well."""
    with file_errors(doing):
        retry(action, doing)
