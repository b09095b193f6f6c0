"""Shared by the readers of image folders: the folders of splits, and data sets of labelled
files."""

from collections.abc import Iterable, Mapping, Sequence

from gmlp_flax.data import rows, splits
from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.images import examples
from gmlp_flax.data.images.examples import StoredImages
from gmlp_flax.data.images.stores import Store
from gmlp_flax.errors import DataError, listed
from gmlp_flax.io import files

_HEIC = (".heic", ".heif")
FORMS = "expected ROOT/CLASS/FILES, ROOT/SPLIT/CLASS/FILES, or a labels.csv beside the images"


def require_images(store: Store) -> None:
    """Raises DataError if there is no image in a store."""
    if store.images:
        return
    kinds = files.count_by_suffix(store.names) or "no files"
    advice = _heic_advice(store.names)
    raise DataError(f"{store.path!r} holds no images ({kinds}){advice}: {FORMS}")


def unread_files_note(store: Store, read: Iterable[str] = ()) -> str:
    """A line that counts by suffix the files that are not images; "" if there are none.

    Args:
        store: the files.
        read: names of other files that were read, such as tables.
    """
    used = set(read)
    others = [name for name in store.others if name not in used]
    note = rows.unread_note(store.path, others)
    return note + _heic_advice(others)


def _heic_advice(names: Iterable[str]) -> str:
    """What to do about the photos of a telephone, which Pillow cannot read; "" if there are none."""
    if any(name.lower().endswith(_HEIC) for name in names):
        return "; convert HEIC photos to JPEG"
    return ""


def missing_note(store: Store, table: str, listed_images: int, images: int) -> str:
    """A line if a table lists more images than there are, else ""."""
    if listed_images == images:
        return ""
    missing = listed_images - images
    return f"{store.path!r}: {missing:,} of {listed_images:,} images of {table} are missing"


def split_folders(store: Store, ignore_splits: bool = False) -> dict[str, str]:
    """The folders of splits: split -> the prefix of its names, such as "train/".

    Args:
        store: the files.
        ignore_splits: whether all files are one data set, whatever the names of the folders mean.

    Returns:
        {"": ""} if no first folder means a split.

    Raises:
        DataError: some first folders mean splits and others do not, or two mean the same.
    """
    require_images(store)
    if ignore_splits:
        return {"": ""}
    tops = first_folders(store.images)
    meant = {top: splits.split_of_folder(top) for top in tops if top}
    names_splits = any(meant.values())
    if not names_splits:
        _refuse_numbered_splits(store.path, list(meant))
        return {"": ""}
    if "" in tops:
        outside, *_ = tops[""]  # an image outside of all folders
        meant[outside] = ""
    splits.require_all_or_none(store.path, meant)
    prefixes: dict[str, str] = {}
    for top, split in meant.items():
        if split in prefixes:
            other = prefixes[split].rstrip("/")
            raise DataError(
                f"{store.path!r}: {other!r} and {top!r} both mean the split {split!r}: join them"
            )
        prefixes[split] = f"{top}/"
    return prefixes


def _refuse_numbered_splits(path: str, names: list[str]) -> None:
    """Raises DataError if the names of all folders are words for splits with a suffix, like
    train1."""
    if len(names) > 1 and all(map(splits.names_split, names)):
        quoted = listed(map(repr, names))
        words = ", ".join(splits.WORDS)
        raise DataError(
            f"{path!r}: the folders {quoted} may be splits: rename each to one word of {words}, or "
            f"give --config.data.split={splits.ALL} if they are classes"
        )


def first_folders(names: Iterable[str], prefix: str = "") -> dict[str, list[str]]:
    """The first folder under a prefix -> the names in it; "" for names directly under it."""
    folders: dict[str, list[str]] = {}
    length = len(prefix)
    for name in names:
        if not name.startswith(prefix):
            continue
        rest = name[length:]
        first, slash, _ = rest.partition("/")
        folder = first if slash else ""
        members = folders.setdefault(folder, [])
        members.append(name)
    return folders


def labelled(
    store: Store,
    form: str,
    split: str,
    class_of: Mapping[str, str],
    columns: tuple[str, ...] = (),
    declared: Sequence[str] = (),
) -> Dataset:
    """The data set of some images of a store.

    Args:
        store: the files.
        form: the documented form, in words.
        split: the name of the split.
        class_of: name of the image -> name of its class.
        columns: the columns of the table that was read.
        declared: the classes in their order, if the data declare them.
    """
    names = sorted(class_of)
    labels = [class_of[name] for name in names]
    dataset = Dataset(
        path=store.path,
        form=form,
        examples=StoredImages(store.reader, names),
        split=split,
        columns=columns,
    )
    return examples.with_classes(dataset, labels, declared)
