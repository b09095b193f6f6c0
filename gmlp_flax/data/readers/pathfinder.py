"""Pathfinder as Long Range Arena publishes it: whether a dashed path joins two dots (Tay et al.,
arXiv 2011.04006, section 2.2.5; google-research/long-range-arena, data/pathfinder.py).

A folder of one difficulty, such as pathfinder32/curv_contour_length_14 (the hard one), holds

    metadata/N.npy        lines of text, no NumPy arrays: FOLDER FILE NUMBER LABEL and more, with
                          spaces between
    imgs/N/sample_K.png   the images that they name as FOLDER and FILE; label 1 if there is such a
                          path

Images without bytes are left out, as Long Range Arena's reader does, and counted, as are images
without a line.
"""

import functools
import re

import numpy as np

from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.images import stores
from gmlp_flax.data.images.examples import StoredImages
from gmlp_flax.errors import DataError, counted
from gmlp_flax.io import files

FORM = "Pathfinder's folder"
CLASSES = ("apart", "joined")


def matches(path: str) -> bool:
    """Whether a folder has Pathfinder's layout, even if the metadata are missing.

    Raises:
        DataError: it is the folder around those of the difficulties.
    """
    inside = files.subfolders(path)
    curves = [name for name in inside if name.startswith("curv_")]
    if curves:
        raise DataError(
            f"{path!r} holds one folder per difficulty of Pathfinder: give one of "
            f"{', '.join(curves)}"
        )
    if inside == ("imgs",):
        parts = files.subfolders(files.join(path, "imgs"))
        first = files.listdir(files.join(path, "imgs", parts[0])) if parts else []
        return any(name.startswith("sample_") for name in first)
    return {"metadata", "imgs"} <= set(inside)


def read(path: str) -> Splits:
    """The images of one difficulty, which name no splits.

    Raises:
        DataError: a part is missing, a line has another form, or an image that a line names is not
            there.
    """
    return Splits(path, FORM, {"": functools.partial(_read_all, path)})


def _read_all(path: str) -> Dataset:
    store = stores.open_folder(path)
    lists = [name for name in store.names if re.fullmatch(r"metadata/[^/]+\.npy", name)]
    if not lists:
        raise DataError(
            f"{path!r} has images and no metadata/*.npy with their labels: copy it as well"
        )
    label_of: dict[str, int] = {}
    for name in lists:
        label_of |= _labels(files.join(path, name))
    missing = sorted(label_of.keys() - set(store.names))
    if missing:
        raise DataError(
            f"{path!r}: {len(missing)} of {len(label_of)} images are missing, such as "
            f"{missing[0]!r}: copy them as well"
        )
    names = sorted(name for name in label_of if store.reader.size(name))
    if not names:
        raise DataError(f"{path!r} holds no image that has bytes; copy or download it again")
    unlisted = [name for name in store.images if name not in label_of]
    left_out = {"bytes": len(label_of) - len(names), "a line": len(unlisted)}
    notes = []
    for problem, count in left_out.items():
        if count:
            notes.append(f"{path!r}: {counted(count, 'image')} without {problem} left out")
    return Dataset(
        path=path,
        form=FORM,
        examples=StoredImages(store.reader, names),
        classes=CLASSES,
        labels=np.array([label_of[name] for name in names], np.int32),
        notes=tuple(notes),
        stratified=True,
    )


def _labels(path: str) -> dict[str, int]:
    """The label of each image, called by its path below the folder, by one file of lines."""
    labels = {}
    text = files.read_small(path).decode("utf-8", "replace")
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.split()
        if not words:
            continue
        if len(words) < 4 or words[3] not in ("0", "1"):
            raise DataError(
                f"{path}, line {number}: {line[:60]!r}; expected FOLDER FILE NUMBER LABEL, "
                "the label 0 or 1"
            )
        labels[f"{words[0]}/{words[1]}"] = int(words[3])
    return labels
