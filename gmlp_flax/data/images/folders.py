"""Labelled images in one folder per class, on disk or in a tar file, as random-access sources."""

import os
import posixpath
import tarfile
from collections.abc import Iterable

import numpy as np

from gmlp_flax.data import fingerprints
from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import cache, files
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord

SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")

IMAGE_BYTES = 1 << 30  # of an encoded image, at most
UNPACKED_BYTES = 8 << 30  # of a compressed tar file's images, at most

_LAYOUT = "expected one folder per class, with images in it"


class ImageSource:
    """Labelled images by position: read-only, picklable, and safe to read from several threads.

    Items are {"image": encoded bytes or pixels, "label": int32, "name"}. If `labels` are known only from the items, a
    source has items and a length of its own.

    Attributes:
        path: the source's name in messages.
        classes: the names of the classes.
        names: of the images.
        labels: int32 [images], positions in `classes`.
    """

    path: str
    classes: tuple[str, ...]
    names: list[str]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict:
        return {"image": self.read(index), "label": self.labels[index], "name": self.names[index]}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, images={len(self)}, classes={len(self.classes)})"

    def read(self, index: int) -> bytes | np.ndarray:
        """The image at a position."""
        raise NotImplementedError

    def fingerprint(self) -> fingerprints.Fingerprint:
        """See `data.fingerprints`: the names and labels of all images, and the content of some."""

        def content(index: int) -> bytes:
            try:
                return bytes(self.read(index))
            except BadRecord:
                return b""

        names, labels = fingerprints.digest(self.names), fingerprints.digest([*self.classes, self.labels.tobytes()])
        sample = fingerprints.digest(map(content, fingerprints.spread(len(self))))
        return {"images": len(self), "names": names, "labels": labels, "content": sample}


def read_image(file: File | str) -> bytes:
    """An image file, a remote one by a copy on this disk; raises BadRecord if it is gone."""
    try:
        with cache.LocalCopy(file) as copy:
            return files.read_small(copy.path, IMAGE_BYTES)
    except DataError as error:
        raise BadRecord(str(error)) from error


class ImageFolder(ImageSource):
    """A folder with one folder of images per class, on this disk or remote; images of a remote one are read by copies.

    The class of an image is the name of the folder that holds it, at any depth; a folder called `images` counts as part
    of the class folder around it (Tiny-ImageNet's layout). Hidden files and files that are not images are ignored.
    Names are paths relative to the folder, in order. An item raises BadRecord if its file is gone.

    Raises:
        DataError: there is no class folder; an image lies outside of the class folders; a class
            folder has no images; or one class name occurs in two places, such as a training and a validation tree.
    """

    def __init__(self, path: str):
        self.path = str(path)
        is_remote = files.is_remote(self.path)
        self._remote = {file.name: file for file in files.find_files(self.path)} if is_remote else {}
        paths, folders = [*self._remote], []
        for folder, subfolders, names in () if is_remote else files.walk(self.path):
            subfolders[:] = [name for name in subfolders if not _is_junk(name)]
            inside = os.path.relpath(folder, self.path).replace(os.sep, "/")
            folders += [f"{inside}/{name}".removeprefix("./") for name in subfolders]
            paths += [f"{inside}/{name}".removeprefix("./") for name in names]
        self.names, self.labels, self.classes = _label_by_folder(self.path, paths, folders)

    def read(self, index: int) -> bytes:
        name = self.names[index]
        return read_image(self._remote.get(name) or os.path.join(self.path, name))


class ImageTar(ImageSource):
    """A tar file with one folder of images per class; layout, items, order and errors as in ImageFolder.

    Of an uncompressed tar file, only the images' offsets are kept, and each item is one read. A compressed one
    (.tar.gz, .tar.xz) allows no random access: its images are unpacked into memory when it is opened, and copied to
    every worker process. That is fine for CIFAR-10; extract a larger set to a folder, or do not compress it (JPEG files
    hardly shrink).
    """

    def __init__(self, path: str):
        self.path = str(path)
        self._copy = cache.LocalCopy(self.path)
        with decode_errors(f"{self.path}: truncated or not a tar file", "copy or download it again"):
            members, folders = self._read_members()
        self.names, self.labels, self.classes = _label_by_folder(self.path, members, folders)
        self._members = [members[name] for name in self.names]

    def _read_members(self) -> tuple[dict[str, bytes | tuple[int, int]], list[str]]:
        """Image name -> its bytes or, in an uncompressed tar, (offset, size); and the names of all folders."""
        members, links, folders, end = {}, {}, [], os.path.getsize(self._copy.path)
        compressed, unpacked = _is_compressed(self._copy.path), 0
        with tarfile.open(self._copy.path, "r:*" if compressed else "r:") as tar:
            for member in tar:
                name = member.name.removeprefix("./").strip("/")
                if member.isdir() and name not in ("", "."):
                    folders.append(name)
                if not _is_image(name):
                    continue
                if member.islnk():
                    links[name] = member.linkname.removeprefix("./")
                elif member.issym():
                    links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
                elif member.isreg():
                    most = IMAGE_BYTES if compressed else min(IMAGE_BYTES, end - member.offset_data)
                    if member.issparse() or not 0 <= member.size <= most:
                        raise tarfile.ReadError(f"{name!r} is a sparse file or claims {member.size:,} bytes")
                    unpacked += member.size if compressed else 0
                    if unpacked > UNPACKED_BYTES:
                        raise DataError(
                            f"{self.path}: its images have more than {UNPACKED_BYTES >> 30} GiB, which lie in memory "
                            "if the tar file is compressed: extract it to a folder, or do not compress it"
                        )
                    file = tar.extractfile(member) if compressed else None
                    members[name] = file.read() if file else (member.offset_data, member.size)
        for name, target in links.items():
            if target not in members:
                raise tarfile.ReadError(f"{name!r} is a link to {target!r}, which is no image before it")
            members[name] = members[target]
        return members, folders

    def read(self, index: int) -> bytes:
        member = self._members[index]
        if isinstance(member, bytes):
            return member
        offset, size = member
        return files.read_range(self._copy.path, offset, offset + size)


def _is_compressed(path: str) -> bool:
    try:
        tarfile.open(path, "r:").close()
    except tarfile.ReadError:
        return True
    return False


def _is_junk(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))


def _is_image(path: str) -> bool:
    return path.lower().endswith(SUFFIXES) and not any(map(_is_junk, _parts(path)))


def _parts(path: str) -> list[str]:
    return path.split("/")


def _class_folder(path: str) -> str:
    """The class folder of an image's path: the folder that holds it, without a last part called `images`."""
    return path.rpartition("/")[0].removesuffix("/images")


def _label_by_folder(
    source: str, paths: Iterable[str], folders: Iterable[str]
) -> tuple[list[str], np.ndarray, tuple[str, ...]]:
    """The images among `paths`, sorted by name and labelled by class folder: (names, labels, classes)."""
    names = sorted(filter(_is_image, paths))
    class_folders = {_class_folder(name) for name in names}
    if not names or class_folders == {""}:
        raise DataError(f"{source!r} has no classes: {_LAYOUT} ({', '.join(SUFFIXES)})")
    if "" in class_folders:
        stray = next(name for name in names if not _class_folder(name))
        raise DataError(f"{source!r}: image {stray!r} lies outside of the class folders; move it into one")
    occupied = {"/".join(parts[:depth]) for parts in map(_parts, class_folders) for depth in range(1, len(parts) + 1)}
    occupied |= {f"{folder}/images" for folder in class_folders}
    for folder in sorted(set(folders) - occupied):
        if not any(map(_is_junk, _parts(folder))):
            raise DataError(f"{source!r}: class folder {folder!r} is empty: {_LAYOUT}; fill or remove it")
    folder_of: dict[str, str] = {}
    for folder in sorted(class_folders):
        name = folder.rpartition("/")[2]
        if other := folder_of.get(name):
            raise DataError(
                f"{source!r}: class {name!r} is both {other!r} and {folder!r}; give the training and the held-out "
                "images separately"
            )
        folder_of[name] = folder
    classes = tuple(sorted(folder_of))
    position = {name: np.int32(label) for label, name in enumerate(classes)}
    labels = [position[_class_folder(name).rpartition("/")[2]] for name in names]
    return names, np.array(labels, np.int32), classes
