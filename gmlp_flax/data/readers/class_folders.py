"""Images in class folders: `ROOT/CLASS/FILES`, or with splits `ROOT/SPLIT/CLASS/FILES`.

The first folder is the class, and folders inside it belong to it. If the names of the first folders
are words for splits (train, training, val, valid, validation, dev, eval, test, testing, in any
case), they are the splits, and the folders inside them are the classes. ROOT is a folder or a tar
file; a tar file inside a tar file is a folder. Images are files with a known suffix. Other files
are counted by suffix, and hidden files are ignored.

Two layouts are refused, because their images would get wrong classes: a single folder around the
classes, and class folders with splits inside.
"""

import functools
from collections.abc import Callable, Container, Mapping, Sequence

from gmlp_flax.data import splits
from gmlp_flax.data.classes import class_name
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.images import folders
from gmlp_flax.data.images.stores import Store
from gmlp_flax.data.readers.image_tables import TABLES
from gmlp_flax.errors import DataError, counted
from gmlp_flax.io import files

FORM = "class folders"


def read(store: Store, ignore_splits: bool = False) -> Splits:
    """The splits of images in class folders.

    Args:
        store: the files.
        ignore_splits: whether the first folders are classes, even if their names mean splits.

    Raises:
        DataError: some first folders mean splits and others do not. When a split is read: an image
            is in no class folder, a class folder has no image, a single folder is around the
            classes, or splits are inside them.
    """
    prefixes = folders.split_folders(store, ignore_splits)
    if not ignore_splits:
        for prefix in prefixes.values():
            _refuse_inner_splits(store, prefix)
    read_split = functools.partial(_read_split, store)
    return Splits.of_groups(store.path, FORM, prefixes, read_split)


def _read_split(store: Store, split: str, prefix: str) -> Dataset:
    by_folder = folders.first_folders(store.images, prefix)
    deeper = _deeper_folders(by_folder, prefix)
    _require_classes(store, prefix, by_folder, deeper)
    class_of: dict[str, str] = {}
    for folder, names in by_folder.items():
        label = class_name(folder)
        for name in names:
            class_of[name] = label
    deeper_note = _deeper_note(store, deeper)
    unread_files_note = folders.unread_files_note(store)
    dataset = folders.labelled(store, FORM, split, class_of)
    return dataset.with_notes(deeper_note, unread_files_note)


def _require_classes(
    store: Store, prefix: str, by_folder: Mapping[str, Sequence[str]], deeper: set[str]
) -> None:
    """Raises DataError unless the first folders under a prefix are classes.

    Args:
        store, prefix: the files.
        by_folder: first folder -> its images; "" for images in no folder.
        deeper: the folders inside class folders.
    """
    if "" in by_folder:
        image, *_ = by_folder[""]
        folder_path = f"{store.path}/{prefix}".rstrip("/")
        tables = " or ".join(TABLES)
        raise DataError(
            f"{folder_path!r}: the image {image!r} is in no class folder: move it into one, or "
            f"give {tables} with the columns file_name and label"
        )
    _refuse_empty(store, prefix, by_folder)
    if len(by_folder) == 1 and deeper:
        [folder] = by_folder
        folder_name = prefix + folder
        advice = "move them up, or give the path of the folder around them"
        if not files.is_folder(store.path):
            advice = f"make the tar file from inside this folder, tar -C {folder_name}"
        raise DataError(
            f"{store.path!r}: {folder_name!r} is the only class folder, and has folders "
            f"inside: if these are the classes, {advice}"
        )


def _refuse_empty(store: Store, prefix: str, with_images: Container[str]) -> None:
    """Raises DataError for a class folder without images."""
    inside = list(store.others)
    for folder in store.folders:
        inside.append(f"{folder}/")
    by_folder = folders.first_folders(inside, prefix)
    for folder, names in by_folder.items():
        if not folder or folder in with_images:
            continue
        folder_name = prefix + folder
        others = [name for name in names if not name.endswith("/")]
        kinds = files.count_by_suffix(others) or "it is empty"
        raise DataError(
            f"{store.path!r}: the folder {folder_name!r} holds no images ({kinds}): each "
            "folder there is a class; fill it, or move it away"
        )


def _refuse_inner_splits(store: Store, prefix: str) -> None:
    """Raises DataError if the name of a folder directly inside a class folder means a split.

    A single folder around all others is not checked here: it is refused when it is read.
    """
    by_folder = folders.first_folders(store.images, prefix)
    if len(by_folder) == 1:
        return
    length = len(prefix)
    deeper = _deeper_folders(by_folder, prefix)
    for folder in sorted(deeper):
        behind_prefix = folder[length:]
        _, _, below = behind_prefix.partition("/")
        split, _, _ = below.partition("/")
        if splits.split_of_folder(split):
            raise DataError(
                f"{store.path!r}: the name of {folder!r} means a split, and it is inside a class: "
                f"move the splits up, as in {split}/CLASS/FILES; --config.data.split={splits.ALL} "
                "reads all as one"
            )


def _deeper_folders(by_folder: Mapping[str, Sequence[str]], prefix: str) -> set[str]:
    """The folders of images inside the class folders under a prefix."""
    depth = prefix.count("/") + 1
    deeper = set()
    for names in by_folder.values():
        for name in names:
            if name.count("/") > depth:
                folder, _, _ = name.rpartition("/")
                deeper.add(folder)
    return deeper


def _deeper_note(store: Store, deeper: set[str]) -> str:
    """A line on folders inside class folders, which belong to these; "" if there are none."""
    if not deeper:
        return ""
    count = counted(len(deeper), "folder")
    example = min(deeper)
    return f"{store.path!r}: {count} inside class folders counted to these, such as {example!r}"


def read_beside_validation(
    store: Store,
    form: str,
    ignore_splits: bool,
    holds_validation: bool,
    read_validation: Callable[[Store, str], Dataset],
) -> Splits:
    """The splits of a published data set whose folder `val` has its own form. Its other folders are
    class folders.

    Args:
        store: the files.
        form: the form of the data set, in words.
        ignore_splits: refused, because `val` has no class folders.
        holds_validation: whether the store is the folder `val` itself.
        read_validation: reads the split `validation` of a store, under a prefix.
    """
    if ignore_splits:
        raise DataError(
            f"{store.path!r}: the splits of {form} cannot be read as one: choose one "
            "by config.data.split"
        )
    prefixes = {splits.VALIDATION_SPLIT: ""}
    if not holds_validation:
        prefixes = folders.split_folders(store)
    readers = {}
    for split, prefix in prefixes.items():
        if split == splits.VALIDATION_SPLIT:
            readers[split] = functools.partial(read_validation, store, prefix)
        else:
            readers[split] = functools.partial(_read_split, store, split, prefix)
    return Splits(store.path, form, readers)
