"""The classes of images that lie in no class folders: Tiny-ImageNet's and Kaggle's lists, and WebDataset's files.

val_annotations.txt (Tiny-ImageNet) and LOC_val_solution.csv (ImageNet on Kaggle) have an image's file name, with or
without its suffix, and its class in each line, and then boxes. A file NAME.cls beside each image (WebDataset) holds its
class. Tables of any other kind are data sets themselves (see rows).
"""

import contextlib
import functools
import os
import re
from collections.abc import Callable

from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import files
from gmlp_flax.io.records import decode_utf8

EXPECTED = "val_annotations.txt or LOC_val_solution.csv; or give a .csv table of paths and classes itself as the data"
CLASS_COLUMNS = "label labels class classes classid classname category target breed species".split()

_TABLES = ("val_annotations.txt", "loc_val_solution.csv")
_ABOVE = 4  # folders in which Kaggle's table may lie: that around ILSVRC/Data/CLS-LOC/val, and those on the way


def suffix(name: str) -> str:
    """The suffix of a file's name in small letters, with its dot, or ""."""
    return os.path.splitext(name)[1].lower()


def is_label(name: str) -> bool:
    """Whether a file may hold classes of images."""
    return os.path.basename(name).lower() in _TABLES or suffix(name) == ".cls"


class Tables:
    """The tables of a folder or tar file, read when a class is asked for.

    Args:
        path: of the folder or tar file; tables may also lie beside it, or above.
        others: names of the files in it that are no images.
        read: a file's content by its name in it.

    Attributes:
        used: names of the files in it whose classes were read.
    """

    def __init__(self, path: str, others: list[str], read: Callable[[str], bytes]):
        self._path, self._read, self.used = path, read, set()
        self._inside = [name for name in others if is_label(name) and suffix(name) != ".cls"]
        self._classes = {name.removesuffix(".cls"): name for name in others if name.endswith(".cls")}

    @functools.cached_property
    def _beside(self) -> list[str]:
        """Paths of the tables beside the folder or above it."""
        folder, found = files.absolute(self._path), []
        for _ in range(_ABOVE):
            folder = folder.rpartition("/")[0]
            with contextlib.suppress(DataError):  # a folder above that may not be listed
                found += [files.join(folder, name) for name in files.listdir(folder) if name.lower() in _TABLES]
        return found

    def find(self, images: list[str]) -> tuple[str, dict[str, str]] | None:
        """The table that has all `images`, and the class of each; None if no table has one of them.

        Raises:
            DataError: a table lacks images, or it is not UTF-8.
        """
        stems = {os.path.splitext(name)[0]: name for name in images}
        if stems.keys() <= self._classes.keys():
            cells = {name: self._read(self._classes[stem]) for stem, name in stems.items()}
            self.used |= {self._classes[stem] for stem in stems}
            return "the files .cls beside them", {name: decode_utf8(cell).strip() for name, cell in cells.items()}
        keys = {os.path.basename(key): name for stem, name in stems.items() for key in (stem, name)}
        for table in (*self._inside, *self._beside):
            with decode_errors(f"{table}: not a table in UTF-8", "save it as UTF-8, or remove it"):
                text = decode_utf8((self._read if table in self._inside else files.read_small)(table))
            lines = (re.split(r"[\t, ]+", line) for line in text.splitlines())
            found = {keys[line[0]]: line[1] for line in lines if line[0] in keys and len(line) > 1}
            if found and (missing := [name for name in images if name not in found]):
                raise DataError(f"{table}: no class for {len(missing):,} of {len(images):,} images, as {missing[0]!r}")
            if found:
                self.used.add(table)
                return table, found
        return None
