"""Images in rows: .parquet or .arrow files with the columns `image` and `label`, as Hugging Face's
package datasets writes them (save_to_disk, or a repository's folder data/).

A row's image is encoded bytes, or {"bytes", "path"}; if these bytes are null, it is the file at the
path, from the table's folder on. A file, or a folder of files whose names or folders mean splits,
such as train-00000-of-00010.parquet. Encoded images lie in memory, in each worker process too, so
there may be 8 GiB of files at most.
"""

import functools
import os
from collections.abc import Mapping, Sequence

from gmlp_flax.data import classes, rows, splits
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.images import examples, stores
from gmlp_flax.data.images.examples import ListedImages
from gmlp_flax.errors import DataError, listed
from gmlp_flax.io import files
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord

FORM = "rows with image and label"
IMAGE_COLUMN = "image"
LABEL_COLUMN = "label"
MEMORY_BYTES = 8 << 30  # of files whose rows lie in memory, at most


def read(path: str, as_one: bool = False) -> Splits:
    """The splits of images in rows.

    Args:
        path: of a file, or of a folder with files.
        as_one: whether all files are one data set, whatever their names mean.

    Raises:
        DataError: shards are missing, only some names mean splits, or the files are too large. Of a
            split: a column is missing, or a row has no image or no class.
    """
    found = files.find_files(path)
    tables = rows.find_by_suffix(path, found, rows.COLUMNAR)
    note = rows.others_note(path, found, tables)
    readers = {}
    for split, members in splits.group_files(path, found, tables, as_one).items():
        readers[split] = functools.partial(_read_split, path, split, members, note)
    return Splits(path, FORM, readers)


def _read_split(path: str, split: str, members: Sequence[File], note: str) -> Dataset:
    total = sum(file.size for file in members)
    if total > MEMORY_BYTES:
        raise DataError(
            f"{path!r}: {total / 2**30:.1f} GiB of rows, of which at most "
            f"{MEMORY_BYTES >> 30} GiB fit into memory: write the images to class folders"
        )
    names: list[str] = []
    images: list[bytes | str] = []
    labels: list[str] = []
    declared: tuple[str, ...] = ()
    for file in members:
        _require_columns(file.path)
        declared = rows.declared_classes(file.path, LABEL_COLUMN) or declared
        for where, row in rows.read_rows(file.path, (IMAGE_COLUMN, LABEL_COLUMN)):
            if isinstance(row, BadRecord):
                raise DataError(f"{where}: {row}")
            names.append(file.name + where.removeprefix(file.path))
            images.append(_image(file, where, row))
            labels.append(classes.class_in_cell(row[LABEL_COLUMN], where, LABEL_COLUMN))
    if not names:
        raise DataError(f"{path!r} holds no rows: give other data")
    return examples.labelled(
        path,
        FORM,
        split,
        ListedImages(names, images),
        labels,
        declared=declared,
        files=members,
        columns=(IMAGE_COLUMN, LABEL_COLUMN),
        notes=[note],
    )


def _require_columns(path: str) -> None:
    columns = rows.column_names(path)
    for column in (IMAGE_COLUMN, LABEL_COLUMN):
        if column not in columns:
            there = listed(map(repr, columns)) or "none"
            raise DataError(f"{path}: no column {column!r}, found {there}: rename one")


def _image(file: File, where: str, row: rows.Row) -> bytes | str:
    """The encoded bytes of a row's image, or the path of its file."""
    image = row[IMAGE_COLUMN]
    if isinstance(image, str):
        if stores.is_image(image):
            raise DataError(
                f"{where}: the column {IMAGE_COLUMN!r} holds the path {image!r:.60}: expected "
                "encoded bytes; a table .csv with the columns file_name and label may list paths"
            )
        image = image.encode()  # bytes that happen to be UTF-8, as those of a dark bitmap
    if isinstance(image, Mapping):
        data = image.get("bytes")
        path = image.get("path")
        if data is None and isinstance(path, str) and path:
            is_whole = files.is_remote(path) or os.path.isabs(path)
            return path if is_whole else files.join(os.path.dirname(file.path), path)
        image = data
    if not isinstance(image, bytes) or not image:
        raise DataError(f"{where}: no image in the column {IMAGE_COLUMN!r}, but {image!r:.60}")
    return image
