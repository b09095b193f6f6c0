"""Images by position, from any place: files of a store, images listed in tables, or pixels."""

import abc
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gmlp_flax.data import classes, fingerprints
from gmlp_flax.data.dataset import Dataset, Examples
from gmlp_flax.data.fingerprints import Fingerprint
from gmlp_flax.data.images.stores import Reader, local_size, read_image
from gmlp_flax.io.records import BadRecord


class ImageExamples(Examples):
    """Images by position, dicts {"image": encoded bytes or pixels, "name"}.

    Attributes:
        names: the names of the images, which do not depend on the path of the data.
    """

    units = "images"
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = self.read(index)
        return {"image": image, "name": self.names[index]}

    @abc.abstractmethod
    def read(self, index: int) -> bytes | np.ndarray:
        """The image at a position: encoded bytes or pixels; raises BadRecord if it is missing."""

    def key(self, index: int) -> str:
        return self.names[index]

    def content(self, index: int) -> bytes:
        with contextlib.suppress(BadRecord):
            image = self.read(index)
            return bytes(image)
        return b""

    def describe(self, index: int) -> str:
        """An image for people: its name and its size."""
        image = self.read(index)
        name = self.names[index]
        if isinstance(image, np.ndarray):
            height, width, channels = image.shape
            return f"{name}: {width} x {height}, {channels} channels"
        # Not at the top: runs on text import this file too.
        from gmlp_flax.data.images.decoding import open_image

        with open_image(image, name) as file:
            return f"{name}: {file.width} x {file.height}, {file.format} {file.mode}"

    def fingerprint(self, classes: Sequence[str], labels: np.ndarray | None) -> Fingerprint:
        """A fingerprint of the names and labels of all images, and of the content of some."""
        positions = fingerprints.spread(len(self))
        sample = (self.content(index) for index in positions)
        label_bytes = b"" if labels is None else labels.tobytes()
        return {
            "images": len(self),
            "names": fingerprints.digest(self.names),
            "labels": fingerprints.digest([*classes, label_bytes]),
            "content": fingerprints.digest(sample),
        }


class StoredImages(ImageExamples):
    """Images that are files of a folder or of a tar file."""

    def __init__(self, reader: Reader, names: Sequence[str]):
        self.reader = reader
        self.names = names

    def read(self, index: int) -> bytes:
        name = self.names[index]
        return self.reader.read(name)

    def size(self, index: int) -> int | None:
        name = self.names[index]
        return self.reader.size(name)


class ListedImages(ImageExamples):
    """Images of a table: encoded bytes in memory, or paths of files on this disk or remote."""

    def __init__(self, names: Sequence[str], images: Sequence[bytes | str]):
        self.names = names
        self.images = images

    def read(self, index: int) -> bytes:
        image = self.images[index]
        if isinstance(image, str):
            return read_image(image)
        return image

    def size(self, index: int) -> int | None:
        image = self.images[index]
        if isinstance(image, str):
            return local_size(image)
        return len(image)


class ArrayImages(ImageExamples):
    """Decoded images in memory, with the names "image i".

    Args:
        images: uint8 [examples, height, width, channels].
    """

    def __init__(self, images: np.ndarray):
        self.images = images
        positions = range(len(images))
        self.names = [f"image {index}" for index in positions]

    def read(self, index: int) -> np.ndarray:
        return self.images[index]

    def size(self, index: int) -> int:
        image = self.images[index]
        return image.nbytes


def with_classes(dataset: Dataset, labels: Sequence[str], declared: Sequence[str] = ()) -> Dataset:
    """A data set of images with their classes.

    Args:
        dataset: the images, without labels.
        labels: the name of each image's class.
        declared: the classes in their order, if the data declare them.

    Raises:
        DataError: as in `classes.from_names`.
    """
    where = repr(dataset.path)
    names, positions = classes.from_names(labels, where, declared, allow_letters=True)
    return dataclasses.replace(
        dataset,
        classes=names,
        labels=positions,
        stratified=True,
    )
