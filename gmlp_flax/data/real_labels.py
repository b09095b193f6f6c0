"""ReaL labels of ImageNet's validation set (Beyer et al. 2020, "Are we done with ImageNet?")."""

import json
import re
from itertools import chain

import numpy as np

from gmlp_flax.data.errors import DataError
from gmlp_flax.data.image_sources import ImageSource
from gmlp_flax.data.records import BadRecord

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")
_EXPECTED = "expected names with ILSVRC2012_val_00000001 and so on"


class RealLabels:
    """A source whose items have one more entry, "real": the labels of the image, int32 [most labels], -1 to fill.

    An image without a ReaL label has -1 alone. Labels are matched by the number in the images' names.

    Args:
        source: images with file names: a folder, a tar file, TFDS's imagenet2012.
        path: the JSON file: a list of labels for each image, in the order of their numbers, from 1 on.

    Raises:
        DataError: the file is missing or is something else, or has labels that are no classes; or the images' names
            carry no numbers, or others than the file has.
    """

    def __init__(self, source: ImageSource, path: str):
        self.source, self.classes, self.path, self.file = source, source.classes, source.path, path
        lists = _read(path)
        most = max(map(len, lists))
        self.labels = np.array([[*labels, *[-1] * (most - len(labels))] for labels in lists], np.int32)
        if self.labels.max() >= len(self.classes):
            raise DataError(
                f"{path}: label {self.labels.max()} where {self.path!r} has {len(self.classes)} classes; evaluate on "
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
                f"{self.file}: labels of {len(self.labels)} images, and none of {name!r} of {self.path!r}; give the "
                "file of these images"
            )
        return int(match[1]) - 1


def _read(path: str) -> list[list[int]]:
    try:
        with open(path, encoding="utf-8") as file:
            lists = json.load(file)
    except OSError as error:
        raise DataError(f"config.eval.real_labels={path}: cannot be read ({error.strerror}); check the path") from error
    except ValueError as error:
        raise DataError(f"config.eval.real_labels={path}: not JSON ({error}); download it again") from error
    whole = isinstance(lists, list) and all(isinstance(labels, list) for labels in lists)
    if not whole or not all(type(label) is int and label >= 0 for label in chain(*lists)) or not any(lists):
        raise DataError(f"config.eval.real_labels={path}: expected a list of labels for each image, as in real.json")
    return lists


def _some_names(source: ImageSource) -> list[str]:
    """The names of all images where they are known without reading, else that of the first which can be read."""
    if hasattr(source, "names"):
        return source.names
    for index in range(len(source)):
        try:
            return [source[index]["name"]]
        except BadRecord:
            continue
    return []
