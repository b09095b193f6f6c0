"""Examples of TFDS folders as rows: texts and numbers by the names of their features."""

from collections.abc import Iterator, Sequence
from typing import Any

from gmlp_flax.data.rows import Located, Row
from gmlp_flax.io import records
from gmlp_flax.io.records import BadRecord, decode_utf8
from gmlp_flax.io.tfds_folders import Folder


def read_rows(folder: Folder, split: str, columns: Sequence[str]) -> Iterator[Located]:
    """The examples of a split as rows, in order.

    Args:
        folder: a TFDS folder.
        split: one of its splits.
        columns: names of the features to read, of which others may be images.

    Raises:
        DataError: a shard is missing or damaged.
    """
    classes = {name: declared_classes(folder, name) for name in columns}
    for where, data in folder.records(split):
        try:
            yield Located(where, _row(data, classes))
        except BadRecord as error:
            yield Located(where, error)


def declared_classes(folder: Folder, feature: str) -> tuple[str, ...]:
    """The names of a feature's classes, in their order; () if it has none."""
    return tuple(getattr(folder.fields.get(feature), "names", None) or ())


def _row(data: bytes | BadRecord, classes: dict[str, tuple[str, ...]]) -> Row:
    """The features of a record that `classes` names."""
    if isinstance(data, BadRecord):
        raise data
    features = records.example_features(data)
    row: Row = {}
    for name, class_names in classes.items():
        if name in features:
            row[name] = _value(features[name], class_names)
    return row


def _value(feature: Any, classes: tuple[str, ...]) -> Any:
    """The only value of a feature, None without any, a list of several; of a feature with classes
    the name of the class, None for -1."""
    texts = [decode_utf8(value) for value in feature.bytes_list.value]
    values = texts or [*feature.float_list.value] or [*feature.int64_list.value]
    if not values:
        return None
    if len(values) > 1:
        return values
    value = values[0]
    if not classes or not isinstance(value, int) or value >= len(classes):
        return value
    return classes[value] if value >= 0 else None
