"""What the readers of image folders share: the folders of splits, and data sets of labelled
files."""

from collections.abc import Iterable, Mapping, Sequence

from gmlp_flax.data import rows, splits
from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.images import examples
from gmlp_flax.data.images.examples import StoredImages
from gmlp_flax.data.images.stores import Store
from gmlp_flax.errors import DataError, listed
from gmlp_flax.io import files

FORMS = "expected ROOT/CLASS/FILES, ROOT/SPLIT/CLASS/FILES, or a labels.csv beside the images"


def require_images(store: Store) -> None:
    """Raises DataError if there is no image in a store."""
    if not store.images:
        kinds = files.count_by_suffix(store.names) or "no files"
        raise DataError(f"{store.path!r} holds no images ({kinds}): {FORMS}")


def others_note(store: Store, read: Iterable[str] = ()) -> str:
    """A line that counts the files that are no images, by suffix; "" if there is none.

    Args:
        store: the files.
        read: names of those that were read otherwise, such as tables.
    """
    used = set(read)
    others = [name for name in store.others if name not in used]
    return rows.unread_note(store.path, others)


def missing_note(store: Store, table: str, listed_images: int, images: int) -> str:
    """A line for a table that lists more images than there are; "" if it lists as many."""
    if listed_images == images:
        return ""
    missing = listed_images - images
    return f"{store.path!r}: {missing:,} of {listed_images:,} images of {table} are not there"


def split_folders(store: Store, as_one: bool = False) -> dict[str, str]:
    """The folders of splits: split -> the beginning of its names, such as "train/".

    Args:
        store: the files.
        as_one: whether all are one data set, whatever the folders are called.

    Returns:
        {"": ""} if no first folder means a split.

    Raises:
        DataError: some first folders mean splits and others do not, or two mean the same.
    """
    require_images(store)
    if as_one:
        return {"": ""}
    tops = first_folders(store.images)
    meant = {top: splits.split_of_folder(top) for top in tops if top}
    if not any(meant.values()):
        _refuse_numbered_splits(store.path, list(meant))
        return {"": ""}
    if "" in tops:
        meant[tops[""][0]] = ""  # an image outside of all folders
    splits.require_all_or_none(store.path, meant)
    folders: dict[str, str] = {}
    for top, split in meant.items():
        other = folders.setdefault(split, top)
        if other != top:
            raise DataError(
                f"{store.path!r}: {other!r} and {top!r} both mean the split {split!r}: join them"
            )
    return {split: f"{top}/" for split, top in folders.items()}


def _refuse_numbered_splits(path: str, names: list[str]) -> None:
    """Raises DataError if all folders are called as splits with something more, as train1."""
    if len(names) > 1 and all(splits.names_split(name) for name in names):
        raise DataError(
            f"{path!r}: the folders {listed(map(repr, names))} may be splits: call them by one "
            f"word of {', '.join(splits.WORDS)}, or give --config.data.split={splits.ALL} if they "
            "are classes"
        )


def first_folders(names: Iterable[str], prefix: str = "") -> dict[str, list[str]]:
    """The first folder behind a prefix -> the names in it; "" for names right behind it."""
    folders: dict[str, list[str]] = {}
    length = len(prefix)
    for name in names:
        if not name.startswith(prefix):
            continue
        first, slash, _ = name[length:].partition("/")
        folder = first if slash else ""
        folders.setdefault(folder, []).append(name)
    return folders


def labelled(
    store: Store,
    form: str,
    split: str,
    class_of: Mapping[str, str],
    notes: Iterable[str] = (),
    columns: Sequence[str] = (),
    declared: Sequence[str] = (),
) -> Dataset:
    """The data set of some images of a store.

    Args:
        store: the files.
        form: the documented form, in words.
        split: its name.
        class_of: name of the image -> name of its class.
        notes: for the user, without those that are empty.
        columns: of the table that was read.
        declared: the classes in their order, if the data declare them.
    """
    names = sorted(class_of)
    labels = [class_of[name] for name in names]
    images = StoredImages(store.reader, names)
    return examples.labelled(
        store.path,
        form,
        split,
        images,
        labels,
        declared=declared,
        columns=columns,
        notes=notes,
    )
