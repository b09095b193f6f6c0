"""ReaL labels of ImageNet's validation set (Beyer et al. 2020, "Are we done with ImageNet?")."""

import re
from itertools import chain

import numpy as np

from gmlp_flax.data.images.folders import ImageFolder, ImageTar
from gmlp_flax.data.images.sources import ImageSource
from gmlp_flax.errors import DataError
from gmlp_flax.io import json_files
from gmlp_flax.io.records import BadRecord

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")
_EXPECTED = "expected names with ILSVRC2012_val_00000001 and so on"


class RealLabels:
    """A source whose items have one more entry, "real": the image's labels, int32 [most labels], filled with -1.

    An image without a ReaL label has only -1. Labels and images are matched by the number in the images' names.

    Args:
        source: images with file names: a folder, a tar file, or TFDS's imagenet2012.
        path: of the JSON file: a list of labels for each image, ordered by the images' numbers from 1 on.

    Raises:
        DataError: the file is missing or not of this format, or its labels are not among the classes; or the images'
            names have no numbers, or numbers that the file does not have.
    """

    def __init__(self, source: ImageSource, path: str):
        self.source, self.classes, self.path, self.file = source, source.classes, source.path, path
        lists = _read(path)
        most = max(map(len, lists))
        self.labels = np.array([[*labels, *[-1] * (most - len(labels))] for labels in lists], np.int32)
        if self.labels.max() >= len(self.classes):
            raise DataError(
                f"{path}: label {self.labels.max()}, but {self.path!r} has {len(self.classes)} classes; evaluate on "
                "ImageNet's validation set, with its 1,000 classes"
            )
        for name in _some_names(source):
            self._number(name)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> dict:
        item = self.source[index]
        return {**item, "real": self.labels[self._number(item["name"])]}

    def __repr__(self) -> str:
        return f"RealLabels({self.source!r}, {self.file!r})"

    def _number(self, name: str) -> int:
        match = _NUMBER.search(name)
        if not match:
            raise DataError(
                f"config.eval.real_labels: image {name!r} of {self.path!r} has no number in its name, {_EXPECTED}"
            )
        if not 1 <= int(match[1]) <= len(self.labels):
            raise DataError(
                f"{self.file}: labels of {len(self.labels)} images, but none for {name!r} of {self.path!r}; give the "
                "file of these images"
            )
        return int(match[1]) - 1


def _read(path: str) -> list[list[int]]:
    try:
        lists = json_files.read(path, list)
    except DataError as error:
        raise DataError(f"config.eval.real_labels: {error}") from error
    whole = all(isinstance(labels, list) for labels in lists)
    if not whole or not all(type(label) is int and 0 <= label < 2**31 for label in chain(*lists)) or not any(lists):
        raise DataError(f"config.eval.real_labels={path}: expected a list of labels for each image, as in real.json")
    return lists


def _some_names(source: ImageSource) -> list[str]:
    """The names of all images if they are known without reading, else the name of the first that can be read."""
    if isinstance(source, ImageFolder | ImageTar):
        return source.names
    for index in range(len(source)):
        try:
            return [source[index]["name"]]
        except BadRecord:
            continue
    return []
