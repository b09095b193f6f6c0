"""ImageNet as published: `ROOT/train/WNID/*.JPEG`, and `ROOT/val/ILSVRC2012_val_*.JPEG` with
Kaggle's LOC_val_solution.csv in ROOT or in `ROOT/val`.

ROOT may be the folder `val` itself. `train` is read as class folders; `test` has no classes.
"""

import csv
import io
import re

from gmlp_flax.data import splits
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.images import folders
from gmlp_flax.data.images.stores import Store
from gmlp_flax.data.readers import class_folders
from gmlp_flax.errors import DataError
from gmlp_flax.io.records import BadRecord, decode_utf8

FORM = "ImageNet's folders"
SOLUTION = "LOC_val_solution.csv"

_VALIDATION = re.compile(r"ILSVRC2012_val_\d+\.\w+")


def matches(store: Store) -> bool:
    """Whether ROOT, or its folder of the validation split, has ImageNet's validation images."""
    for name in store.images:
        folder, _, base = name.rpartition("/")
        split = splits.split_of_folder(folder)
        is_in_place = not folder or split == splits.VALIDATION_SPLIT
        if is_in_place and _VALIDATION.fullmatch(base):
            return True
    return False


def read(store: Store, ignore_splits: bool = False) -> Splits:
    """The splits of ImageNet's folders. `ignore_splits` is refused, because `val` has no class
    folders.

    Raises:
        DataError: when `validation` is read: LOC_val_solution.csv is missing, or has no class for
            an image.
    """
    is_alone = any(_VALIDATION.fullmatch(name) for name in store.images)
    return class_folders.read_beside_validation(
        store, FORM, ignore_splits, is_alone, _read_validation
    )


def _read_validation(store: Store, prefix: str) -> Dataset:
    tables = _solution_tables(store, prefix)
    if not tables:
        folder = prefix or "it"
        raise DataError(
            f"{store.path!r}: {folder} holds ImageNet's validation images and no {SOLUTION}: copy "
            "it there, from the top of Kaggle's archive"
        )
    table = tables[0]
    class_of_key = _read_solution(store, table)
    class_of = {}
    for name in store.images:
        if not name.startswith(prefix):
            continue
        _, _, base = name.rpartition("/")
        key, _, _ = base.partition(".")
        if key not in class_of_key:
            raise DataError(f"{store.path!r}: {table} has no class for {name!r}")
        class_of[name] = class_of_key[key]
    listed_images = len(class_of_key)
    images = len(class_of)
    missing_note = folders.missing_note(store, table, listed_images, images)
    unread_files_note = folders.unread_files_note(store, tables)
    dataset = folders.labelled(store, FORM, splits.VALIDATION_SPLIT, class_of)
    return dataset.with_notes(missing_note, unread_files_note)


def _solution_tables(store: Store, prefix: str) -> list[str]:
    """The names of LOC_val_solution.csv in ROOT and under a prefix; [] if there is none."""
    names = (SOLUTION, prefix + SOLUTION)
    return [name for name in names if name in store.names]


def _read_rows(where: str, text: str) -> list[list[str]]:
    """The rows of LOC_val_solution.csv, without its header."""
    stream = io.StringIO(text, newline="")
    reader = csv.reader(stream, strict=True)
    try:
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise DataError(f"{where}, line {reader.line_num}: not CSV ({error})") from None
    if not rows or rows[0] != ["ImageId", "PredictionString"]:
        raise DataError(f"{where}: expected Kaggle's header, ImageId,PredictionString")
    return rows[1:]


def _read_solution(store: Store, name: str) -> dict[str, str]:
    """Image without its suffix -> its WordNet id, the first word of its row; boxes follow it."""
    where = f"{store.path}/{name}"
    try:
        content = store.read(name)
        text = decode_utf8(content)
    except BadRecord as error:
        raise DataError(f"{where}: {error}") from None
    class_of = {}
    rows = _read_rows(where, text)
    for number, row in enumerate(rows, start=2):
        words = row[-1].split()
        if len(row) != 2 or not words:
            raise DataError(f"{where}, row {number}: expected an image and its class")
        image, _ = row
        class_of[image] = words[0]
    return class_of
