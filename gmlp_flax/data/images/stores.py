"""Named files in a folder or in a tar file, for the readers of images.

Names are paths below the folder, with `/` between folders. Hidden files and folders, and files that
operating systems leave behind, are ignored.
"""

import abc
import contextlib
import dataclasses
import functools
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import cache, files
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord

# The suffixes of images. Files with other suffixes are counted, and not read.
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".png", ".bmp", ".gif"),
    *(".webp", ".avif", ".tif", ".tiff", ".ppm", ".pgm"),
)

IMAGE_BYTES = 1 << 30  # the most bytes of an encoded image

_JUNK = (".", "__MACOSX", "$RECYCLE.BIN", "@eaDir")


def suffix(name: str) -> str:
    """The suffix of a file's name in small letters, with its dot, or ""."""
    _, ending = os.path.splitext(name)
    return ending.lower()


def is_image(name: str) -> bool:
    """Whether a file is an image, by its suffix."""
    lower_case = name.lower()
    return lower_case.endswith(SUFFIXES)


def is_hidden(name: str) -> bool:
    """Whether a part of a path is hidden, or was left behind by an operating system."""
    parts = name.split("/")
    return any(part.startswith(_JUNK) for part in parts)


def read_image(file: File | str) -> bytes:
    """The bytes of an image file; a remote file is copied to this disk. Raises BadRecord if it is
    missing or too large."""
    try:
        with cache.LocalCopy(file) as copy:
            return files.read_small(copy.path, IMAGE_BYTES)
    except DataError as error:
        raise BadRecord(str(error)) from error


def local_size(path: str) -> int | None:
    """The size of a file on this disk in bytes; None if it is missing."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: a NUL or another bad character
        status = os.stat(path)
        return status.st_size
    return None


class Reader(abc.ABC):
    """Reads files by their names. Picklable, and safe to use from several threads."""

    @abc.abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a file; raises BadRecord if it is gone."""

    @abc.abstractmethod
    def size(self, name: str) -> int | None:
        """The size of a file in bytes; None if it is missing."""


@dataclasses.dataclass(frozen=True)
class Store:
    """The files of a folder or of a tar file.

    Attributes:
        path: the path of the folder or tar file.
        reader: reads the files.
        names: the names of all files that are not hidden, in order.
        folders: the names of all folders, in order, including empty ones if they are known.
    """

    path: str
    reader: Reader
    names: tuple[str, ...]
    folders: tuple[str, ...]

    @functools.cached_property
    def images(self) -> tuple[str, ...]:
        """The names of the images, in order."""
        names = [name for name in self.names if is_image(name)]
        return tuple(names)

    @functools.cached_property
    def others(self) -> tuple[str, ...]:
        """The names of the files that are not images, in order."""
        names = [name for name in self.names if not is_image(name)]
        return tuple(names)

    def read(self, name: str) -> bytes:
        """The content of a file; raises BadRecord if it is gone."""
        return self.reader.read(name)


class FolderReader(Reader):
    """Reads the files of a folder: files on this disk by their paths, remote files by `remote`."""

    def __init__(self, path: str, remote: Mapping[str, File]):
        self.path = path
        self.remote = remote

    def read(self, name: str) -> bytes:
        local_path = os.path.join(self.path, name)
        file = self.remote.get(name, local_path)
        return read_image(file)

    def size(self, name: str) -> int | None:
        if name in self.remote:
            file = self.remote[name]
            return file.size
        path = os.path.join(self.path, name)
        return local_size(path)


def open_folder(path: str) -> Store:
    """The files of a folder, on this disk or remote."""
    remote: dict[str, File] = {}
    if files.is_remote(path):
        for file in files.find_files(path):
            remote[file.name] = file
        names = list(remote)
        folders = _folders_of(names)
    else:
        names, folders = _walk(path)
    reader = FolderReader(path, remote)
    visible_names = _visible(names)
    visible_folders = _visible(folders)
    return Store(path, reader, visible_names, visible_folders)


def _folders_of(names: Iterable[str]) -> set[str]:
    """The folders that hold some files, except the one that holds them all."""
    folders = set()
    for name in names:
        folder, _, _ = name.rpartition("/")
        folders.add(folder)
    folders.discard("")  # of files right in the folder
    return folders


def _visible(names: Iterable[str]) -> tuple[str, ...]:
    """The names that are not hidden, in order."""
    visible = [name for name in names if not is_hidden(name)]
    visible.sort()
    return tuple(visible)


def _walk(path: str) -> tuple[list[str], set[str]]:
    """The names of all files and of all folders below a folder on this disk."""
    names = []
    folders = set()
    for folder, subfolders, members in files.walk(path):
        relative = os.path.relpath(folder, path)
        prefix = ""
        if relative != ".":
            prefix = f"{relative}/"
        for name in members:
            names.append(prefix + name)
        # In place: what is left in the list is searched next.
        subfolders[:] = [name for name in subfolders if not is_hidden(name)]
        for name in subfolders:
            folders.add(prefix + name)
    return names, folders


class _Member(NamedTuple):
    """A file in a tar file: its name, and its range of bytes in the tar file."""

    name: str
    start: int
    stop: int


class TarReader(Reader):
    """Reads the files of a tar file, each by one read at its offset.

    Args:
        copy: the tar file on this disk.
        members: the files by their names.
    """

    def __init__(self, copy: cache.LocalCopy, members: Mapping[str, _Member]):
        self.copy = copy
        self.members = members

    def read(self, name: str) -> bytes:
        member = self.members[name]
        return files.read_range(self.copy.path, member.start, member.stop)

    def size(self, name: str) -> int:
        member = self.members[name]
        return member.stop - member.start


def open_tar(path: str) -> Store:
    """The files of a tar file, and of tar files inside it, which become folders.

    Raises:
        DataError: the file is damaged, truncated, compressed, or not a tar file; or it has a link
            or a path with `..`.
    """
    copy = cache.LocalCopy(path)
    folders = []
    members: dict[str, _Member] = {}
    end = os.path.getsize(copy.path)
    advice = "copy it again if it is damaged, or unpack it if it is compressed"
    with (
        decode_errors(f"{path}: truncated or not a tar file", advice),
        tarfile.open(copy.path, "r:") as tar,
    ):
        for entry in _tar_entries(tar, end):
            if isinstance(entry, str):
                folders.append(entry)
            else:
                members[entry.name] = entry
    reader = TarReader(copy, members)
    names = sorted(members)
    folders.sort()
    return Store(path, reader, tuple(names), tuple(folders))


def _tar_entries(
    tar: tarfile.TarFile, end: int, prefix: str = "", start: int = 0
) -> Iterator[str | _Member]:
    """The folders (names) and files of a tar file, also of tar files inside it.

    Args:
        tar: the opened tar file.
        end: the bytes of the outermost tar file.
        prefix: comes before all names.
        start: where `tar` begins in the outermost tar file.
    """
    for member in tar:
        path = member.name.removeprefix("./")
        name = prefix + path.strip("/")
        if ".." in name.split("/"):
            raise tarfile.ReadError(f"{name!r} is outside of the file: pack it again without '..'")
        if is_hidden(name) or name == prefix:
            continue
        if member.islnk() or member.issym():
            raise tarfile.ReadError(f"{name!r} is a link: unpack the file, then links are followed")
        if member.isdir():
            yield name
        if not member.isreg():
            continue
        first = start + member.offset_data
        _require_bytes(member, name, first, end)
        if suffix(name) != ".tar":
            stop = first + member.size
            yield _Member(name, first, stop)
            continue
        folder, _ = os.path.splitext(name)
        content: Any = tar.extractfile(member)
        with tarfile.open(fileobj=content, mode="r:") as inside:
            yield from _tar_entries(inside, end, f"{folder}/", first)
    _require_end(tar)


def _require_bytes(member: tarfile.TarInfo, name: str, first: int, end: int) -> None:
    """Raises ReadError unless the bytes of a member are in one piece in the tar file."""
    size = member.size
    stop = first + size
    is_inside = first <= stop <= end
    if member.issparse() or not is_inside:
        raise tarfile.ReadError(f"{name!r} is a sparse file or claims {size:,} bytes")


def _require_end(tar: tarfile.TarFile) -> None:
    """Raises ReadError unless only zeros follow the last member.

    Tarfile takes a damaged header for the end, and does not notice a file that is cut off after a
    member.
    """
    stream: Any = tar.fileobj
    stream.seek(tar.offset)
    has_end = False
    while block := stream.read(files.BUFFER):
        if block.strip(b"\0"):
            raise tarfile.ReadError("its members do not follow each other")
        has_end = True
    if not has_end:
        raise tarfile.ReadError("its end is missing")
