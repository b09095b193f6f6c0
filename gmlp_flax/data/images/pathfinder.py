"""Pathfinder as Long Range Arena publishes it: whether a dashed path joins two dots (2011.04006, section 2.2.5).

A folder of one difficulty, such as pathfinder32/curv_contour_length_14 (the hard one), holds

    metadata/N.npy           lines of text, no NumPy arrays: FOLDER FILE NUMBER LABEL and more, with spaces between
    imgs/N/sample_K.png      the images that they name as FOLDER and FILE; label 1 if there is such a path

(google-research/long-range-arena, data/pathfinder.py). Files of no bytes, of which there are some, are left out as its
reader leaves them out.
"""

import re

import numpy as np

from gmlp_flax.data.images.folders import ImageSource, read_image
from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from gmlp_flax.io.files import File
from gmlp_flax.io.records import NotUTF8, decode_utf8

CLASSES: tuple[str, ...] = ("apart", "joined")

_METADATA, _IMAGES = "metadata", "imgs"
_LISTED = re.compile(rf"{_METADATA}/[^/]+\.npy")


def is_pathfinder(path: str) -> bool:
    """Whether a folder has this layout, even if the metadata are missing.

    Raises:
        DataError: it is the folder around those of the difficulties.
    """
    inside = files.subfolders(path)
    if curves := [name for name in inside if name.startswith("curv_")]:
        raise DataError(f"{path!r} holds one folder per difficulty of Pathfinder: give one of {', '.join(curves)}")
    if inside == (_IMAGES,):
        return all(map(str.isdecimal, files.subfolders(files.join(path, _IMAGES))))
    return {_METADATA, _IMAGES} <= {*inside}


class PathfinderImages(ImageSource):
    """The images of one difficulty, ordered by name. An item raises BadRecord if its file is gone.

    Raises:
        DataError: a part is missing, a line has another form, or an image that a line names is not there.
    """

    def __init__(self, path: str):
        self.path, self.classes = str(path), CLASSES
        contents = {file.name: file for file in files.find_files(self.path)}
        lists = sorted(name for name in contents if _LISTED.fullmatch(name))
        if not lists:
            raise DataError(f"{self.path!r} has images and no {_METADATA}/*.npy with their labels: copy it as well")
        labels: dict[str, int] = {}
        for name in lists:
            labels |= _read_labels(contents[name])
        if missing := sorted(labels.keys() - contents.keys()):
            raise DataError(f"{self.path!r}: {len(missing)} of {len(labels)} images are missing, as {missing[0]!r}")
        self.names = sorted(name for name in labels if contents[name].size)
        if not self.names:
            raise DataError(f"{self.path!r} holds no image that has bytes; copy or download it again")
        self.labels = np.array([labels[name] for name in self.names], np.int32)
        self._files = [contents[name] for name in self.names]

    def read(self, index: int) -> bytes:
        return read_image(self._files[index])


def _read_labels(file: File) -> dict[str, int]:
    """Name of the image below the folder -> its label, by one file of lines."""
    labels = {}
    for number, line in enumerate(files.read_small(file.path).split(b"\n"), start=1):
        try:
            words = decode_utf8(line).split()
        except NotUTF8 as error:
            raise DataError(f"{file.path}, line {number}: {error}") from error
        if words and (len(words) < 4 or words[3] not in ("0", "1")):
            raise DataError(
                f"{file.path}, line {number}: {' '.join(words)[:60]!r}; expected FOLDER FILE NUMBER LABEL, the label "
                "0 or 1"
            )
        if words:
            labels[f"{words[0]}/{words[1]}"] = int(words[3])
    return labels
