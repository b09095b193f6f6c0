"""Labelled images that TFDS prepared as ArrayRecord or TFRecord, as random-access sources; needs no
TensorFlow.

Positions are those of `tfds.data_source`. Images stay encoded, as with `tfds.decode.SkipDecoding`.
"""

import bisect
import io
import itertools
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from gmlp_flax.data import fingerprints
from gmlp_flax.data.images.folders import ImageSource
from gmlp_flax.data.splits import missing_split
from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import cache, files, records, tfds_folders
from gmlp_flax.io.cache import ResultCache
from gmlp_flax.io.records import BadRecord, TFRecordFile
from gmlp_flax.io.tfds_folders import Folder, Shard

FORMATS = ("array_record", "tfrecord")

# names of the feature with an image's file name in TFDS's builders
_NAMES = ("file_name", "filename")
_THREADS = 16  # to index TFRecord files


def folder_at(path: str) -> Folder | None:
    """The TFDS folder at `path` (see tfds_folders.find), or None if it is not one.

    Raises:
        DataError: the folder is not prepared, or its metadata are missing or damaged.
    """
    path = tfds_folders.find(path)
    # Checked first, because listing a folder of a million images takes long.
    if not files.exists(files.join(path, "features.json")):
        return None
    return tfds_folders.load(path, files.find_files(path))


class TFDSImages(ImageSource):
    """A split of a TFDS folder, of any data set with an image and a class label.

    The features are called `image` and `label`, or they are the only ones of their kind. An item's
    name is the image's file name if the records have it, else the record's number and shard.
    TFRecord files are walked once to index their records, and the index is kept. The shards of a
    remote folder are copied to this disk as they are read.

    Args:
        folder: from `folder_at`.
        split: one of its splits.
        cache_folder: the folder for indexes; "" for the default one.

    Raises:
        DataError: there is no such split or feature, the format is another, or shards are missing,
            empty or truncated.
            From items: a label is not one of the classes (test splits may have -1).
        BadRecord: from items: the record is damaged, or it holds no image.
    """

    def __init__(self, folder: Folder, split: str, cache_folder: str = ""):
        import tensorflow_datasets as tfds

        self.path, self.split = folder.path, split
        if folder.file_format not in FORMATS:
            raise DataError(
                f"{folder.path!r} is in TFDS's format {folder.file_format!r}, of which images are not read; expected "
                f"{' or '.join(FORMATS)}: prepare it with `tfds build --file_format=array_record`"
            )
        if split not in folder.lengths:
            raise missing_split(folder.path, split, tuple(folder.lengths))
        self._image = _feature_of_kind(folder, tfds.features.Image, "image")
        self._label = _feature_of_kind(folder, tfds.features.ClassLabel, "label")
        self._name = next(
            (name for name in _NAMES if isinstance(folder.fields.get(name), tfds.features.Text)), ""
        )
        self.classes = tuple(folder.fields[self._label].names or ())
        if not self.classes:
            raise DataError(
                f"{folder.path!r}: feature {self._label!r} has no class names; prepare or copy it again"
            )
        self._shards = folder.shards(split)
        self._stops = list(itertools.accumulate(shard.records for shard in self._shards))
        self._files = _Shards(folder, self._shards, cache_folder or cache.default_folder())

    def __len__(self) -> int:
        return self._stops[-1]

    def __getitem__(self, index: int) -> dict:
        number = bisect.bisect_right(self._stops, index)
        position = index - self._stops[number] + self._shards[number].records
        where = f"record {position} of {self._shards[number].file.name}"
        with decode_errors(f"{where} cannot be read", "copy or prepare it again", BadRecord):
            return self._item(
                records.example_features(self._files.open(number)[0][position]), where
            )

    def _item(self, feature: Any, where: str) -> dict:
        images, labels = (
            feature[self._image].bytes_list.value,
            feature[self._label].int64_list.value,
        )
        if len(images) != 1 or len(labels) != 1:
            raise BadRecord(f"{len(images)} images and {len(labels)} labels, expected one of each")
        if not 0 <= labels[0] < len(self.classes):
            raise DataError(
                f"{self.path!r}, {where}: label {labels[0]} is none of {len(self.classes)} classes; "
                f"give a split with labels in place of {self.split!r}"
            )
        names = feature[self._name].bytes_list.value if self._name else ()
        name = names[0].decode("utf-8", "replace") if names else where
        return {"image": images[0], "label": np.int32(labels[0]), "name": name}

    def fingerprint(self) -> fingerprints.Fingerprint:
        """That of the files of the split."""
        return fingerprints.of_files([shard.file for shard in self._shards])


def _feature_of_kind(folder: Folder, kind: type, name: str) -> str:
    """The feature of a kind: the one with this name, or the only one."""
    names = [key for key, feature in folder.fields.items() if isinstance(feature, kind)]
    if name not in names and len(names) != 1:
        raise DataError(
            f"{folder.path!r} has {len(names)} features of kind {kind.__name__} and none of them is {name!r}, found "
            f"{folder.listed}; give a data set with one image and one label per example"
        )
    return name if name in names else names[0]


class _Shards:
    """The records of shards, each as a sequence with the number of records in the folder's
    metadata. Local ones are checked at once; a remote one is copied to this disk when it is first
    read. Pickled without what is open."""

    def __init__(self, folder: Folder, shards: list[Shard], cache_folder: str):
        self._arguments = folder, shards, cache_folder
        self._shards, most = shards, len(shards)
        self._indexes = (
            _indexes(shards, cache_folder) if folder.file_format == "tfrecord" else [None] * most
        )
        is_remote = files.is_remote(folder.path)
        if is_remote:  # open copies cannot be deleted: they take a quarter of the cache at most
            most = max(1, min(most, cache.limit() // 4 // max(shard.file.size for shard in shards)))
        elif folder.file_format != "tfrecord":
            _allow_open_files(most)
        self.open = ResultCache(self._open_shard, most)
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(self.open, () if is_remote else range(len(shards))))

    def _open_shard(self, number: int) -> tuple[Any, cache.LocalCopy]:
        """A shard's records; raises DataError if they are damaged or not as many as expected."""
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        shard, index = self._shards[number], self._indexes[number]
        copy, path = cache.LocalCopy(shard.file), shard.file.path
        with decode_errors(f"{path}: truncated or damaged", "copy or prepare it again"):
            file = (
                ArrayRecordDataSource(copy.path)
                if index is None
                else TFRecordFile(copy.path, index)
            )
            count = len(file)
        if count != shard.records:
            raise DataError(
                f"{path}: {count} records where {shard.records} were expected: copy or prepare it again"
            )
        return file, copy

    def __reduce__(self):
        return _Shards, self._arguments


def _indexes(shards: list[Shard], cache_folder: str) -> list[np.ndarray]:
    """`TFRecordFile.offsets` of every shard, kept in a file until the shards change, as each record
    takes a read."""

    def offsets() -> bytes:
        content = io.BytesIO()
        with ThreadPoolExecutor(_THREADS) as pool:
            np.savez(
                content, *pool.map(lambda shard: TFRecordFile(shard.file.path).offsets, shards)
            )
        return content.getvalue()

    path = (
        Path(cache_folder)
        / f"tfrecord-{cache.cache_key('index', [shard.file for shard in shards])}.npz"
    )
    with np.load(cache.cached_file(path, offsets)) as arrays:
        return [arrays[f"arr_{number}"] for number in range(len(shards))]


def _allow_open_files(count: int) -> None:
    """Raises the soft limit, also for worker processes: ArrayRecord keeps files open, and ImageNet
    has 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        wanted = soft + count if hard == resource.RLIM_INFINITY else min(soft + count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
