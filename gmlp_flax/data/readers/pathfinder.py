"""Pathfinder as Long Range Arena publishes it: `metadata/N.npy` and `imgs/N/sample_K.png` in a folder
of one difficulty. The class says whether a dashed path joins two dots (Tay et al., arXiv 2011.04006,
section 2.2.5; google-research/long-range-arena, data/pathfinder.py).

A folder of one difficulty, such as pathfinder32/curv_contour_length_14 (the hard one), holds

    metadata/N.npy        lines of text, not NumPy arrays: FOLDER FILE NUMBER LABEL and more,
                          separated by spaces
    imgs/N/sample_K.png   the images that the lines name as FOLDER and FILE; label 1 if there is
                          such a path

Images without bytes are left out, as in Long Range Arena's reader, and so are images without a
line. Both are counted.
"""

import functools
import re

import numpy as np

from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.images import stores
from gmlp_flax.data.images.examples import StoredImages
from gmlp_flax.data.images.stores import Store
from gmlp_flax.errors import DataError, counted
from gmlp_flax.io import files

FORM = "Pathfinder's folder"
CLASSES = ("apart", "joined")

_TABLE = re.compile(r"metadata/[^/]+\.npy")


def matches(path: str) -> bool:
    """Whether a folder has Pathfinder's layout, even if the metadata are missing.

    Raises:
        DataError: it is the folder around the folders of the difficulties.
    """
    inside = files.subfolders(path)
    curves = [name for name in inside if name.startswith("curv_")]
    if curves:
        names = ", ".join(curves)
        raise DataError(
            f"{path!r} holds one folder per difficulty of Pathfinder: give one of {names}"
        )
    if inside == ("imgs",):
        images_path = files.join(path, "imgs")
        return _holds_samples(images_path)
    return "metadata" in inside and "imgs" in inside


def _holds_samples(path: str) -> bool:
    """Whether the first folder in a folder has images with Pathfinder's names."""
    parts = files.subfolders(path)
    if not parts:
        return False
    first_part = files.join(path, parts[0])
    names = files.listdir(first_part)
    return any(name.startswith("sample_") for name in names)


def read(path: str) -> Splits:
    """The images of one difficulty, which name no splits.

    Raises:
        DataError: a part is missing, a line has another form, or an image that a line names is
            missing.
    """
    readers = {"": functools.partial(_read_all, path)}
    return Splits(path, FORM, readers)


def _read_all(path: str) -> Dataset:
    store = stores.open_folder(path)
    label_of = _labels_of_images(store)
    names = sorted(name for name in label_of if store.reader.size(name))
    if not names:
        raise DataError(f"{path!r} holds no image that has bytes; copy or download it again")
    labels = [label_of[name] for name in names]
    empty = len(label_of) - len(names)
    unlisted = [name for name in store.images if name not in label_of]
    dataset = Dataset(
        path=path,
        form=FORM,
        examples=StoredImages(store.reader, names),
        classes=CLASSES,
        labels=np.array(labels, np.int32),
        stratified=True,
    )
    empty_note = _left_out_note(path, empty, "bytes")
    unlisted_note = _left_out_note(path, len(unlisted), "a line")
    return dataset.with_notes(empty_note, unlisted_note)


def _left_out_note(path: str, count: int, problem: str) -> str:
    """A line that counts the images that are left out because of a problem; "" if there are
    none."""
    if not count:
        return ""
    images = counted(count, "image")
    return f"{path!r}: {images} without {problem} left out"


def _labels_of_images(store: Store) -> dict[str, int]:
    """The label of each image, from all files of lines. Raises DataError if there are none, or an
    image is missing."""
    path = store.path
    tables = [name for name in store.names if _TABLE.fullmatch(name)]
    if not tables:
        raise DataError(
            f"{path!r} has images and no metadata/*.npy with their labels: copy it as well"
        )
    label_of: dict[str, int] = {}
    for name in tables:
        table_path = files.join(path, name)
        label_of |= _labels(table_path)
    missing = sorted(label_of.keys() - set(store.names))
    if missing:
        first_missing = missing[0]
        raise DataError(
            f"{path!r}: {len(missing)} of {len(label_of)} images are missing, such as "
            f"{first_missing!r}: copy them as well"
        )
    return label_of


def _labels(path: str) -> dict[str, int]:
    """Path of an image below the folder -> its label, from one file of lines."""
    labels = {}
    content = files.read_small(path)
    text = content.decode("utf-8", "replace")
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        if len(words) < 4 or words[3] not in ("0", "1"):
            raise DataError(
                f"{path}, line {number}: {line[:60]!r}; expected FOLDER FILE NUMBER LABEL, "
                "the label 0 or 1"
            )
        folder, file, _, label, *_ = words
        labels[f"{folder}/{file}"] = int(label)
    return labels
