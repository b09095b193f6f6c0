"""Labelled images that TFDS prepared, as ArrayRecord or TFRecord: a folder with features.json and
dataset_info.json, such as .../imagenet2012/5.1.0, or `tfds:NAME[/CONFIG][:VERSION]` below
TFDS_DATA_DIR or ~/tensorflow_datasets.

The features have the names `image` and `label`, or they are the only ones of their kind. The name
of an image is the feature `file_name` if there is one, else its record. Needs no TensorFlow.
"""

import bisect
import functools
import io
import itertools
import resource
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from gmlp_flax.data import fingerprints
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.fingerprints import Fingerprint
from gmlp_flax.data.images.examples import ImageExamples
from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import cache, files, records, tfds_folders
from gmlp_flax.io.cache import ResultCache
from gmlp_flax.io.records import BadRecord, TFRecordFile
from gmlp_flax.io.tfds_folders import Folder, Shard

FORM = "a TFDS folder of images"
FORMATS = ("array_record", "tfrecord")

_FILE_NAMES = ("file_name", "filename")  # features with an image's file name in TFDS's builders
_THREADS = 16  # to index TFRecord files


def folder_at(path: str) -> Folder | None:
    """The TFDS folder at a path, or None if it is not one.

    Raises:
        DataError: the folder is not prepared, or its metadata are missing or damaged.
    """
    path = tfds_folders.find(path)
    features_path = files.join(path, "features.json")
    # Checked first, because listing a folder of a million images takes a long time.
    if not files.exists(features_path):
        return None
    listing = files.find_files(path)
    return tfds_folders.load(path, listing)


def read(folder: Folder, cache_folder: str = "") -> Splits:
    """The splits of a TFDS folder.

    Args:
        folder: the folder, from `folder_at`.
        cache_folder: keeps the indexes of TFRecord files; "" for the default folder.

    Raises:
        DataError: the folder has another format. When a split is read: there is no such feature, or
            shards are missing, empty or truncated.
    """
    if folder.file_format not in FORMATS:
        expected = " or ".join(FORMATS)
        raise DataError(
            f"{folder.path!r} is in TFDS's format {folder.file_format!r}, from which images are "
            f"not read; expected {expected}: prepare it with "
            "`tfds build --file_format=array_record`"
        )
    read_split = functools.partial(_read_split, folder, cache_folder)
    return Splits.of_names(folder.path, FORM, folder.lengths, read_split)


def _read_split(folder: Folder, cache_folder: str, split: str) -> Dataset:
    examples = TFDSImages(folder, split, cache_folder)
    return Dataset(
        path=folder.path,
        form=FORM,
        examples=examples,
        split=split,
        classes=examples.classes,
        files=tuple(folder.shard_files(split)),
        columns=(examples.image, examples.label),
        stratified=True,
    )


class TFDSImages(ImageExamples):
    """The images of a split of a TFDS folder, with "label" int32.

    TFRecord files are walked once to index their records, and the index is kept. The shards of a
    remote folder are copied to this disk as they are read. Positions are those of
    `tfds.data_source`.

    Args:
        folder, cache_folder: see `read`.
        split: one of its splits.

    Raises:
        DataError: as in `read`. For items: a label is not one of the classes (test splits may have
            -1).
        BadRecord: for items: the record is damaged, or it holds no image.
    """

    def __init__(self, folder: Folder, split: str, cache_folder: str = ""):
        import tensorflow_datasets as tfds

        self.path = folder.path
        self.split = split
        self.image = _feature_of_kind(folder, tfds.features.Image, "image")
        self.label = _feature_of_kind(folder, tfds.features.ClassLabel, "label")
        self._file_name = _text_feature(folder)
        label_feature = folder.fields[self.label]
        self.classes = tuple(label_feature.names or ())
        if not self.classes:
            raise DataError(
                f"{folder.path!r}: feature {self.label!r} has no class names; prepare or copy it "
                "again"
            )
        self._shards = folder.shards(split)
        lengths = [shard.records for shard in self._shards]
        self._stops = list(itertools.accumulate(lengths))
        index_folder = cache_folder or cache.default_folder()
        self._records = _Shards(folder, self._shards, index_folder)

    def __len__(self) -> int:
        return self._stops[-1]

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = bisect.bisect_right(self._stops, index)
        shard = self._shards[number]
        stop = self._stops[number]
        start = stop - shard.records
        position = index - start
        where = f"record {position} of {shard.file.name}"
        with decode_errors(f"{where} cannot be read", "copy or prepare it again", BadRecord):
            record = self._records.read(number, position)
            features = records.example_features(record)
            return self._example(features, where)

    def _example(self, features: Any, where: str) -> dict[str, Any]:
        images = features[self.image].bytes_list.value
        labels = features[self.label].int64_list.value
        image_count = len(images)
        label_count = len(labels)
        if image_count != 1 or label_count != 1:
            raise BadRecord(f"{image_count} images and {label_count} labels, expected one of each")
        [image] = images
        [label] = labels
        class_count = len(self.classes)
        if not 0 <= label < class_count:
            raise DataError(
                f"{self.path!r}, {where}: label {label} is not one of {class_count} classes; "
                f"give a split with labels in place of {self.split!r}"
            )
        name = self._name(features) or where
        return {"image": image, "label": np.int32(label), "name": name}

    def _name(self, features: Any) -> str:
        """The file name of an image, or "" if the record has none."""
        if not self._file_name:
            return ""
        names = features[self._file_name].bytes_list.value
        if not names:
            return ""
        name = names[0]
        return name.decode("utf-8", "replace")

    def read(self, index: int) -> bytes:
        example = self[index]
        return example["image"]

    def key(self, index: int) -> str:
        return str(index)

    def size(self, index: int) -> None:
        return None

    def fingerprint(self, classes: Sequence[str], labels: np.ndarray | None) -> Fingerprint:
        """The fingerprint of the files of the split."""
        members = [shard.file for shard in self._shards]
        return fingerprints.of_files(members)


def _text_feature(folder: Folder) -> str:
    """The feature with an image's file name, or ""."""
    import tensorflow_datasets as tfds

    for name in _FILE_NAMES:
        feature = folder.fields.get(name)
        if isinstance(feature, tfds.features.Text):
            return name
    return ""


def _feature_of_kind(folder: Folder, kind: type, name: str) -> str:
    """The feature of a kind: the one with this name, or the only one of the kind."""
    names = []
    for key, feature in folder.fields.items():
        if isinstance(feature, kind):
            names.append(key)
    if name in names:
        return name
    if len(names) != 1:
        raise DataError(
            f"{folder.path!r} has {len(names)} features of kind {kind.__name__} and none of them "
            f"is {name!r}, found {folder.listed}; give a data set with one image and one label per "
            "example"
        )
    return names[0]


class _Shards:
    """The records of shards, each of which has the number of records in the folder's metadata.

    Local shards are checked at once. A remote shard is copied to this disk when it is first read.
    Open files are not pickled.
    """

    def __init__(self, folder: Folder, shards: Sequence[Shard], cache_folder: str):
        self._arguments = folder, shards, cache_folder
        self._shards = shards
        self._indexes: Sequence[np.ndarray | None] = [None] * len(shards)
        is_tfrecord = folder.file_format == "tfrecord"
        if is_tfrecord:
            self._indexes = _indexes(shards, cache_folder)
        is_remote = files.is_remote(folder.path)
        most_open = len(shards)
        if is_remote:
            most_open = _most_copies(shards)
        if not is_remote and not is_tfrecord:
            _allow_open_files(most_open)
        self._open = ResultCache(self._open_shard, most_open)
        if not is_remote:
            numbers = range(len(shards))
            with ThreadPoolExecutor(_THREADS) as pool:
                opened = pool.map(self._open, numbers)
                list(opened)  # raises what opening a shard raises

    def read(self, number: int, position: int) -> bytes:
        """A record of a shard."""
        records_of_shard, _ = self._open(number)
        return records_of_shard[position]

    def _open_shard(self, number: int) -> tuple[Any, cache.LocalCopy]:
        """A shard's records; raises DataError if they are damaged or not as many as expected."""
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        shard = self._shards[number]
        index = self._indexes[number]
        path = shard.file.path
        copy = cache.LocalCopy(shard.file)
        with decode_errors(f"{path}: truncated or damaged", "copy or prepare it again"):
            if index is None:
                file = ArrayRecordDataSource(copy.path)
            else:
                file = TFRecordFile(copy.path, index)
            count = len(file)
        if count != shard.records:
            raise DataError(
                f"{path}: {count} records where {shard.records} were expected: copy or prepare it "
                "again"
            )
        return file, copy

    def __reduce__(self):
        return _Shards, self._arguments


def _indexes(shards: Sequence[Shard], cache_folder: str) -> list[np.ndarray]:
    """`TFRecordFile.offsets` of every shard, kept in a file until the shards change, because each
    record takes a read."""

    def offsets_of(shard: Shard) -> np.ndarray:
        """Where the records of a shard begin."""
        file = TFRecordFile(shard.file.path)
        return file.offsets

    def make() -> bytes:
        """The file with the offsets of all shards."""
        with ThreadPoolExecutor(_THREADS) as pool:
            offsets_of_shards = pool.map(offsets_of, shards)
            offsets = list(offsets_of_shards)
        content = io.BytesIO()
        np.savez(content, *offsets)
        return content.getvalue()

    members = [shard.file for shard in shards]
    key = cache.cache_key("index", members)
    path = Path(cache_folder, f"tfrecord-{key}.npz")
    index_file = cache.cached_file(path, make)
    with np.load(index_file) as arrays:
        return [arrays[f"arr_{number}"] for number in range(len(shards))]


def _most_copies(shards: Sequence[Shard]) -> int:
    """How many copies of remote shards may be open. Open copies cannot be deleted, so they take at
    most a quarter of the cache."""
    sizes = [shard.file.size for shard in shards]
    largest = max(sizes)
    quarter = cache.limit() // 4
    fitting = quarter // largest
    most = min(len(shards), fitting)
    return max(1, most)


def _allow_open_files(count: int) -> None:
    """Raises the soft limit, also for worker processes: ArrayRecord keeps files open, and ImageNet
    has 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    wanted = soft + count
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
