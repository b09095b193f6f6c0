"""Writing a folder as TFDS prepares it, in ArrayRecord: for data that are made here. Needs no TensorFlow."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gmlp_flax.io import files
from gmlp_flax.io.array_writer import new_array_record
from gmlp_flax.io.cache import unwritable, write_atomically

INFO = "dataset_info.json"


def write_labelled_texts(
    folder: str,
    name: str,
    classes: tuple[str, ...],
    splits: Mapping[str, Iterable[tuple[str, int]]],
    more: Mapping[str, Callable[[], bytes]],
) -> None:
    """Writes examples of a "text" and a "label", one shard per split. The same examples give the same bytes.

    A folder is whole if it has INFO, which is written last.

    Args:
        folder: may be remote; then everything is made on this disk and moved there.
        name: of the data set.
        classes: names of the labels.
        splits: name -> texts with the number of their class; read in this order.
        more: other files of the folder, which its readers do not look at; each made when the splits are written.

    Raises:
        DataError: the folder cannot be written to.
    """
    if files.is_remote(folder):
        with tempfile.TemporaryDirectory(prefix="gmlp_flax_") as local:
            files.move_to(folder, _written(Path(local), name, classes, splits, more))
        return
    _written(Path(folder), name, classes, splits, more)


def _written(
    folder: Path,
    name: str,
    classes: tuple[str, ...],
    splits: Mapping[str, Iterable[tuple[str, int]]],
    more: Mapping[str, Callable[[], bytes]],
) -> list[Path]:
    """The files, in the order in which they were written."""
    import tensorflow_datasets as tfds  # slow, and only such folders need it

    features = {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(names=classes)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / INFO).unlink(missing_ok=True)
        tfds.features.FeaturesDict(features).save_config(str(folder))
    except OSError as error:
        raise unwritable(folder, error) from error
    counts, shards = {}, []
    for split, examples in splits.items():
        shards.append(folder / f"{name}-{split}.array_record-00000-of-00001")
        counts[split] = 0
        with new_array_record(shards[-1]) as write:
            for text, label in examples:
                write(_example(text, label))
                counts[split] += 1
    for title, content in more.items():
        _write(folder / title, content())
    _write(folder / INFO, (json.dumps(_info(name, counts), indent=1) + "\n").encode())
    last = [*shards, *(folder / title for title in more), folder / INFO]
    return [*sorted(path for path in folder.iterdir() if path not in last), *last]


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write(content))


def _example(text: str, label: int) -> bytes:
    """A serialised `tf.train.Example`."""
    from tensorflow_datasets.proto import tf_example_pb2

    message: Any = tf_example_pb2.Example()  # type: ignore[reportAttributeAccessIssue]
    message.features.feature["text"].bytes_list.value.append(text.encode())
    message.features.feature["label"].int64_list.value.append(label)
    return message.SerializeToString(deterministic=True)


def _info(name: str, counts: Mapping[str, int]) -> dict[str, Any]:
    """What TFDS reads of a data set that no builder of its own describes."""
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    splits = [
        {"name": split, "filepathTemplate": template, "shardLengths": [str(count)]} for split, count in counts.items()
    ]
    return {"name": name, "version": "1.0.0", "fileFormat": "array_record", "moduleName": name, "splits": splits}
