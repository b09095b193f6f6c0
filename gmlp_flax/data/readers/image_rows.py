"""Images in rows: .parquet or .arrow files with the columns `image` and `label`, as Hugging Face's
package datasets writes them (save_to_disk, or a repository's folder data/).

The image of a row is encoded bytes, or {"bytes", "path"}. If these bytes are null, it is the file
at the path, which starts at the table's folder. The data are a file, or a folder of files whose
names or folders mean splits, such as train-00000-of-00010.parquet. Encoded images are kept in
memory, in each worker process too, so there may be at most 8 GiB of files.
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
COLUMNS = (IMAGE_COLUMN, LABEL_COLUMN)
MEMORY_BYTES = 8 << 30  # the most bytes of files whose rows are kept in memory


def read(path: str, ignore_splits: bool = False) -> Splits:
    """The splits of images in rows.

    Args:
        path: the path of a file, or of a folder with files.
        ignore_splits: whether all files are one data set, whatever their names mean.

    Raises:
        DataError: shards are missing, only some names mean splits, or the files are too large. When
            a split is read: a column is missing, or a row has no image or no class.
    """
    listing = files.find_files(path)
    tables = rows.find_by_suffix(path, listing, rows.COLUMNAR)
    note = rows.unread_files_note(path, listing, tables)
    groups = splits.group_files(path, listing, tables, ignore_splits)
    read_split = functools.partial(_read_split, path, note)
    return Splits.of_groups(path, FORM, groups, read_split)


def _read_split(path: str, note: str, split: str, members: Sequence[File]) -> Dataset:
    _require_memory(path, members)
    names: list[str] = []
    images: list[bytes | str] = []
    labels: list[str] = []
    declared: tuple[str, ...] = ()
    for file in members:
        _require_columns(file.path)
        declared_by_file = rows.declared_classes(file.path, LABEL_COLUMN)
        if declared_by_file:
            declared = declared_by_file
        for where, row in rows.read_rows(file.path, COLUMNS):
            if isinstance(row, BadRecord):
                raise DataError(f"{where}: {row}")
            place_in_file = where.removeprefix(file.path)
            image = _image(file, where, row)
            label = classes.class_in_cell(row[LABEL_COLUMN], where, LABEL_COLUMN)
            names.append(file.name + place_in_file)
            images.append(image)
            labels.append(label)
    if not names:
        raise DataError(f"{path!r} holds no rows: give other data")
    dataset = Dataset(
        path=path,
        form=FORM,
        examples=ListedImages(names, images),
        split=split,
        files=tuple(members),
        columns=COLUMNS,
    )
    labelled = examples.with_classes(dataset, labels, declared)
    return labelled.with_notes(note)


def _require_memory(path: str, members: Sequence[File]) -> None:
    """Raises DataError if the files of a split do not fit into memory."""
    total = sum(file.size for file in members)
    if total > MEMORY_BYTES:
        size = total / 2**30
        most = MEMORY_BYTES >> 30
        raise DataError(
            f"{path!r}: {size:.1f} GiB of rows, of which at most {most} GiB fit into memory: write "
            "the images to class folders"
        )


def _require_columns(path: str) -> None:
    columns = rows.column_names(path)
    for column in COLUMNS:
        if column not in columns:
            available = listed(map(repr, columns)) or "none"
            raise DataError(f"{path}: no column {column!r}, found {available}: rename one")


def _image(file: File, where: str, row: rows.Row) -> bytes | str:
    """The encoded bytes of a row's image, or the path of its file."""
    image = row[IMAGE_COLUMN]
    if isinstance(image, str):
        if stores.is_image(image):
            raise DataError(
                f"{where}: the column {IMAGE_COLUMN!r} holds the path {image!r:.60}: expected "
                "encoded bytes; a .csv table with the columns file_name and label may list paths"
            )
        image = image.encode()  # bytes that happen to be UTF-8, like those of a dark bitmap
    if isinstance(image, Mapping):
        path = image.get("path")
        image = image.get("bytes")
        if image is None and isinstance(path, str) and path:
            return _image_path(file, path)
    if not isinstance(image, bytes) or not image:
        raise DataError(f"{where}: no image in the column {IMAGE_COLUMN!r}, but {image!r:.60}")
    return image


def _image_path(table: File, path: str) -> str:
    """The path of an image, which may start at the table's folder."""
    if files.is_remote(path) or os.path.isabs(path):
        return path
    folder = os.path.dirname(table.path)
    return files.join(folder, path)
