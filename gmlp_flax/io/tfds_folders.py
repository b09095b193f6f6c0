"""Folders that TFDS prepared: finding and reading them. Needs no TensorFlow."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import files, json_files, records
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord

DATA_COLUMN = "data"  # of TFDS's parquet files: the serialized examples
_Records = Iterator[tuple[int, bytes | BadRecord | None]]


def _tfrecords(path: str, start: int, stop: int | None) -> _Records:
    file = records.TFRecordFile(path)
    return file.records(start, stop)


def _parquet_records(path: str, start: int, stop: int | None) -> _Records:
    return records.parquet_records(path, DATA_COLUMN, start, stop)


_READERS: dict[str, Callable[[str, int, int | None], _Records]] = {
    "array_record": records.array_records,
    "tfrecord": _tfrecords,
    "parquet": _parquet_records,
}
FORMATS = tuple(_READERS)

_INFO = "dataset_info.json"
_METADATA = ("features.json", _INFO)
_CLASS_NAMES = ".labels.txt"
# Names of classes in features.json: today's, in either spelling, and that of old versions of TFDS.
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


class Shard(NamedTuple):
    """One file of a split, and its number of records according to dataset_info.json."""

    file: File
    records: int


class Folder(NamedTuple):
    """The content of a TFDS folder."""

    path: str
    file_format: str  # one of FORMATS
    # split name -> file name of each shard, in order -> its number of records
    lengths: dict[str, dict[str, int]]
    # name -> file, of the files that are there: copies of single splits are common
    files: dict[str, File]
    features: Any  # TFDS's features of an example

    @property
    def fields(self) -> dict[str, Any]:
        """Name -> feature of an example; {} if examples are not dicts."""
        import tensorflow_datasets as tfds

        if isinstance(self.features, tfds.features.FeaturesDict):
            return dict(self.features.items())
        return {}

    @property
    def listed(self) -> str:
        """The names of an example's features, for an error; its type if it has none."""
        names = sorted(self.fields)
        if not names:
            return type(self.features).__name__
        quoted = map(repr, names)
        return ", ".join(quoted)

    def shards(self, split: str) -> list[Shard]:
        """The shards of a split, in order; raises DataError if one is missing or empty."""
        shards = []
        for name, count in self.lengths[split].items():
            if name not in self.files:
                raise DataError(
                    f"{self.path!r}: shard {name!r} is missing; prepare or copy it again"
                )
            file = self.files[name]
            if count < 1:
                raise DataError(
                    f"{file.path}: an empty shard, no record in it; prepare or copy it again"
                )
            shards.append(Shard(file, count))
        return shards

    def shard_files(self, split: str) -> list[File]:
        """The files of a split, as `shards`."""
        return [shard.file for shard in self.shards(split)]

    def records(self, split: str) -> Iterator[tuple[str, bytes | BadRecord]]:
        """Yields the records of a split, in order, each after its name for messages. Raises
        DataError if a shard is missing, truncated or empty."""
        read = _READERS[self.file_format]
        for shard in self.shards(split):
            path = shard.file.path
            # The parquet reader counts row groups, not records.
            end = None if self.file_format == "parquet" else shard.records
            for number, data in read(path, 0, end):
                if isinstance(data, BadRecord):
                    yield path, data  # its message already has the number
                else:
                    yield f"{path}, record {number}", data or b""


def find(path: str) -> str:
    """The folder of `tfds:NAME[/CONFIG][:VERSION]`; any other path is returned unchanged.

    The folder is below TFDS_DATA_DIR or ~/tensorflow_datasets. Without a version, the newest one is
    used. If there is none, a DataError says where it should be and how to get it.
    """
    if not path.startswith("tfds:"):
        return path
    name_and_version = path.removeprefix("tfds:")
    name, _, version = name_and_version.partition(":")
    default_root = os.path.expanduser("~/tensorflow_datasets")
    root = os.environ.get("TFDS_DATA_DIR") or default_root
    parts = name.split("/")
    parent = files.join(root, *parts)
    subfolders = files.subfolders(parent)
    versions = []
    for folder in subfolders:
        if _VERSION.fullmatch(folder) and version in ("", folder):
            versions.append(folder)
    versions.sort(key=_version_numbers, reverse=True)
    # A folder without metadata was not prepared completely: the next older version is tried.
    for folder in versions:
        prepared = files.join(parent, folder)
        if _has_metadata(prepared):
            return prepared
    wanted = files.join(parent, version) if version else parent
    content = "no such folder"
    if subfolders:
        available = ", ".join(subfolders)
        content = f"found {available}"
    raise DataError(
        f"{path!r} is not prepared in {wanted!r} ({content}): prepare it with `tfds build {name} "
        f"--file_format=array_record --data_dir={root}`, copy it there (gcloud storage cp -r), or "
        "set TFDS_DATA_DIR"
    )


def _version_numbers(version: str) -> list[int]:
    numbers = version.split(".")
    return [int(number) for number in numbers]


def _has_metadata(folder: str) -> bool:
    paths = [files.join(folder, name) for name in _METADATA]
    return all(map(files.exists, paths))


def load(path: str, contents: tuple[File, ...]) -> Folder | None:
    """Reads the metadata of the TFDS folder `path`, which has these files, or returns None if it is
    no such folder. Raises DataError if the metadata are missing or damaged, or the format is not
    one of FORMATS."""
    by_name = {file.name: file for file in contents}
    if "features.json" not in by_name:
        return None
    if _INFO not in by_name:
        raise DataError(
            f"{path!r} has no {_INFO}: not a whole TFDS folder; prepare or copy it again"
        )
    with _local_metadata(path, by_name) as folder:
        for name in _METADATA:
            metadata_path = os.path.join(folder, name)
            metadata = json_files.read(metadata_path)
            _refuse_code(metadata, f"{path}/{name}")
        metadata_files = " or ".join(_METADATA)
        what = f"{path!r}: {metadata_files} is damaged"
        with decode_errors(what, "prepare or copy them again"):
            info = _read_info(folder)
            lengths = _lengths(info.splits)
            file_format = info.file_format.value if info.file_format else "unknown"
    if file_format not in FORMATS:
        expected = ", ".join(FORMATS)
        raise DataError(
            f"{path!r} is in TFDS's format {file_format!r}; expected {expected}: prepare it again"
        )
    if not all(lengths.values()) or not lengths:
        raise DataError(
            f"{path!r} has no splits: its preparation was interrupted; prepare or copy it again"
        )
    return Folder(path, file_format, lengths, by_name, info.features)


def _refuse_code(value: Any, where: str) -> None:
    """Raises DataError for a feature whose class is not one of TFDS's own: TFDS would import the
    module of that name."""
    if isinstance(value, list):
        for entry in value:
            _refuse_code(entry, where)
    elif isinstance(value, dict):
        for key, entry in value.items():
            is_class = key in _CLASS_KEYS and isinstance(entry, str)
            if is_class and not entry.startswith("tensorflow_datasets."):
                raise DataError(
                    f"{where}: {key} is {entry!r}, not a class of TFDS; prepare it without"
                )
            if key == "json" and isinstance(entry, str):
                content = entry.encode("utf-8", "replace")
                entry = json_files.parse(content, where)
            _refuse_code(entry, where)


def _read_info(folder: str) -> Any:
    """TFDS's description of the data set in a folder."""
    import tensorflow_datasets as tfds  # slow, and only such folders need it

    builder = tfds.builder_from_directory(folder)
    return builder.info


def _lengths(splits: Any) -> dict[str, dict[str, int]]:
    """`Folder.lengths`, by TFDS's splits."""
    lengths = {}
    for name, split in splits.items():
        file_names = map(os.path.basename, split.filenames)
        shard_names = sorted(file_names)
        shard_lengths = zip(shard_names, split.shard_lengths, strict=True)
        lengths[name] = dict(shard_lengths)
    return lengths


@contextmanager
def _local_metadata(path: str, by_name: dict[str, File]) -> Iterator[str]:
    """Yields the folder itself or, as TFDS knows few remote schemes, a temporary folder with a copy
    of its metadata."""
    if not files.is_remote(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="gmlp_flax_") as folder:
        for name, file in by_name.items():
            # ../x is a name in a bucket
            has_class_names = name.endswith(_CLASS_NAMES) and "/" not in name
            if name in _METADATA or has_class_names:
                content = files.read_small(file.path)
                copy = Path(folder, name)
                copy.write_bytes(content)
        yield folder


def require_text(folder: Folder) -> None:
    """Raises DataError unless the folder's examples have a feature `text`."""
    import tensorflow_datasets as tfds

    text = folder.fields.get("text")
    # a shape means ids of a deprecated encoder
    is_text = isinstance(text, tfds.features.Text) and not text.shape
    if not is_text:
        raise DataError(
            f"{folder.path!r} has no text feature 'text', found {folder.listed}; give a corpus "
            "with one"
        )
