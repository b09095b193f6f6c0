"""Tiny-ImageNet as published: `ROOT/train/WNID/images/*.JPEG`, and `ROOT/val/images/*.JPEG`
with `ROOT/val/val_annotations.txt`.

ROOT may be the folder `val` itself. A line of val_annotations.txt is an image, its class and its
box, with white space between. `train` is read as class folders; `test` has no classes.
"""

from gmlp_flax.data import splits
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.images import folders
from gmlp_flax.data.images.stores import Store
from gmlp_flax.data.readers import class_folders
from gmlp_flax.errors import DataError
from gmlp_flax.io.records import BadRecord, decode_utf8

FORM = "Tiny-ImageNet's folders"
ANNOTATIONS = "val_annotations.txt"


def matches(store: Store) -> bool:
    """Whether there is a val_annotations.txt in ROOT or in its folder val."""
    places = (ANNOTATIONS, f"val/{ANNOTATIONS}")
    return any(place in store.names for place in places)


def read(store: Store, ignore_splits: bool = False) -> Splits:
    """The splits of Tiny-ImageNet's folders. `ignore_splits` is refused, because `val` has no class
    folders.

    Raises:
        DataError: when `validation` is read: val_annotations.txt has another form, or no class for
            an image.
    """
    is_alone = ANNOTATIONS in store.names
    return class_folders.read_beside_validation(
        store, FORM, ignore_splits, is_alone, _read_validation
    )


def _read_validation(store: Store, prefix: str) -> Dataset:
    table = f"{prefix}{ANNOTATIONS}"
    annotations = _read_annotations(store, table)
    class_of = {}
    for name in store.images:
        if not name.startswith(prefix):
            continue
        _, _, base = name.rpartition("/")
        if base not in annotations:
            raise DataError(f"{store.path!r}: {table} has no class for {name!r}")
        class_of[name] = annotations[base]
    listed_images = len(annotations)
    images = len(class_of)
    missing_note = folders.missing_note(store, table, listed_images, images)
    unread_files_note = folders.unread_files_note(store, [table])
    dataset = folders.labelled(store, FORM, splits.VALIDATION_SPLIT, class_of)
    return dataset.with_notes(missing_note, unread_files_note)


def _read_annotations(store: Store, name: str) -> dict[str, str]:
    """Image -> class."""
    where = f"{store.path}/{name}"
    try:
        content = store.read(name)
        text = decode_utf8(content)
    except BadRecord as error:
        raise DataError(f"{where}: {error}") from None
    class_of = {}
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if len(words) < 2:
            raise DataError(
                f"{where}, line {number}: {line[:60]!r}; expected an image, its class and its box"
            )
        image, label, *_ = words
        class_of[image] = label
    return class_of
