"""WebDataset's shards: tar files with a file KEY.cls, which holds the class, beside each image
KEY.jpg.

ROOT is a folder of tar files, or a tar file. The names of the files may mean splits, such as
train-000000.tar. Images are read in place, and files of other kinds are counted.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from gmlp_flax.data import rows, splits
from gmlp_flax.data.classes import class_name
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.images import examples, stores
from gmlp_flax.data.images.examples import ImageExamples
from gmlp_flax.data.images.stores import Reader, Store, is_image
from gmlp_flax.errors import DataError, counted, listed
from gmlp_flax.io import files
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord, decode_utf8

FORM = "WebDataset shards"
CLASS_SUFFIX = ".cls"


class Location(NamedTuple):
    """The location of an image: the number of its tar file, and its name there."""

    shard: int
    name: str


class ShardedImages(ImageExamples):
    """Images of several tar files.

    Args:
        readers: the readers of the tar files.
        locations: the locations of the images.
        names: the names of the images, with those of their tar files.
    """

    def __init__(
        self, readers: Sequence[Reader], locations: Sequence[Location], names: Sequence[str]
    ):
        self.readers = readers
        self.locations = locations
        self.names = names

    def read(self, index: int) -> bytes:
        shard, name = self.locations[index]
        reader = self.readers[shard]
        return reader.read(name)

    def size(self, index: int) -> int | None:
        shard, name = self.locations[index]
        reader = self.readers[shard]
        return reader.size(name)


def is_shard(store: Store) -> bool:
    """Whether a tar file holds classes beside its images."""
    return any(name.endswith(CLASS_SUFFIX) for name in store.names)


def read(path: str, ignore_splits: bool = False) -> Splits:
    """The splits of a folder of tar files, or of a tar file.

    Args:
        path: the path of the folder, or of the tar file.
        ignore_splits: whether all tar files are one data set, whatever their names mean.

    Raises:
        DataError: shards are missing, or only some names mean splits. When a split is read: a tar
            file is damaged, or an image and a class do not come in pairs.
    """
    listing = files.find_files(path)
    shards = []
    for file in listing:
        suffix = stores.suffix(file.name)
        if suffix == ".tar":
            shards.append(file)
    files.check_shards(path, shards)
    note = rows.unread_files_note(path, listing, shards)
    groups = splits.group_files(path, listing, shards, ignore_splits)
    read_split = functools.partial(_read_split, path, note)
    return Splits.of_groups(path, FORM, groups, read_split)


def _read_split(path: str, note: str, split: str, members: Sequence[File]) -> Dataset:
    readers: list[Reader] = []
    locations: list[Location] = []
    names: list[str] = []
    labels: list[str] = []
    unread: list[str] = []
    for shard, file in enumerate(members):
        store = stores.open_tar(file.path)
        readers.append(store.reader)
        unread += [name for name in store.names if not _is_read(name)]
        for pair in _pairs(store):
            location = Location(shard, pair.image)
            label = _class(store, pair.label)
            locations.append(location)
            names.append(f"{file.name}/{pair.image}")
            labels.append(label)
    if not names:
        tar_files = counted(len(members), "tar file")
        raise DataError(f"{path!r}: {tar_files} without any image")
    dataset = Dataset(
        path=path,
        form=FORM,
        examples=ShardedImages(readers, locations, names),
        split=split,
        files=tuple(members),
    )
    unread_note = rows.unread_note(path, unread)
    labelled = examples.with_classes(dataset, labels)
    return labelled.with_notes(note, unread_note)


class _Pair(NamedTuple):
    """The names of an image and of the file with its class."""

    image: str
    label: str


def _is_read(name: str) -> bool:
    return is_image(name) or name.endswith(CLASS_SUFFIX)


def _pairs(store: Store) -> list[_Pair]:
    """The pairs of files with one key, in order; raises DataError for a key with others."""
    members: dict[str, list[str]] = {}
    for name in store.names:
        if _is_read(name):
            key = _key(name)
            names = members.setdefault(key, [])
            names.append(name)
    pairs = []
    for key, names in members.items():
        images = [name for name in names if is_image(name)]
        label = key + CLASS_SUFFIX
        is_pair = len(images) == 1 and len(names) == 2 and label in names
        if not is_pair:
            available = listed(map(repr, names))
            raise DataError(
                f"{store.path}: the key {key!r} has {available}: expected one image "
                f"and {label!r} with its class; a tar file of class folders is read "
                "by its own path, or unpacked"
            )
        [image] = images
        pair = _Pair(image, label)
        pairs.append(pair)
    return pairs


def _key(name: str) -> str:
    """WebDataset's key: a file's name up to the first dot after its folder."""
    folder, slash, base = name.rpartition("/")
    key, _, _ = base.partition(".")
    return folder + slash + key


def _class(store: Store, name: str) -> str:
    """The class in a file."""
    try:
        content = store.read(name)
        text = decode_utf8(content)
        label = class_name(text)
    except BadRecord as error:
        raise DataError(f"{store.path}, {name}: {error}") from None
    if not label:
        raise DataError(f"{store.path}: {name!r} is empty: expected a class")
    return label
