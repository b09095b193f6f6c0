"""Reads images at a path, in whichever documented form they have.

a folder or tar file     class folders, images with a table, ImageNet's and Tiny-ImageNet's
                         folders, Pathfinder's, WebDataset's shards
.parquet, .arrow         rows with image and label, also a folder of them
.csv, .tsv, .jsonl       a table of images, by its own path
.npz                     arrays
TFDS                     a prepared folder, or tfds:NAME
"""

import os
import shlex
from collections.abc import Callable
from typing import NamedTuple

from gmlp_flax.data import rows
from gmlp_flax.data.dataset import Splits
from gmlp_flax.data.images import folders, stores
from gmlp_flax.data.images.stores import Store
from gmlp_flax.data.readers import (
    class_folders,
    image_rows,
    image_tables,
    imagenet,
    npz,
    pathfinder,
    tfds_images,
    tiny_imagenet,
    webdataset,
)
from gmlp_flax.errors import DataError
from gmlp_flax.io import compression, files

TABLE_SUFFIXES = (*rows.DELIMITERS, *rows.JSON_LINES)


class FolderForm(NamedTuple):
    """A form of images in a folder or a tar file: whether a store has it, and its reader."""

    matches: Callable[[Store], bool]
    read: Callable[[Store, bool], Splits]


FOLDER_FORMS = (  # the first that matches
    FolderForm(tiny_imagenet.matches, tiny_imagenet.read),
    FolderForm(imagenet.matches, imagenet.read),
    FolderForm(image_tables.matches, image_tables.read),
    FolderForm(lambda store: True, class_folders.read),
)


def read(path: str, cache_folder: str = "", ignore_splits: bool = False) -> Splits:
    """The splits of the images at a path.

    Args:
        path: see the module's docstring.
        cache_folder: keeps indexes of TFDS's TFRecord files; "" for the default one.
        ignore_splits: whether all images are one data set, whatever splits their names mean.

    Raises:
        DataError: there is nothing at the path, or the data have no documented form.
    """
    folder = tfds_images.folder_at(path)
    if folder is not None:
        return tfds_images.read(folder, cache_folder)
    if not files.exists(path):
        name = str(path)
        raise DataError(f"no images at {name!r}: expected a folder or a file; check the path")
    if files.is_folder(path):
        return _read_folder(path, ignore_splits)
    return _read_file(path, ignore_splits)


def _read_folder(path: str, ignore_splits: bool) -> Splits:
    if pathfinder.matches(path):
        return pathfinder.read(path)
    store = stores.open_folder(path)
    if store.images:
        return _read_store(store, ignore_splits)
    by_suffix = _first_by_suffix(store)
    has_rows = any(suffix in by_suffix for suffix in rows.COLUMNAR)
    if has_rows:
        return image_rows.read(path, ignore_splits)
    if ".tar" in by_suffix:
        return webdataset.read(path, ignore_splits)
    if ".zip" in by_suffix:
        archive = by_suffix[".zip"]
        archive_path = files.join(path, archive)
        raise _zipped(archive_path)
    if ".npz" in by_suffix:
        arrays = by_suffix[".npz"]
        raise DataError(f"{path!r} holds {arrays!r}: give the path of this file")
    folders.require_images(store)  # raises: there are none
    return _read_store(store, ignore_splits)


def _first_by_suffix(store: Store) -> dict[str, str]:
    """Suffix -> the first file that has it."""
    first: dict[str, str] = {}
    for name in store.names:
        suffix = stores.suffix(name)
        first.setdefault(suffix, name)
    return first


def _read_file(path: str, ignore_splits: bool) -> Splits:
    suffix = compression.suffix(path)
    if suffix == ".npz":
        return npz.read(path)
    if suffix in rows.COLUMNAR:
        return image_rows.read(path, ignore_splits)
    if suffix in TABLE_SUFFIXES:
        return image_tables.read_table(path, ignore_splits)
    if suffix == ".zip":
        raise _zipped(path)
    is_compressed_tar = suffix == ".tar" and compression.compression(path)
    if suffix == ".tgz" or is_compressed_tar:
        quoted = shlex.quote(path)
        raise DataError(
            f"{path!r} is a compressed tar file, which is not read in place: unpack it, tar -xf "
            f"{quoted}, and give its folder"
        )
    if suffix != ".tar":
        suffixes = (".tar", ".npz", *rows.COLUMNAR, *TABLE_SUFFIXES)
        known = ", ".join(suffixes)
        raise DataError(f"{path!r} is not a file of images: expected {known}, or a folder")
    store = stores.open_tar(path)
    if webdataset.is_shard(store):
        return webdataset.read(path, ignore_splits)
    return _read_store(store, ignore_splits)


def _read_store(store: Store, ignore_splits: bool) -> Splits:
    matching = (form for form in FOLDER_FORMS if form.matches(store))
    form = next(matching)
    return form.read(store, ignore_splits)


def _zipped(path: str) -> DataError:
    target, _ = os.path.splitext(path)
    archive = shlex.quote(path)
    folder = shlex.quote(target)
    return DataError(
        f"{path!r} is a zip archive, which is not read in place: unpack it, unzip -q "
        f"{archive} -d {folder}, and give that folder"
    )
