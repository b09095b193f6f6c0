"""WebDataset's shards: tar files with a file KEY.cls, which holds the class, beside each image
KEY.jpg.

ROOT is a folder of tar files, or one of them; the names of the files may mean splits, such as
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


class ShardedImages(ImageExamples):
    """Images of several tar files.

    Args:
        readers: of the tar files.
        places: of each image, the number of its tar file, and its name there.
        names: of the images, with those of their tar files.
    """

    def __init__(
        self, readers: Sequence[Reader], places: Sequence[tuple[int, str]], names: Sequence[str]
    ):
        self.readers = readers
        self.places = places
        self.names = names

    def read(self, index: int) -> bytes:
        shard, name = self.places[index]
        return self.readers[shard].read(name)

    def size(self, index: int) -> int | None:
        shard, name = self.places[index]
        return self.readers[shard].size(name)


def is_shard(store: Store) -> bool:
    """Whether a tar file holds classes beside its images."""
    return any(name.endswith(CLASS_SUFFIX) for name in store.names)


def read(path: str, as_one: bool = False) -> Splits:
    """The splits of a folder of tar files, or of a tar file.

    Args:
        path: of the folder, or of the tar file.
        as_one: whether all tar files are one data set, whatever their names mean.

    Raises:
        DataError: shards are missing, or only some names mean splits. Of a split: a tar file is
            damaged, or an image and a class do not come in pairs.
    """
    found = files.find_files(path)
    shards = [file for file in found if stores.suffix(file.name) == ".tar"]
    files.check_shards(path, shards)
    note = rows.others_note(path, found, shards)
    readers = {}
    for split, members in splits.group_files(path, found, shards, as_one).items():
        readers[split] = functools.partial(_read_split, path, split, members, note)
    return Splits(path, FORM, readers)


def _read_split(path: str, split: str, members: Sequence[File], note: str) -> Dataset:
    readers: list[Reader] = []
    places: list[tuple[int, str]] = []
    names: list[str] = []
    labels: list[str] = []
    others: list[str] = []
    for shard, file in enumerate(members):
        store = stores.open_tar(file.path)
        readers.append(store.reader)
        others += [name for name in store.names if not _is_read(name)]
        for pair in _pairs(store):
            labels.append(_class(store, pair.label))
            places.append((shard, pair.image))
            names.append(f"{file.name}/{pair.image}")
    if not names:
        raise DataError(f"{path!r}: {counted(len(members), 'tar file')} without any image")
    return examples.labelled(
        path,
        FORM,
        split,
        ShardedImages(readers, places, names),
        labels,
        files=members,
        notes=[note, rows.unread_note(path, others)],
    )


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
            members.setdefault(_key(name), []).append(name)
    pairs = []
    for key, names in members.items():
        images = [name for name in names if is_image(name)]
        labels = [name for name in names if not is_image(name)]
        if len(images) != 1 or labels != [f"{key}{CLASS_SUFFIX}"]:
            raise DataError(
                f"{store.path}: the key {key!r} has {listed(map(repr, names))}: expected one image "
                f"and {key + CLASS_SUFFIX!r} with its class; a tar file of class folders is read "
                "by its own path, or unpacked"
            )
        pairs.append(_Pair(images[0], labels[0]))
    return pairs


def _key(name: str) -> str:
    """A file's name up to the first dot behind its folder, as WebDataset has it."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]


def _class(store: Store, name: str) -> str:
    """The class in a file."""
    try:
        label = class_name(decode_utf8(store.read(name)))
    except BadRecord as error:
        raise DataError(f"{store.path}, {name}: {error}") from None
    if not label:
        raise DataError(f"{store.path}: {name!r} is empty: expected a class")
    return label
