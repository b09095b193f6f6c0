"""ImageNet as it is published: `ROOT/train/WNID/*.JPEG`, and `ROOT/val/ILSVRC2012_val_*.JPEG` with
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
    """Whether validation images lie in ROOT, or in its folder of the validation split."""
    for name in store.images:
        folder, _, base = name.rpartition("/")
        is_inside = not folder or splits.split_of_folder(folder) == splits.VALIDATION_SPLIT
        if is_inside and _VALIDATION.fullmatch(base):
            return True
    return False


def read(store: Store, as_one: bool = False) -> Splits:
    """The splits of ImageNet's folders; `as_one` is refused, as `val` has no class folders.

    Raises:
        DataError: of `validation`: LOC_val_solution.csv is missing, or has no class for an image.
    """
    is_alone = any(_VALIDATION.fullmatch(name) for name in store.images)
    return class_folders.read_beside_validation(store, FORM, as_one, is_alone, _read_validation)


def _read_validation(store: Store, prefix: str) -> Dataset:
    present = [name for name in (SOLUTION, prefix + SOLUTION) if name in store.names]
    if not present:
        raise DataError(
            f"{store.path!r}: {prefix or 'it'} holds ImageNet's validation images and no "
            f"{SOLUTION}: copy it there, from the top of Kaggle's archive"
        )
    solution = _read_solution(store, present[0])
    images = [name for name in store.images if name.startswith(prefix)]
    class_of = {}
    for name in images:
        _, _, base = name.rpartition("/")
        key, _, _ = base.partition(".")
        if key not in solution:
            raise DataError(f"{store.path!r}: {present[0]} has no class for {name!r}")
        class_of[name] = solution[key]
    notes = [
        folders.missing_note(store, present[0], len(solution), len(class_of)),
        folders.others_note(store, present),
    ]
    return folders.labelled(store, FORM, splits.VALIDATION_SPLIT, class_of, notes)


def _read_solution(store: Store, name: str) -> dict[str, str]:
    """Image, without its suffix -> the first word of its row, the WordNet id; boxes follow it."""
    where = f"{store.path}/{name}"
    try:
        text = decode_utf8(store.read(name))
    except BadRecord as error:
        raise DataError(f"{where}: {error}") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise DataError(f"{where}, line {reader.line_num}: not CSV ({error})") from None
    if not rows or rows[0] != ["ImageId", "PredictionString"]:
        raise DataError(f"{where}: expected Kaggle's header, ImageId,PredictionString")
    class_of = {}
    for number, row in enumerate(rows[1:], start=2):
        words = row[-1].split()
        if len(row) != 2 or not words:
            raise DataError(f"{where}, row {number}: expected an image and its class")
        class_of[row[0]] = words[0]
    return class_of
