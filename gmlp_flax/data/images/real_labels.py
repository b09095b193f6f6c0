"""ReaL labels of ImageNet's validation set (Beyer et al. 2020, "Are we done with ImageNet?")."""

import dataclasses
import itertools
import re
from typing import Any

import numpy as np

from gmlp_flax.data.dataset import Dataset, Examples, Wrapped
from gmlp_flax.errors import DataError
from gmlp_flax.io import json_files

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")
_KEY = "config.eval.real_labels"


class RealLabels(Wrapped):
    """Images whose items have one more entry, "real": the image's labels, int32 [most labels],
    filled with -1.

    An image without a ReaL label has only -1. Labels and images are matched by the number in the
    images' names.

    Args:
        source: images with file names.
        real: int32 [images of ImageNet's validation set, most labels], ordered by these numbers.
        path: of the file, for messages.

    Raises:
        DataError: from items: an image's name has no number, or one that the file does not have.
    """

    def __init__(self, source: Examples, real: np.ndarray, path: str):
        super().__init__(source)
        self.real = real
        self.path = path

    def __getitem__(self, index: int) -> dict[str, Any]:
        example = super().__getitem__(index)
        return {**example, "real": self.real[self.row(example["name"])]}

    def row(self, name: str) -> int:
        """The row of `real` for the image with a name."""
        match = _NUMBER.search(name)
        if not match:
            raise DataError(
                f"{_KEY}: image {name!r} has no number in its name, expected names with "
                "ILSVRC2012_val_N"
            )
        number = int(match[1])
        if not 1 <= number <= len(self.real):
            raise DataError(
                f"{self.path}: labels of {len(self.real)} images, but none for {name!r}; give "
                "theirs"
            )
        return number - 1


def with_real_labels(dataset: Dataset, path: str) -> Dataset:
    """A data set of ImageNet's validation images with the ReaL labels of a file.

    Args:
        dataset: images with file names: a folder, a tar file, or TFDS's imagenet2012.
        path: of the JSON file: a list of labels for each image, ordered by the images' numbers from
            1 on.

    Raises:
        DataError: the file is missing or not of this format, or its labels are not among the
            classes; or as `RealLabels`.
    """
    lists: list[Any] = json_files.read(path, list)
    labels = []
    for entry in lists:
        labels += entry if isinstance(entry, list) else [None]
    if not labels or not all(type(label) is int and 0 <= label < 2**31 for label in labels):
        raise DataError(f"{_KEY}={path}: expected a list of labels for each image, as in real.json")
    if max(labels) >= len(dataset.classes):
        raise DataError(
            f"{path}: label {max(labels)}, but {dataset.path!r} has {len(dataset.classes)} "
            "classes; evaluate on ImageNet's validation set, with its 1,000 classes"
        )
    columns = list(itertools.zip_longest(*lists, fillvalue=-1))
    examples = RealLabels(dataset.examples, np.array(columns, np.int32).T, path)
    if dataset.labels is not None:  # the names are known: their numbers are checked now
        for index in range(len(dataset)):
            examples.row(dataset.examples.key(index))
    return dataclasses.replace(dataset, examples=examples)
