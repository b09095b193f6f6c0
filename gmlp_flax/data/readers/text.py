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

from gmlp_flax.data import hugging_face, rows, splits
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
    if rows.is_file(path, found):
        _require_text(path)
        groups = {"": list(found)}
        notes: tuple[str, ...] = ()
    else:
        texts = _find_texts(path, found)
        groups = {"": texts}
        if not as_one:
            groups = splits.by_name(path, [*texts, *hugging_face.metadata(found)])
        note = rows.others_note(path, found, texts)
        notes = (note,) if note else ()
    readers = {}
    for split, members in groups.items():
        readers[split] = functools.partial(_read_files, path, split, members, notes)
    return Splits(path, FORM, readers)


def _find_texts(path: str, found: Sequence[File]) -> list[File]:
    """The files of a folder that hold text; raises DataError if there are none, or a shard is
    missing."""
    texts = []
    for file in found:
        if files.suffix(file.name) in READERS and not hugging_face.is_metadata(file.name):
            _require_text(file.path)
            texts.append(file)
    if not texts:
        kinds = files.count_by_suffix(file.name for file in found) or "no files"
        raise DataError(
            f"{path!r} holds no text ({kinds}): expected files ending in {', '.join(READERS)}, or "
            f"the first three of these compressed ({', '.join(files.COMPRESSIONS)})"
        )
    files.check_shards(path, texts)
    return texts


def _require_text(path: str) -> None:
    """Raises DataError if a file's name is none of a file of text."""
    suffix = files.suffix(path)
    if suffix in rows.COLUMNAR and files.compression(path):
        raise DataError(f"{path!r}: {suffix} files are read as they are: decompress it")
    if suffix in rows.DELIMITERS:
        raise DataError(f'{path!r} is a table: write its text as JSON lines, {{"text": ...}}')
    if suffix not in READERS:
        raise DataError(
            f"{path!r} is no text file: expected {', '.join(READERS)}, or the first three of these "
            f"compressed ({', '.join(files.COMPRESSIONS)}); rename it if it is one"
        )


def _read_files(path: str, split: str, members: Sequence[File], notes: tuple[str, ...]) -> Corpus:
    parts: list[FilePart] = []
    for file in members:
        reader = READERS[files.suffix(file.name)]
        parts += corpus.cut(file, reader)
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
