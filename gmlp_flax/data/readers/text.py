"""Text: .txt files, of which each is a document, .jsonl files with a field `text` in each line, and
.parquet and .arrow files with a column `text`.

The first two may be compressed (.gz, .xz, .bz2, .zst), and JSON lines may be called .json, as those
of C4 on the Hugging Face hub. The path is a file; a folder of files, in which each file or none is
of a split (train.txt, wiki.valid.txt, folders train/ and validation/, or a folder that the package
datasets wrote); or a folder that TFDS prepared (.../c4/en/3.0.1, tfds:NAME), as ArrayRecord,
TFRecord or parquet, whose feature `text` is the document. Other files are counted by suffix.
"""

import functools
from collections.abc import Sequence

from gmlp_flax.data import rows, splits
from gmlp_flax.data.dataset import Splits
from gmlp_flax.data.text import corpus
from gmlp_flax.data.text.corpus import Corpus, FilePart
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, tfds_folders
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


def read(path: str, as_one: bool = False) -> Splits:
    """The splits of a corpus, without reading its documents.

    Args:
        path: see the module's docstring.
        as_one: whether all text is one data set, whatever splits the names mean.

    Raises:
        DataError: there is no text at the path, shards are missing, or only some names mean splits.
    """
    path = tfds_folders.find(str(path))
    found = files.find_files(path)
    folder = tfds_folders.load(path, found)
    if folder is not None:
        tfds_folders.require_text(folder)
        return _tfds_splits(folder, as_one)
    if rows.is_file(path, found) and files.suffix(path) in rows.DELIMITERS:
        raise DataError(f'{path!r} is a table: write its text as JSON lines, {{"text": ...}}')
    texts = rows.find_by_suffix(path, found, READERS, "text file")
    note = rows.others_note(path, found, texts)
    readers = {}
    for split, members in splits.group_files(path, found, texts, as_one).items():
        readers[split] = functools.partial(_read_files, path, split, members, note)
    return Splits(path, FORM, readers)


def _read_files(path: str, split: str, members: Sequence[File], note: str) -> Corpus:
    parts: list[FilePart] = []
    for file in members:
        reader = READERS[files.suffix(file.name)]
        parts += corpus.cut(file, reader)
    notes = (note,) if note else ()
    return corpus.from_files(path, FORM, split, parts, members, notes)


def _tfds_splits(folder: Folder, as_one: bool) -> Splits:
    groups = {name: [name] for name in folder.lengths}
    if as_one:
        groups = {"": list(folder.lengths)}
    readers = {}
    for split, names in groups.items():
        readers[split] = functools.partial(_read_shards, folder, split, names)
    return Splits(folder.path, TFDS_FORM, readers)


def _read_shards(folder: Folder, split: str, names: Sequence[str]) -> Corpus:
    """The shards of some splits of a TFDS folder."""
    reader = "tfds_parquet" if folder.file_format == "parquet" else folder.file_format
    parts: list[FilePart] = []
    members: list[File] = []
    for name in names:
        for shard in folder.shards(name):
            parts += corpus.cut(shard.file, reader, shard.records)
            members.append(shard.file)
    return corpus.from_files(folder.path, TFDS_FORM, split, parts, members)
