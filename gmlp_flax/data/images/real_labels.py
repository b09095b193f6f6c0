"""ReaL labels of ImageNet's validation set (Beyer et al. 2020, "Are we done with ImageNet?")."""

import itertools
import re
from typing import Any

import numpy as np

from gmlp_flax.data.fingerprints import Fingerprint
from gmlp_flax.data.images.folders import ImageSource
from gmlp_flax.errors import DataError
from gmlp_flax.io import json_files
from gmlp_flax.io.records import BadRecord

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")
_KEY = "config.eval.real_labels"


class RealLabels(ImageSource):
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
        try:
            lists = json_files.read(path, list)
        except DataError as error:
            raise DataError(f"{_KEY}: {error}") from error
        labels: list[Any] = [
            *itertools.chain.from_iterable(entry if isinstance(entry, list) else [None] for entry in lists)
        ]
        if not labels or not all(type(label) is int and 0 <= label < 2**31 for label in labels):
            raise DataError(f"{_KEY}={path}: expected a list of labels for each image, as in real.json")
        if max(labels) >= len(self.classes):
            raise DataError(
                f"{path}: label {max(labels)}, but {self.path!r} has {len(self.classes)} classes; evaluate on "
                "ImageNet's validation set, with its 1,000 classes"
            )
        self.real = np.array([*itertools.zip_longest(*lists, fillvalue=-1)], np.int32).T
        for name in _known_names(source):
            self._number(name)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> dict:
        item = self.source[index]
        return {**item, "real": self.real[self._number(item["name"])]}

    def fingerprint(self) -> Fingerprint:
        """That of the images alone."""
        return self.source.fingerprint()

    def _number(self, name: str) -> int:
        match = _NUMBER.search(name)
        if not match:
            raise DataError(f"{_KEY}: image {name!r} has no number in its name, expected names with ILSVRC2012_val_N")
        if not 1 <= int(match[1]) <= len(self.real):
            raise DataError(f"{self.file}: labels of {len(self.real)} images, but none for {name!r}; give theirs")
        return int(match[1]) - 1


def _known_names(source: ImageSource) -> list[str]:
    """The names of all images if they are known without reading, else the name of the first that can be read."""
    if hasattr(source, "names"):
        return source.names
    for index in range(len(source)):
        try:
            return [source[index]["name"]]
        except BadRecord:
            continue
    return []
