"""The classes of images that lie in no class folders, from a table in or beside their folder.

A table is a .csv or .tsv file, val_annotations.txt (Tiny-ImageNet) or LOC_val_solution.csv (Kaggle's ImageNet), with
the images' file names, with or without their suffix, in one column. The other column is the class, or else the one
whose name is in CLASS_COLUMNS. A file NAME.cls beside each image (WebDataset) holds its class.
"""

import contextlib
import csv
import functools
import io
import os
from collections.abc import Callable

from gmlp_flax.data import splits
from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import files
from gmlp_flax.io.records import decode_utf8

EXPECTED = "val_annotations.txt, LOC_val_solution.csv, or a .csv or .tsv table with their file names and classes"
CLASS_COLUMNS = "label labels class classes classid classname category target breed species".split()

_FIRST_WORD = ("val_annotations.txt", "loc_val_solution.csv", "loc_train_solution.csv")  # then boxes follow
_ABOVE = 3  # folders between Kaggle's ILSVRC/Data/CLS-LOC/val and LOC_val_solution.csv


def suffix(name: str) -> str:
    """The suffix of a file's name in small letters, with its dot, or ""."""
    return os.path.splitext(name)[1].lower()


class Tables:
    """The tables of a folder or tar file, read when a class is asked for.

    Args:
        path: of the folder or tar file; tables may also lie beside it.
        images, others: names of the files in it.
        read: a file's content by its name in it.

    Attributes:
        used: names of the files in it whose classes were read.
    """

    def __init__(self, path: str, images: list[str], others: list[str], read: Callable[[str], bytes]):
        self._path, self._images, self._read, self.used = path, images, read, set()
        self._inside = [name for name in others if _is_table(name)]
        self._classes = {name.removesuffix(".cls"): name for name in others if name.endswith(".cls")}

    @functools.cached_property
    def _beside(self) -> list[str]:
        """Paths of the tables beside the folder, and of Kaggle's above it."""
        folder, found = files.absolute(self._path), []
        for level in range(_ABOVE + 1):
            folder = folder.rpartition("/")[0]
            with contextlib.suppress(DataError):  # a folder above that may not be listed
                names = [name for name in files.listdir(folder) if _is_table(name)]
                found += [files.join(folder, name) for name in names if level == 0 or name.lower() in _FIRST_WORD]
        return found

    def find(self, images: list[str], split: str = "") -> tuple[str, dict[str, str]] | None:
        """The table that has all `images`, and the class of each; None if no table has one of them.

        A table whose name has the word of a split is for the images of this split, if theirs is known.

        Raises:
            DataError: a table lacks images, or its columns or two tables can be read in two ways.
        """
        stems = [os.path.splitext(name)[0] for name in images]
        if all(stem in self._classes for stem in stems):
            cells = {name: self._read(self._classes[stem]) for name, stem in zip(images, stems, strict=True)}
            self.used |= {self._classes[stem] for stem in stems}
            return "the files .cls beside them", {name: decode_utf8(cell).strip() for name, cell in cells.items()}
        found, wanted = {}, set(images)
        for table in self._of(split):
            # Numbers may name images of two splits.
            keys = _keys(images if splits.split_words(os.path.basename(table)) else self._images)
            found[table] = {name: value for name, value in self._lookup(table, keys).items() if name in wanted}
        known = [table for table in found if os.path.basename(table).lower() in _FIRST_WORD and found[table]]
        found = {table: found[table] for table in known or found if found[table]}
        if not found:
            return None
        (table, classes), *others = sorted(found.items(), key=lambda item: -len(item[1]))
        if missing := [name for name in images if name not in classes]:
            raise DataError(f"{table}: no class for {len(missing):,} of {len(images):,} images, such as {missing[0]!r}")
        if other := next((name for name, own in others if any(classes[image] != own[image] for image in own)), ""):
            raise DataError(f"{table!r} and {other!r} give other classes for the same images; remove one of them")
        self.used.add(table)
        return table, classes

    def about_unused(self, split: str) -> str:
        """The tables that `find` looks into, for a message."""
        return "".join(f", and {table} names none of them" for table in self._of(split))

    def _of(self, split: str) -> list[str]:
        tables = [*self._inside, *self._beside]
        words = {table: splits.split_words(os.path.basename(table)) for table in tables}
        return [table for table in tables if not (words[table] and split) or split in words[table]]

    def _lookup(self, table: str, keys: dict[str, str]) -> dict[str, str]:
        """The images among `keys` that a table has, and their classes."""
        with decode_errors(f"{table}: not a table in UTF-8", "save it as UTF-8, or remove it"):
            text = decode_utf8((self._read if table in self._inside else files.read_small)(table))
            head = text.partition("\n")[0]
            rows = [row for row in csv.reader(io.StringIO(text), delimiter=max(",\t;", key=head.count)) if row]
        width = max(map(len, rows), default=0)
        hits = [sum(len(row) > column and row[column] in keys for row in rows) for column in range(width)]
        if not any(hits):
            return {}
        name_column = hits.index(max(hits))
        header, rows = rows[0], [row for row in rows if len(row) > name_column and row[name_column] in keys]
        class_column = _class_column(table, header, name_column)
        found: dict[str, str] = {}
        for row in rows:
            image, value = keys[row[name_column]], row[class_column].strip() if len(row) > class_column else ""
            if os.path.basename(table).lower() in _FIRST_WORD:
                value = value.partition(" ")[0]
            if not value or found.setdefault(image, value) != value:
                raise DataError(f"{table}: {row[name_column]!r} has no class, or two; mend it")
        return found


def is_label(name: str) -> bool:
    """Whether a file may hold classes of images."""
    return _is_table(name) or suffix(name) == ".cls"


def _is_table(name: str) -> bool:
    # A sample of a submission has the names of the test images, and made-up classes.
    name = os.path.basename(name).lower()
    return name in _FIRST_WORD or (suffix(name) in (".csv", ".tsv") and "submission" not in name)


def _keys(images: list[str]) -> dict[str, str]:
    """What a table may call each image -> its name: all ends of its path, with or without the suffix."""
    found: dict[str, str | None] = {}
    for name in images:
        parts = name.split("/")
        for end in {"/".join(parts[depth:]) for depth in range(len(parts))}:
            for key in dict.fromkeys((end, os.path.splitext(end)[0])):
                found[key] = None if key in found else name
    return {key: name for key, name in found.items() if name is not None}


def _class_column(table: str, header: list[str], name_column: int) -> int:
    if os.path.basename(table).lower() in _FIRST_WORD:
        return 1
    others = [column for column in range(len(header)) if column != name_column]
    called = [column for column in others if "".join(filter(str.isalnum, header[column])).lower() in CLASS_COLUMNS]
    if len(others) == 1 or len(called) == 1:
        return (others if len(others) == 1 else called)[0]
    raise DataError(
        f"{table}: which of its columns {', '.join(map(repr, (header[column] for column in others)))} is the class is "
        f"not clear: keep one, or call one 'label'"
    )
