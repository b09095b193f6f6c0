"""Text: .txt files, each of them a document, .jsonl files with a field `text` in each line, and
.parquet and .arrow files with a column `text`.

The first two may be compressed (.gz, .xz, .bz2, .zst). The suffix of JSON lines may be .json, like
that of C4 on the Hugging Face hub. The path is one of:

    a file
    a folder          of files, all or none of which are of a split: train.txt, wiki.valid.txt,
                      folders train/ and validation/, or a folder that the package datasets wrote.
                      Other files are counted by suffix
    a TFDS folder     .../c4/en/3.0.1 or tfds:NAME, as ArrayRecord, TFRecord or parquet, whose
                      feature `text` is the document
"""

import functools
from collections.abc import Sequence

from gmlp_flax.data import rows, splits
from gmlp_flax.data.dataset import Splits
from gmlp_flax.data.text import corpus
from gmlp_flax.data.text.corpus import Corpus, FilePart
from gmlp_flax.errors import DataError
from gmlp_flax.io import compression, files, tfds_folders
from gmlp_flax.io.files import File
from gmlp_flax.io.tfds_folders import Folder

FORM = "text"
TFDS_FORM = "a TFDS folder of text"

# Suffix -> key of documents.READERS.
READERS = {
    ".txt": "text",
    ".jsonl": "json_lines",
    ".json": "json_lines",
    ".parquet": "parquet",
    ".arrow": "arrow",
}


def read(path: str, ignore_splits: bool = False) -> Splits:
    """The splits of a corpus, without reading its documents.

    Args:
        path: see the module's docstring.
        ignore_splits: whether all text is one data set, whatever splits the names mean.

    Raises:
        DataError: there is no text at the path, shards are missing, or only some names mean splits.
    """
    path = tfds_folders.find(str(path))
    listing = files.find_files(path)
    folder = tfds_folders.load(path, listing)
    if folder is not None:
        tfds_folders.require_text(folder)
        return _tfds_splits(folder, ignore_splits)
    suffix = compression.suffix(path)
    is_table = suffix in rows.DELIMITERS
    if is_table and rows.is_file(path, listing):
        raise DataError(f'{path!r} is a table: write its text as JSON lines, {{"text": ...}}')
    texts = rows.find_by_suffix(path, listing, READERS, "text file")
    note = rows.unread_files_note(path, listing, texts)
    groups = splits.group_files(path, listing, texts, ignore_splits)
    read_split = functools.partial(_read_files, path, note)
    return Splits.of_groups(path, FORM, groups, read_split)


def _read_files(path: str, note: str, split: str, members: Sequence[File]) -> Corpus:
    parts: list[FilePart] = []
    for file in members:
        suffix = compression.suffix(file.name)
        reader = READERS[suffix]
        parts += corpus.cut(file, reader)
    notes = (note,) if note else ()
    return corpus.from_files(path, FORM, split, parts, members, notes)


def _tfds_splits(folder: Folder, ignore_splits: bool) -> Splits:
    names = list(folder.lengths)
    groups = {name: [name] for name in names}
    if ignore_splits:
        groups = {"": names}
    read_split = functools.partial(_read_shards, folder)
    return Splits.of_groups(folder.path, TFDS_FORM, groups, read_split)


def _read_shards(folder: Folder, split: str, names: Sequence[str]) -> Corpus:
    """The shards of some splits of a TFDS folder."""
    reader = folder.file_format
    if reader == "parquet":
        reader = "tfds_parquet"
    parts: list[FilePart] = []
    members: list[File] = []
    for name in names:
        for shard in folder.shards(name):
            members.append(shard.file)
            parts += corpus.cut(shard.file, reader, shard.records)
    return corpus.from_files(folder.path, TFDS_FORM, split, parts, members)
