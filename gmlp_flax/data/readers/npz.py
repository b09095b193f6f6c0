"""Images in NumPy's .npz: arrays `images` and `labels`, or such arrays for each split.

    images, labels                  one data set without splits
    x_train, y_train, x_test, ...   as Keras has them
    train_images, train_labels, val_images, test_images, ...   as MedMNIST has them

Images are uint8 [images, height, width], or [images, height, width, 1 or 3]; labels are numbers or
strings, one for each image.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from gmlp_flax.data import classes
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.images import examples
from gmlp_flax.data.images.examples import ArrayImages
from gmlp_flax.data.splits import TEST_SPLIT, TRAIN_SPLIT, VALIDATION_SPLIT
from gmlp_flax.errors import DataError, decode_errors, listed
from gmlp_flax.io import cache, files
from gmlp_flax.io.records import BadRecord, decode_utf8

FORM = "arrays in .npz"


class Arrays(NamedTuple):
    """The names of the arrays of a split."""

    split: str
    images: str
    labels: str


ARRAYS = (
    Arrays("", "images", "labels"),
    Arrays(TRAIN_SPLIT, "x_train", "y_train"),
    Arrays(VALIDATION_SPLIT, "x_val", "y_val"),
    Arrays(TEST_SPLIT, "x_test", "y_test"),
    Arrays(TRAIN_SPLIT, "train_images", "train_labels"),
    Arrays(VALIDATION_SPLIT, "val_images", "val_labels"),
    Arrays(TEST_SPLIT, "test_images", "test_labels"),
)


def read(path: str) -> Splits:
    """The splits of a .npz file.

    Raises:
        DataError: the file is damaged or has other arrays. When a split is read: the arrays do not
            fit together.
    """
    arrays = _load(path)
    by_split = _splits_of(arrays, path)
    note = _unread_note(path, arrays, by_split.values())
    readers = {}
    for split, names in by_split.items():
        readers[split] = functools.partial(_read_split, path, names, arrays, note)
    return Splits(path, FORM, readers)


def _splits_of(arrays: Mapping[str, np.ndarray], path: str) -> dict[str, Arrays]:
    """Split -> the names of its arrays. Raises DataError if there are none, or two of a split."""
    present = []
    by_split = {}
    for names in ARRAYS:
        if names.images in arrays:
            present.append(names.images)
            by_split[names.split] = names
    if not present:
        quoted = map(repr, arrays)
        available = listed(quoted) or "none"
        usual = ARRAYS[:2]
        known = ", ".join(f"{names.images} and {names.labels}" for names in usual)
        raise DataError(f"{path}: expected arrays {known}, or train_images, found {available}")
    is_mixed = "" in by_split and len(by_split) > 1
    has_twins = len(by_split) < len(present)
    if is_mixed or has_twins:
        available = ", ".join(present)
        raise DataError(
            f"{path}: two of its arrays {available} may be of one split: remove one of them"
        )
    return by_split


def _unread_note(path: str, arrays: Mapping[str, np.ndarray], read: Iterable[Arrays]) -> str:
    """A line that names the arrays that are not read; "" if there are none."""
    others = dict.fromkeys(arrays)  # in order
    for names in read:
        others.pop(names.images, None)
        others.pop(names.labels, None)
    if not others:
        return ""
    unread = listed(map(repr, others))
    return f"{path!r}: arrays not read: {unread}"


def _load(path: str) -> dict[str, np.ndarray]:
    what = f"{path}: damaged, or no arrays of numbers and strings"
    with (
        decode_errors(what, "save it with numpy.savez"),
        cache.LocalCopy(path) as copy,
        files.open_file(copy.path) as stream,  # NumPy leaves damaged files open
        np.load(stream) as stored,
    ):
        arrays = dict(stored)
        for name, value in arrays.items():
            if not isinstance(value, np.ndarray):  # a file of bytes in the archive
                raise ValueError(f"{name} is not an array")
        return arrays


def _read_split(path: str, names: Arrays, arrays: Mapping[str, np.ndarray], note: str) -> Dataset:
    no_labels = np.empty(0)
    images = arrays[names.images]
    labels = arrays.get(names.labels, no_labels)
    _check_arrays(path, names, images, labels)
    if images.ndim == 3:
        images = images[..., None]
    dataset = Dataset(
        path=path,
        form=FORM,
        examples=ArrayImages(images),
        split=names.split,
        files=files.find_files(path),
        columns=(names.images, names.labels),
    )
    class_names = _class_names(path, names, labels)
    labelled = examples.with_classes(dataset, class_names)
    return labelled.with_notes(note)


def _check_arrays(path: str, names: Arrays, images: np.ndarray, labels: np.ndarray) -> None:
    """Raises DataError unless the arrays are images and a label for each of them."""
    shape = images.shape
    has_rows = images.ndim >= 3
    has_channels = shape[3:] in ((), (1,), (3,))
    are_images = images.dtype == np.uint8 and has_rows and has_channels
    if are_images and images.size and labels.size == len(images):
        return
    axes = list(shape)
    raise DataError(
        f"{path}: {names.images} is {images.dtype} {axes} and {names.labels} has "
        f"{labels.size} entries: expected uint8 [images, height, width(, 1 or 3)], and a class "
        "for each image"
    )


def _class_names(path: str, names: Arrays, labels: np.ndarray) -> list[str]:
    """The name of each image's class."""
    class_names = []
    flat_labels = labels.ravel()
    for index, label in enumerate(flat_labels.tolist()):
        where = f"{path}, {names.labels}[{index}]"
        if isinstance(label, bytes):
            label = _decoded(where, label)
        name = classes.class_in_cell(label, where, names.labels)
        class_names.append(name)
    return class_names


def _decoded(where: str, label: bytes) -> str:
    try:
        return decode_utf8(label)
    except BadRecord as error:
        raise DataError(f"{where}: {error}") from None
