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
    padded with -1.

    An image without a ReaL label has only -1. Labels and images are matched by the number in the
    image's name.

    Args:
        source: images with file names.
        real: int32 [images of ImageNet's validation set, most labels], ordered by these numbers.
        path: the path of the file, for messages.

    Raises:
        DataError: for items: an image's name has no number, or the file has no labels for it.
    """

    def __init__(self, source: Examples, real: np.ndarray, path: str):
        super().__init__(source)
        self.real = real
        self.path = path

    def __getitem__(self, index: int) -> dict[str, Any]:
        example = super().__getitem__(index)
        row = self.row(example["name"])
        return {**example, "real": self.real[row]}

    def row(self, name: str) -> int:
        """The row of `real` for the image with a name."""
        match = _NUMBER.search(name)
        if not match:
            raise DataError(
                f"{_KEY}: image {name!r} has no number in its name, expected names with "
                "ILSVRC2012_val_N"
            )
        number = int(match[1])
        count = len(self.real)
        if not 1 <= number <= count:
            raise DataError(
                f"{self.path}: labels of {count} images, but none for {name!r}; give the "
                "labels of these images"
            )
        return number - 1


def with_real_labels(dataset: Dataset, path: str) -> Dataset:
    """A data set of ImageNet's validation images with the ReaL labels of a file.

    Args:
        dataset: images with file names: a folder, a tar file, or TFDS's imagenet2012.
        path: the path of the JSON file, which has a list of labels for each image, ordered by the
            images' numbers from 1 on.

    Raises:
        DataError: the file is missing or has another format, or its labels are not among the
            classes; or as in `RealLabels`.
    """
    lists: list[Any] = json_files.read(path, list)
    largest = _largest_label(lists, path)
    class_count = len(dataset.classes)
    if largest >= class_count:
        raise DataError(
            f"{path}: label {largest}, but {dataset.path!r} has {class_count} "
            "classes; evaluate on ImageNet's validation set, with its 1,000 classes"
        )
    columns = list(itertools.zip_longest(*lists, fillvalue=-1))
    by_column = np.array(columns, np.int32)  # [most labels, images]
    examples = RealLabels(dataset.examples, by_column.T, path)
    if dataset.labels is not None:  # the names are known: their numbers are checked now
        for index in range(len(dataset)):
            name = dataset.examples.key(index)
            examples.row(name)
    return dataclasses.replace(dataset, examples=examples)


def _largest_label(lists: list[Any], path: str) -> int:
    """The largest label in lists of labels; raises DataError for anything else."""
    labels = []
    for entry in lists:
        if isinstance(entry, list):
            labels += entry
        else:
            labels.append(None)  # which is no label
    if not labels or not all(map(_is_label, labels)):
        raise DataError(f"{_KEY}={path}: expected a list of labels for each image, as in real.json")
    return max(labels)


def _is_label(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31
