"""Labelled images as random-access sources: folders, tar files and arrays, and their held-out split.

A source has `len(source)`, `source[i]` (a dict), `.classes` (names, the label is the position) and `.labels`
(int32 [examples]). Sources are read-only, picklable and safe to read from several threads.
"""

import lzma
import os
import tarfile
import zlib
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from gmlp_flax.data.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")

_LAYOUT = "expected one folder a class, with images in it"


class ImageSource(Protocol):
    """What the functions below need of a source."""

    classes: tuple[str, ...]
    labels: np.ndarray

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict: ...


class ImageFolder:
    """A folder of class folders of images.

    The class of an image is the name of the folder it lies in, however deep; a folder called `images` counts as part
    of the class folder around it (Tiny-ImageNet's layout). Files that are not images and hidden files are ignored.
    Items are {"image": encoded bytes, "label": int32, "name": path relative to the folder}, in the order of names.

    Raises:
        DataError: no such folder, no class folders, an image outside of them, a class folder without images, or one
            class name in two places (a training and a validation tree side by side, say).
    """

    def __init__(self, path: str):
        self.path = str(path)
        if not os.path.isdir(self.path):
            raise DataError(f"no image folder at {self.path!r}: {_LAYOUT}; check the path")
        files, folders = [], []
        for folder, subfolders, names in os.walk(self.path, followlinks=True):
            subfolders[:] = [name for name in subfolders if not _is_junk(name)]
            inside = os.path.relpath(folder, self.path).replace(os.sep, "/")
            folders += [f"{inside}/{name}".removeprefix("./") for name in subfolders]
            files += [f"{inside}/{name}".removeprefix("./") for name in names]
        self.names, self.labels, self.classes = _labelled(self.path, files, folders)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict:
        name = self.names[index]
        with open(os.path.join(self.path, name), "rb") as file:
            data = file.read()
        return {"image": data, "label": self.labels[index], "name": name}

    def __repr__(self) -> str:
        return f"ImageFolder({self.path!r}, images={len(self)}, classes={len(self.classes)})"


class ImageTar:
    """A tar file of class folders of images; layout, items, order and errors as in ImageFolder.

    Of an uncompressed tar only the members' offsets are kept, and each item is one read at its offset. A compressed
    one (.tar.gz, .tar.xz) allows no random access: its images are unpacked into memory, and into that of every
    worker process, so large sets are better left uncompressed (JPEGs hardly shrink).
    """

    def __init__(self, path: str):
        self.path = str(path)
        if not os.path.isfile(self.path):
            raise DataError(f"no tar file at {self.path!r}; check the path")
        try:
            members, folders = self._read_members()
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            raise DataError(f"{self.path}: truncated or not a tar file ({error}); copy or download it again") from error
        self.names, self.labels, self.classes = _labelled(self.path, members, folders)
        self._members = [members[name] for name in self.names]

    def _read_members(self) -> tuple[dict[str, bytes | tuple[int, int]], list[str]]:
        """Maps image names to their bytes or, in an uncompressed tar, to (offset, size); and lists the folders."""
        members, folders = {}, []
        compressed = _is_compressed(self.path)
        with tarfile.open(self.path, "r:*" if compressed else "r:") as tar:
            for member in tar:
                name = member.name.removeprefix("./").strip("/")
                if member.isdir() and name not in ("", "."):
                    folders.append(name)
                elif member.isreg() and _is_image(name):
                    place = (member.offset_data, member.size)
                    members[name] = tar.extractfile(member).read() if compressed else place
        return members, folders

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict:
        member = self._members[index]
        if not isinstance(member, bytes):
            # Opened anew each time: a file position shared between threads or processes would be a race.
            with open(self.path, "rb") as file:
                offset, size = member
                file.seek(offset)
                member = file.read(size)
        return {"image": member, "label": self.labels[index], "name": self.names[index]}

    def __repr__(self) -> str:
        return f"ImageTar({self.path!r}, images={len(self)}, classes={len(self.classes)})"


class ImageArrays:
    """Images already decoded: items are {"image": images[i], "label": int32}.

    Args:
        images: uint8 [examples, height, width, channels].
        labels: int32 [examples], positions in `classes`.
        classes: the class names.
        name: what the source calls itself.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], name: str):
        self.images, self.labels, self.classes, self.name = images, labels, classes, name

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict:
        return {"image": self.images[index], "label": self.labels[index]}

    def __repr__(self) -> str:
        return f"ImageArrays({self.name!r}, images={len(self)}, classes={len(self.classes)})"


class Subset:
    """The examples of `source` at `indices` (int [examples]), in that order, with the classes of the whole."""

    def __init__(self, source: ImageSource, indices: np.ndarray):
        self.source = source
        self.indices = np.asarray(indices, np.int64)
        self.classes = source.classes
        self.labels = source.labels[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> dict:
        return self.source[int(self.indices[index])]

    def __repr__(self) -> str:
        return f"Subset({self.source!r}, images={len(self)}, crc={zlib.crc32(self.indices.tobytes()):08x})"


def open_images(path: str) -> ImageFolder | ImageTar:
    """Opens a folder or a tar file of class folders; raises DataError where there is neither."""
    if not os.path.exists(path):
        raise DataError(f"no images at {str(path)!r}: expected a folder or a tar file of class folders; check the path")
    return ImageFolder(path) if os.path.isdir(path) else ImageTar(path)


def split_images(source: ImageFolder | ImageTar, heldout_share: float) -> tuple[Subset, Subset]:
    """Splits a source into (train, heldout), class by class, by the hash of the images' names.

    Each class holds out about `heldout_share` of its images and has at least one on either side.

    Raises:
        DataError: `heldout_share` is not between 0 and 1, or a class has a single image.
    """
    if not 0 < heldout_share < 1:
        raise DataError(f"heldout_share={heldout_share} is not between 0 and 1; 0.1 holds out 10 % of the images")
    hashes = np.array([zlib.crc32(name.encode("utf-8", "surrogateescape")) for name in source.names])
    train, heldout = [], []
    for label, name in enumerate(source.classes):
        members = np.flatnonzero(source.labels == label)
        if len(members) < 2:
            raise DataError(f"class {name!r} of {source!r} has a single image: add one, or remove the class")
        members = members[np.argsort(hashes[members], kind="stable")]
        cut = np.clip(np.sum(hashes[members] < heldout_share * 2**32), 1, len(members) - 1)
        heldout.append(members[:cut])
        train.append(members[cut:])
    return Subset(source, np.sort(np.concatenate(train))), Subset(source, np.sort(np.concatenate(heldout)))


def check_same_classes(train: ImageSource, heldout: ImageSource) -> None:
    """Raises DataError, naming the classes, unless both sources have the same ones."""
    missing = sorted(set(train.classes) - set(heldout.classes))
    added = sorted(set(heldout.classes) - set(train.classes))
    if missing or added:
        raise DataError(
            f"held-out classes differ from the training ones: {_listed(missing)} only in {train!r}, "
            f"{_listed(added)} only in {heldout!r}; give both the same class folders"
        )


def _listed(names: list[str], most: int = 5) -> str:
    rest = [f"{len(names) - most} more"] if len(names) > most else []
    return ", ".join([*map(repr, names[:most]), *rest]) or "none"


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
    """The class folder of an image's path: the folder it lies in, less a last part called `images`."""
    return path.rpartition("/")[0].removesuffix("/images")


def _labelled(
    source: str, files: Iterable[str], folders: Iterable[str]
) -> tuple[list[str], np.ndarray, tuple[str, ...]]:
    """Sorts the images among `files` by name and labels them by class folder: (names, labels, classes)."""
    names = sorted(filter(_is_image, files))
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
    where = {}
    for folder in sorted(class_folders):
        name = folder.rpartition("/")[2]
        if name in where:
            raise DataError(
                f"{source!r}: class {name!r} is both {where[name]!r} and {folder!r}; give the training and the "
                "held-out images separately"
            )
        where[name] = folder
    classes = tuple(sorted(where))
    position = {name: np.int32(label) for label, name in enumerate(classes)}
    labels = [position[_class_folder(name).rpartition("/")[2]] for name in names]
    return names, np.array(labels, np.int32), classes
