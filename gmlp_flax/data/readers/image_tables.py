"""Images with a table of their classes: `ROOT/FILES` or `ROOT/SPLIT/FILES` beside labels.csv,
metadata.csv or metadata.jsonl, with the columns `file_name` and `label`.

`file_name` is the path of an image from the table's folder on, with / between folders, and each
image has one row. A column `split` with words for splits (train, val, test, ...) assigns rows to
splits. Without this column, the first folders of the paths assign them if their names are such
words. The path of the table itself is read as well, whatever the name of the table is.
"""

import functools
import os
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gmlp_flax.data import classes, rows, splits
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.images import examples, folders
from gmlp_flax.data.images.examples import ListedImages
from gmlp_flax.data.images.stores import Store
from gmlp_flax.data.rows import Located
from gmlp_flax.errors import DataError, listed
from gmlp_flax.io import files
from gmlp_flax.io.records import BadRecord

FORM = "images with a table"
TABLES = ("labels.csv", "metadata.csv", "metadata.jsonl")
FILE_COLUMN = "file_name"
LABEL_COLUMN = "label"
SPLIT_COLUMN = "split"
COLUMNS = (FILE_COLUMN, LABEL_COLUMN)


class Entry(NamedTuple):
    """A row: its place for messages, the path of its image from the table on, its class and its
    split."""

    where: str
    file_name: str
    label: str
    split: str


def matches(store: Store) -> bool:
    """Whether ROOT, or the folder of a split, has a table. Raises DataError if it is in a tar
    file."""
    tables = _tables(store)
    if not tables:
        return False
    if not files.is_folder(store.path):
        table = tables[0]
        raise DataError(f"{store.path!r} holds the table {table!r}: unpack it to a folder")
    return True


def _tables(store: Store) -> list[str]:
    """The names of the tables in ROOT and in the folders of splits."""
    tables = []
    for name in store.others:
        folder, _, base = name.rpartition("/")
        split = splits.split_of_folder(folder)
        is_in_place = not folder or split
        if base in TABLES and is_in_place:
            tables.append(name)
    return tables


def read(store: Store, ignore_splits: bool = False) -> Splits:
    """The splits of images with tables.

    Args:
        store: the files.
        ignore_splits: whether all images are one data set, whatever the folders or rows say.

    Raises:
        DataError: there are two tables, a column is missing, or only some folders or rows name a
            split. When a split is read: it has no table, an image has no row, or a row no image.
    """
    tables = _tables(store)
    in_root = [name for name in tables if "/" not in name]
    if in_root:
        return _read_joined(store, in_root, ignore_splits)
    if ignore_splits:
        return _read_joined(store, tables, ignore_splits)
    prefixes = folders.split_folders(store)
    read_split = functools.partial(_read_folder, store)
    return Splits.of_groups(store.path, FORM, prefixes, read_split)


def _read_joined(store: Store, tables: Sequence[str], ignore_splits: bool) -> Splits:
    """The splits of all images of a store, by the rows of one table, or of all tables as one."""
    _require_one_table(store, tables)
    entries = []
    for table in tables:
        entries += _entries(store, table, ignore_splits)
    listing = _Listing("", tables, entries)
    groups = _groups(store.path, entries, ignore_splits)
    read_split = functools.partial(_read_rows, store, listing)
    return Splits.of_groups(store.path, FORM, groups, read_split)


def _groups(path: str, entries: list[Entry], ignore_splits: bool) -> dict[str, list[Entry]]:
    """The rows of each split; {"": all} if all images are one data set."""
    if ignore_splits:
        return {"": entries}
    return by_split(path, entries)


def _read_folder(store: Store, split: str, prefix: str) -> Dataset:
    tables = [table for table in _tables(store) if table.startswith(prefix)]
    if not tables:
        expected = " or ".join(TABLES)
        raise DataError(
            f"{store.path!r}: there is no {expected} in {prefix!r}: expected one with "
            f"the columns {FILE_COLUMN} and {LABEL_COLUMN}"
        )
    _require_one_table(store, tables)
    table = tables[0]
    entries = _entries(store, table)
    for entry in entries:
        if entry.split not in ("", split):
            raise DataError(
                f"{entry.where}: the column {SPLIT_COLUMN!r} names the split {entry.split!r}, and "
                f"the folder {prefix!r} another: remove the column"
            )
    listing = _Listing(prefix, tables, entries)
    return _read_rows(store, listing, split, entries)


def _require_one_table(store: Store, tables: Sequence[str]) -> None:
    """Raises DataError if two tables are in the same folder."""
    by_folder: dict[str, str] = {}
    for table in tables:
        folder, _, _ = table.rpartition("/")
        other = by_folder.setdefault(folder, table)
        if other != table:
            raise DataError(f"{store.path!r} has {other} and {table}: keep one of them")


class _Listing(NamedTuple):
    """The rows of tables that list the images under a prefix, such as "train/"."""

    prefix: str
    tables: Sequence[str]
    entries: Sequence[Entry]


def _entries(store: Store, table: str, ignore_splits: bool = False) -> list[Entry]:
    """The rows of a table, with the names that their images have in the store."""
    folder, slash, _ = table.rpartition("/")
    prefix = folder + slash
    path = files.join(store.path, table)
    entries = []
    for entry in read_entries(path, ignore_splits):
        name = prefix + entry.file_name
        entry_in_store = entry._replace(file_name=name)
        entries.append(entry_in_store)
    return entries


def _read_rows(store: Store, listing: _Listing, split: str, entries: Sequence[Entry]) -> Dataset:
    """The images of some rows of a listing."""
    _require_same_images(store, listing)
    class_of = {}
    for entry in entries:
        class_of[entry.file_name] = entry.label
    first_table = files.join(store.path, listing.tables[0])
    declared = rows.declared_classes(first_table, LABEL_COLUMN)
    note = folders.unread_files_note(store, listing.tables)
    dataset = folders.labelled(store, FORM, split, class_of, COLUMNS, declared)
    return dataset.with_notes(note)


def _require_same_images(store: Store, listing: _Listing) -> None:
    """Raises DataError unless a listing has exactly the images that are under its prefix."""
    present = {name for name in store.images if name.startswith(listing.prefix)}
    named = {entry.file_name for entry in listing.entries}
    tables = " and ".join(listing.tables)
    where = f"{store.path}/{tables}"
    missing = sorted(named - present)
    if missing:
        first_missing = missing[0]
        advice = _how_to_find(first_missing, present)
        raise DataError(
            f"{where}: {len(missing):,} of {len(named):,} images are missing, such as "
            f"{first_missing!r}: {advice}"
        )
    unlisted = sorted(present - named)
    if unlisted:
        first_unlisted = unlisted[0]
        raise DataError(
            f"{where}: no row for {len(unlisted):,} of {len(present):,} images, such as "
            f"{first_unlisted!r}: add rows, or move these images away"
        )


def _how_to_find(missing: str, images: Iterable[str]) -> str:
    """What may be wrong with the path of a missing image."""
    composed_images = {unicodedata.normalize("NFC", name) for name in images}
    composed = unicodedata.normalize("NFC", missing)
    if composed in composed_images:
        return "its accents are written in Unicode's other form (NFC or NFD) there"
    example = min(images, default="a.png")
    return f"expected paths from the table's folder on, such as {example!r}"


def read_entries(path: str, ignore_splits: bool = False) -> list[Entry]:
    """The rows of the table of images at a path.

    Args:
        path: the path of the table.
        ignore_splits: whether the column `split` is ignored.

    Raises:
        DataError: there is no row, a column is missing, a row has no image or no class, or an image
            has two rows.
    """
    entries: dict[str, Entry] = {}
    for where, row in rows.read_rows(path):
        entry = _entry(where, row, ignore_splits)
        if entry.file_name in entries:
            raise DataError(f"{where}: {entry.file_name!r} has another row: keep one of them")
        entries[entry.file_name] = entry
    if not entries:
        raise DataError(f"{path} has no rows: expected one for each image")
    return list(entries.values())


def _entry(where: str, row: rows.Row | BadRecord, ignore_splits: bool) -> Entry:
    if isinstance(row, BadRecord):
        raise DataError(f"{where}: {row}")
    for column in COLUMNS:
        if column not in row:
            quoted = map(repr, row)
            available = listed(quoted) or "none"
            advice = ": rename one, or move the table away if folders are the classes"
            if rows.is_unseparated(row):
                advice = rows.SEPARATORS_ADVICE
            raise DataError(f"{where}: no column {column!r}, found {available}{advice}")
    file_name = row[FILE_COLUMN]
    if not isinstance(file_name, str) or not file_name:
        raise DataError(f"{where}: no path in the column {FILE_COLUMN!r}, but {file_name!r}")
    label = classes.class_in_cell(row[LABEL_COLUMN], where, LABEL_COLUMN)
    split = ""
    if not ignore_splits:
        located = Located(where, row)
        splits.refuse_other_capitals(where, row, SPLIT_COLUMN)
        split = splits.split_of_row(located, (SPLIT_COLUMN,))
    return Entry(where, file_name, label, split)


def by_split(path: str, entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The rows of each split, by the column `split`, or by the first folders of the images.

    Returns:
        {"": all} if neither names a split.

    Raises:
        DataError: some rows name a split and others do not, or folders of two names mean one split.
    """
    rows_name_splits = any(entry.split for entry in entries)
    if rows_name_splits:
        split_of_row = _splits_of_rows(entries)
        splits.require_all_or_none(path, split_of_row, splits.FILL)
    else:
        entries = [_split_by_path(entry) for entry in entries]
        split_of_row = _splits_of_rows(entries)
        split_of_image = {entry.file_name: entry.split for entry in entries}
        splits.require_all_or_none(path, split_of_row)
        splits.require_one_word(path, split_of_image)
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        members = groups.setdefault(entry.split, [])
        members.append(entry)
    return groups


def _splits_of_rows(entries: Iterable[Entry]) -> dict[str, str]:
    """The place of each row -> its split."""
    return {entry.where: entry.split for entry in entries}


def _split_by_path(entry: Entry) -> Entry:
    """A row with the split that the path of its image means."""
    split = _split_of_path(entry.file_name)
    return entry._replace(split=split)


def _split_of_path(name: str) -> str:
    """The split that the first folder of an image's path means, or ""."""
    folder, slash, _ = name.partition("/")
    if not slash:
        return ""
    return splits.split_of_folder(folder)


def read_table(path: str, ignore_splits: bool = False) -> Splits:
    """The splits of the images in the table at `path`, by their paths from its folder on. Unlike
    with `read`, the images may be anywhere, and other images may be beside them."""
    entries = read_entries(path, ignore_splits)
    groups = _groups(path, entries, ignore_splits)
    read_split = functools.partial(_read_listed, path)
    return Splits.of_groups(path, FORM, groups, read_split)


def _read_listed(path: str, split: str, entries: Sequence[Entry]) -> Dataset:
    folder = os.path.dirname(path) or "."
    names: list[str] = []
    images: list[str] = []
    labels: list[str] = []
    for entry in entries:
        image = entry.file_name
        if not files.is_remote(image):
            image = files.join(folder, image)
        names.append(entry.file_name)
        images.append(image)
        labels.append(entry.label)
    dataset = Dataset(
        path=path,
        form=FORM,
        examples=ListedImages(names, images),
        split=split,
        files=files.find_files(path),
        columns=COLUMNS,
    )
    declared = rows.declared_classes(path, LABEL_COLUMN)
    return examples.with_classes(dataset, labels, declared)
