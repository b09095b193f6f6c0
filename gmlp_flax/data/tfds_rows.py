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
        columns: names of the features to read; the others may be images.

    Raises:
        DataError: a shard is missing or damaged.
    """
    classes = {}
    for name in columns:
        classes[name] = declared_classes(folder, name)
    for where, data in folder.records(split):
        try:
            row = _row(data, classes)
        except BadRecord as error:
            yield Located(where, error)
        else:
            yield Located(where, row)


def declared_classes(folder: Folder, feature: str) -> tuple[str, ...]:
    """The names of a feature's classes, in their order; () if it has none."""
    field = folder.fields.get(feature)
    names = getattr(field, "names", None) or ()
    return tuple(names)


def _row(data: bytes | BadRecord, classes: dict[str, tuple[str, ...]]) -> Row:
    """The features of a record that `classes` names."""
    if isinstance(data, BadRecord):
        raise data
    features = records.example_features(data)
    row: Row = {}
    for name, class_names in classes.items():
        if name in features:
            feature = features[name]
            row[name] = _value(feature, class_names)
    return row


def _value(feature: Any, classes: tuple[str, ...]) -> Any:
    """The value of a feature: None if it is empty, and a list if it has several. If the feature has
    classes, it is the name of the class, and None for -1."""
    values = _values(feature)
    if not values:
        return None
    if len(values) > 1:
        return values
    [value] = values
    is_class = classes and isinstance(value, int) and value < len(classes)
    if not is_class:
        return value
    if value < 0:
        return None
    return classes[value]


def _values(feature: Any) -> list[Any]:
    """All values of a feature: texts or numbers."""
    texts = feature.bytes_list.value
    if texts:
        return [decode_utf8(text) for text in texts]
    floats = feature.float_list.value
    if floats:
        return list(floats)
    return list(feature.int64_list.value)
