"""Labelled images in one folder per class, on disk or in a tar file, as random-access sources."""

import abc
import contextlib
import copy
import functools
import io
import os
import tarfile
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, BinaryIO, Self

import numpy as np
from PIL import Image

from gmlp_flax.data import fingerprints
from gmlp_flax.data.images.layout import Layout, is_hidden, is_junk, is_label, suffix
from gmlp_flax.data.splits import TRAIN_SPLIT, missing_split
from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import cache, files
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord

# Images by their suffix; other files are images if Pillow opens them.
SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".jfif",
    ".png",
    ".bmp",
    ".gif",
    ".webp",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
)

IMAGE_BYTES = 1 << 30  # of an encoded image, at most

# which Pillow opens, and does not decode by itself
_NO_PIXELS = ("BUFR", "EPS", "FITS", "GRIB", "HDF5", "MPEG", "WMF")
_TRIES = 100  # files of one suffix in which no image is found, before all others count as none
_HEADER = 1 << 16  # bytes of a remote file


class ImageSource:
    """Labelled images by position: read-only, picklable, and safe to read from several threads.

    Items are {"image": encoded bytes or pixels, "label": int32, "name"}. If `labels` are known only
    from the items, a source has items and a length of its own.

    Attributes:
        path: the source's name in messages.
        classes: the names of the classes.
        names: of the images.
        labels: int32 [images], positions in `classes`.
        splits: TFDS's name of each split that `of_split` takes -> its folders; {} for a TFDS folder
            or without splits.
        notes: what was assumed and what is ignored, a line each.
        dark: whether 16-bit images may be dark, as others are bright (see views.look_into).
        without_classes: folders of splits that cannot be read, as their images have no classes.
    """

    path: str
    classes: tuple[str, ...]
    names: list[str]
    labels: np.ndarray
    splits: Mapping[str, Sequence[str]] = MappingProxyType({})
    notes: tuple[str, ...] = ()
    dark: bool = False
    without_classes: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict:
        return {"image": self.read(index), "label": self.labels[index], "name": self.names[index]}

    def read(self, index: int) -> bytes | np.ndarray:
        """The image at a position: encoded bytes or pixels. A source defines this or
        `__getitem__`."""
        return self[index]["image"]

    def content(self, index: int) -> bytes:
        """The bytes of the image at a position; none if it cannot be read."""
        with contextlib.suppress(BadRecord):
            return bytes(self.read(index))
        return b""

    def fingerprint(self) -> fingerprints.Fingerprint:
        """See `data.fingerprints`: the names and labels of all images, and the content of some."""

        names, labels = (
            fingerprints.digest(self.names),
            fingerprints.digest([*self.classes, self.labels.tobytes()]),
        )
        sample = fingerprints.digest(map(self.content, fingerprints.spread(len(self))))
        return {"images": len(self), "names": names, "labels": labels, "content": sample}

    def of_split(self, split: str = "") -> "ImageSource":
        """The images of one of `splits`."""
        return self

    def default_split(self, split: str) -> str:
        """The split, or by default that to train on; "" if there are none. Raises DataError: there
        is no such split."""
        split = split or (
            TRAIN_SPLIT if TRAIN_SPLIT in self.splits else next(iter(self.splits), "")
        )
        if split and split not in self.splits:
            raise missing_split(self.path, split, tuple(self.splits))
        return split

    def file_of(self, index: int) -> tuple[int, Hashable] | None:
        """The bytes of the image at a position, and what is the same for the same file alone; None
        if not known."""
        return None


def read_image(file: File | str) -> bytes:
    """An image file, a remote one by a copy on this disk; raises BadRecord if it is gone."""
    try:
        with cache.LocalCopy(file) as copy:
            return files.read_small(copy.path, IMAGE_BYTES)
    except DataError as error:
        raise BadRecord(str(error)) from error


def local_file(path: str) -> tuple[int, Hashable] | None:
    """The bytes of a file on this disk, and what is the same for the same file alone; None if it is
    gone."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_size, (status.st_dev, status.st_ino)
    return None


class ImageFiles(ImageSource, abc.ABC):
    """Images among the files of a folder or a tar file, in one folder per class, perhaps with
    splits (see layout).

    Names are paths relative to the folder, in order. Hidden files are left out; other files that
    are no images are counted in a note. `of_split` gives the labelled images, or those of a split.
    """

    _members: dict[str, Any]  # what the file of each name is read by, if not by the name

    def _arrange(
        self, images: Iterable[str], others: Iterable[str], folders: Iterable[str]
    ) -> None:
        self._layout = Layout(self.path, images, others, folders, self._read_file)
        self.splits, self.without_classes = self._layout.splits, self._layout.without_classes

    def of_split(self, split: str = "") -> Self:
        """The images of a split with their labels: by default all if there are no splits, or those
        to train on.

        Raises:
            DataError: there is no such split; or an image without a class, a class without images,
                or a folder that can be read in two ways.
        """
        found, labelled = self._layout.classes(self.default_split(split)), copy.copy(self)
        labelled.names = sorted(found)
        classes, labels = np.unique(
            np.array([found[name] for name in labelled.names]), return_inverse=True
        )
        labelled.classes, labelled.labels = tuple(classes.tolist()), labels.astype(np.int32)
        labelled.notes = (*self._layout.notes, *self._layout.about_others())
        labelled._members = {
            name: self._members[name] for name in labelled.names if name in self._members
        }
        del labelled._layout  # which worker processes need not know
        return labelled

    @abc.abstractmethod
    def _read_file(self, name: str) -> bytes:
        """The bytes of an image or a table."""

    def read(self, index: int) -> bytes:
        return self._read_file(self.names[index])


class ImageFolder(ImageFiles):
    """A folder of images, on this disk or remote; images of a remote one are read by copies.

    An item raises BadRecord if its file is gone.

    Raises:
        DataError: there are no images, or the folders can be read in two ways.
    """

    def __init__(self, path: str):
        self.path, images, others, folders = str(path), [], [], []
        is_remote, misses = files.is_remote(self.path), Counter()
        self._members = (
            {file.name: file for file in files.find_files(self.path)} if is_remote else {}
        )
        for name, file in self._members.items():
            (
                images if _is_image(name, functools.partial(_header, file), misses) else others
            ).append(name)
        for folder, subfolders, names in () if is_remote else files.walk(self.path):
            subfolders[:] = [name for name in subfolders if not is_junk(name)]
            inside = os.path.relpath(folder, self.path).replace(os.sep, "/")
            folders += [f"{inside}/{name}".removeprefix("./") for name in subfolders]
            for name in names:
                is_image = _is_image(
                    name, functools.partial(open, os.path.join(folder, name), "rb"), misses
                )
                (images if is_image else others).append(f"{inside}/{name}".removeprefix("./"))
        self._arrange(images, others, folders)

    def _read_file(self, name: str) -> bytes:
        return read_image(self._members.get(name) or os.path.join(self.path, name))

    def file_of(self, index: int) -> tuple[int, Hashable] | None:
        name = self.names[index]
        if file := self._members.get(name):
            return file.size, file.path
        return local_file(os.path.join(self.path, name))


class ImageTar(ImageFiles):
    """A tar file with one folder of images per class; layout, items, order and errors as in
    ImageFolder.

    The images' offsets are kept, and each item is one read. A compressed tar file allows no random
    access: extract it to a folder, or do not compress it, as encoded images hardly shrink.
    """

    def __init__(self, path: str):
        self.path, self._members, others, folders, misses = str(path), {}, [], [], Counter()
        self._copy = cache.LocalCopy(self.path)
        advice = "unpack it if it is packed, copy it again if it is damaged, or name it .parquet, .arrow, .csv or .npz"
        with (
            decode_errors(f"{self.path}: truncated or not a tar file", advice),
            tarfile.open(self._copy.path, "r:") as tar,
        ):
            for name, place, open_file in _tar_content(tar, os.path.getsize(self._copy.path)):
                if place is None:
                    folders.append(name)
                    continue
                is_image = _is_image(name, open_file, misses)
                if not is_image:
                    others.append(name)
                if is_image or is_label(name):
                    open_file()
                    self._members[name] = place
        self._arrange(self._members.keys() - {*others}, others, folders)

    def _read_file(self, name: str) -> bytes:
        return files.read_range(self._copy.path, *self._members[name])

    def file_of(self, index: int) -> tuple[int, Hashable]:
        first, stop = self._members[self.names[index]]
        return stop - first, (self.path, first)


def _tar_content(
    tar: tarfile.TarFile, end: int, prefix: str = "", start: int = 0
) -> Iterator[tuple[str, Any, Any]]:
    """What a tar file that begins at byte `start` of one with `end` bytes holds, also in tar files
    inside it.

    Yields:
        The name of each folder, None, None; of each file, its name, its range of bytes, and a
        function that opens it.
    """

    def open_member(member: tarfile.TarInfo, name: str) -> Any:
        if member.issparse() or not 0 <= member.size <= end - member.offset_data:
            raise tarfile.ReadError(f"{name!r} is a sparse file or claims {member.size:,} bytes")
        return tar.extractfile(member)

    for member in tar:
        name, first = prefix + member.name.removeprefix("./").strip("/"), start + member.offset_data
        if member.isdir() and name not in (prefix, f"{prefix}."):
            yield name, None, None
        elif is_hidden(name):
            continue
        elif (member.islnk() or member.issym()) and suffix(name) in SUFFIXES:
            raise tarfile.ReadError(
                f"{name!r} is a link: extract it to a folder, where links are followed"
            )
        elif member.isreg() and suffix(name) == ".tar":
            with tarfile.open(fileobj=open_member(member, name), mode="r:") as inside:
                yield from _tar_content(inside, end, f"{name[:-4]}/", first)
        elif member.isreg():
            yield name, (first, first + member.size), functools.partial(open_member, member, name)


def _header(file: File) -> BinaryIO:
    return io.BytesIO(files.read_range(file.path, 0, _HEADER))


def _is_image(name: str, open_file: Callable[[], Any], misses: Counter[str]) -> bool:
    """Whether the file with this name, which `open_file` opens, is an image: by a known suffix, or
    else if Pillow opens it; `misses` counts the other files by suffix."""
    kind = suffix(name)
    if kind in SUFFIXES:
        return True
    if kind and misses[kind] >= _TRIES:
        return False
    with contextlib.suppress(Exception), warnings.catch_warnings(), open_file() as file:
        warnings.simplefilter("ignore")
        with Image.open(file) as image:
            if image.format not in _NO_PIXELS:
                return True
    misses[kind] += 1
    return False
