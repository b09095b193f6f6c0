"""Corpora of documents (strings): what a path names, its splits, and the parts that workers read side by side.

A path is one of

    a file or folder: .txt (one document a file), .jsonl or .json (a line an object with a string `text`), each also .gz
        or .xz, and .parquet (a column `text`). A folder is searched recursively. C4 as AllenAI and Hugging Face give
        it is a folder of `c4-train.00000-of-01024.json.gz`: such names tell of its splits. A file given itself, of any
        other name, is plain text.
    a TFDS folder: .../c4/en/3.0.1, with features.json and dataset_info.json, in any format of TFDS that this package
        reads without TensorFlow (array_record, tfrecord, parquet); the document is the feature `text`.
    tfds:NAME[/CONFIG][:VERSION]: such a folder below TFDS_DATA_DIR or ~/tensorflow_datasets, in the newest version
        unless one is given.

The first two may be remote (`gs://bucket/...`, anything fsspec opens). Nothing is prepared or kept here; a remote
ArrayRecord file is copied to a temporary one while it is read.

Large files are cut into several parts where their format allows it (see gmlp_flax.data.documents): parquet, JSON lines
that are not packed and, unless remote, TFRecord and ArrayRecord. A .gz or .xz file is one part.
"""

import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gmlp_flax.data import files, records, tfds_folders
from gmlp_flax.data.documents import READERS
from gmlp_flax.data.errors import DataError
from gmlp_flax.data.files import File
from gmlp_flax.data.records import BadRecord, BadRecords

PART_BYTES = 64 << 20

_READERS_BY_SUFFIX = {".txt": "text", ".jsonl": "json_lines", ".json": "json_lines", ".parquet": "parquet"}
SUFFIXES = (*(kind + packed for kind in (".txt", ".jsonl", ".json") for packed in ("", *files.PACKINGS)), ".parquet")
# What lies beside the shards of published data sets and is no text.
_NOT_TEXT = ("dataset_info.json", "dataset_infos.json", "features.json")
_SHARD = re.compile(r"^(?P<stem>.*?)[-_.]?(?P<number>\d+)-of-(?P<count>\d+)")
_SPLIT = re.compile(r"(?:^|[-_.])(train|training|validation|valid|val|dev|eval|test|heldout)$")


@dataclass(frozen=True)
class Part:
    """A file of a corpus, or a range of one: what one worker reads. Picklable.

    Attributes:
        name: what messages call it: the file's name in the corpus and, of a range, what it covers.
        path: the file.
        reader: key of documents.READERS.
        size: bytes, packed; of a range its share, for a progress bar.
        start, stop: the range, in what the reader counts; stop None is the end of the file.
    """

    name: str
    path: str
    reader: str
    size: int
    start: int = 0
    stop: int | None = None

    def documents(self, bad: BadRecords | None = None) -> Iterator[str]:
        """Yields the documents in order, those of white space only left out.

        Args:
            bad: counts and limits the records that do not parse; without it, the first one raises.

        Raises:
            DataError: one bad record too many, a file that cannot be read or is damaged, or (but for a .txt file and
                a range) one without a document.
        """
        bad = BadRecords() if bad is None else bad
        empty = True
        for document in READERS[self.reader](self.path, self.start, self.stop):
            if isinstance(document, BadRecord):
                bad.skip(f"{self.path}, {document}")
            elif document and not document.isspace():
                empty = False
                yield document
        if empty and self.reader != "text" and self.start == 0 and self.stop is None:
            raise DataError(f"{self.path}: an empty shard, no document in it; copy or prepare it again, or remove it")


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order, as parts that can be read on their own.

    Attributes:
        name: what messages call it: the path and split given.
        parts: in the order of their files' names.
        fingerprint: SHA-256 in hexadecimal over the files' names, sizes and modification times (remote: tags), and
            the split: recognises a corpus without reading it. Moving the folder does not change it.
    """

    name: str
    parts: tuple[Part, ...]
    fingerprint: str

    def documents(self, bad: BadRecords | None = None) -> Iterator[str]:
        """Yields the documents of all parts; raises DataError as Part.documents does, and where there is none."""
        bad = BadRecords() if bad is None else bad
        empty = True
        for part in self.parts:
            for document in part.documents(bad):
                empty = False
                yield document
        if empty:
            raise DataError(
                f"{self.name!r} holds no text: {len(self.parts)} file(s) read, all empty; give a corpus with text in it"
            )


def open_corpus(path: str, split: str = "", part_bytes: int = PART_BYTES) -> Corpus:
    """Finds the parts of a corpus, without reading its documents.

    Args:
        path: see the module's docstring.
        split: one of `splits(path)`, or '' for all documents.
        part_bytes: files larger than this are cut into parts of about this size, where their format allows it. The
            documents and their order do not depend on it.

    Raises:
        DataError: nothing there, no such split, shards missing or empty, or a store that cannot be reached.
    """
    path = tfds_folders.find(str(path))
    found = files.find_files(path)
    folder = _text_folder(path, found)
    groups = folder.lengths if folder else _splits(found)
    if split and split not in groups:
        known = f"it has {', '.join(map(repr, groups))}" if groups else "its file names tell of none"
        raise DataError(f"{path!r} has no split {split!r}: {known}; give another split or ''")
    if folder:
        shards = [shard for name in ([split] if split else groups) for shard in folder.shards(name)]
        parts = [part for shard in shards for part in _tfds_parts(shard, folder.file_format, part_bytes)]
        chosen = [shard.file for shard in shards]
    else:
        chosen = list(groups[split]) if split else _texts(path, found)
        if found[0].path != path:
            _check_shards(path, chosen)
        parts = [part for file in chosen for part in _text_parts(file, part_bytes)]
    for file in chosen:
        if file.size == 0 and (folder or _reader(file.name) != "text"):
            raise DataError(f"{file.path}: an empty shard, of zero bytes; copy or prepare it again, or remove it")
    name = f"{path} ({split})" if split else path
    return Corpus(name, tuple(parts), _fingerprint(chosen, split))


def splits(path: str) -> tuple[str, ...]:
    """Names of the splits of a corpus: TFDS's, or those in its file names; () where there are none.

    File names tell of splits if each of them has one, before the numbers of its shard: `train-00000-of-00010.parquet`.

    Raises:
        DataError: nothing there, or a store that cannot be reached.
    """
    path = tfds_folders.find(str(path))
    found = files.find_files(path)
    folder = _text_folder(path, found)
    return tuple(folder.lengths if folder else _splits(found))


def is_heldout(document: str, share: float) -> bool:
    """True of about `share` of all documents, by the CRC-32 of their content.

    Equal documents fall on one side, and neither order nor later additions move a document.
    """
    # Lone surrogates are legal in JSON strings and not in UTF-8.
    return zlib.crc32(document.encode("utf-8", "surrogatepass")) < share * 2**32


def split_documents(documents: Iterable[str], heldout_share: float) -> tuple[list[str], list[str]]:
    """Splits documents into (train, heldout) by `is_heldout`.

    A corpus of one document is cut at a line instead: its last `heldout_share` of characters is held out.

    Raises:
        DataError: `heldout_share` is not between 0 and 1, or one side would be empty.
    """
    if not 0 < heldout_share < 1:
        raise DataError(f"heldout_share={heldout_share} is not between 0 and 1; 0.05 holds out 5 % of the documents")
    documents = list(documents)
    if len(documents) == 1:
        train, heldout = _cut_at_line(documents[0], heldout_share)
    else:
        train, heldout = [], []
        for document in documents:
            (heldout if is_heldout(document, heldout_share) else train).append(document)
    for name, side in (("training", train), ("held-out", heldout)):
        if not side:
            raise DataError(
                f"{len(documents)} document(s) split with heldout_share={heldout_share} leave no {name} text; "
                "use another heldout_share, or more documents or lines"
            )
    return train, heldout


def _cut_at_line(document: str, heldout_share: float) -> tuple[list[str], list[str]]:
    """Cuts one document where the line begins that crosses (1 - heldout_share) of its characters."""
    cut = document.rfind("\n", 0, round(len(document) * (1 - heldout_share))) + 1
    train, heldout = ([part] if part.strip() else [] for part in (document[:cut], document[cut:]))
    return train, heldout


def _text_folder(path: str, found: tuple[File, ...]) -> tfds_folders.Folder | None:
    """The TFDS folder at `path`, which must hold text, or None if it is not one."""
    folder = tfds_folders.load(path, found)
    if folder:
        tfds_folders.require_text(folder)
    return folder


def _fingerprint(chosen: Iterable[File], split: str) -> str:
    lines = [split, *(f"{file.name}\t{file.size}\t{file.version}" for file in chosen)]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _reader(name: str) -> str:
    """The reader of a text file, by its name."""
    stem = name.lower().removesuffix(files.packing(name))
    return _READERS_BY_SUFFIX.get(os.path.splitext(stem)[1], "text")


def _is_text(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and os.path.basename(name) not in _NOT_TEXT


def _texts(path: str, found: tuple[File, ...]) -> list[File]:
    """The text files among those found; a file given itself is one, whatever its name."""
    if len(found) == 1 and found[0].path == path:
        return list(found)
    nested = next((file.name for file in found if os.path.basename(file.name) == "features.json"), None)
    if nested:
        inner = files.join(path, os.path.dirname(nested))
        raise DataError(f"{path!r} holds TFDS folders; give one of them, such as {inner!r}")
    texts = [file for file in found if _is_text(file.name)]
    if not texts:
        raise DataError(f"folder {path!r} holds no readable text: expected files ending in {', '.join(SUFFIXES)}")
    return texts


def _splits(found: tuple[File, ...]) -> dict[str, list[File]]:
    """Split name -> files, in the order of names; {} unless the names of all text files tell of one."""
    groups: dict[str, list[File]] = {}
    for file in found:
        if not _is_text(file.name):
            continue
        shard = _SHARD.match(os.path.basename(file.name))
        split = shard and _SPLIT.search(shard["stem"])
        if not split:
            return {}
        groups.setdefault(split[1], []).append(file)
    return groups


def _check_shards(path: str, chosen: list[File]) -> None:
    """Raises DataError where a set of files numbered `00000-of-01024` lacks one."""
    sets: dict[tuple[str, str, str], set[int]] = {}
    for file in chosen:
        folder, name = os.path.split(file.name)
        shard = _SHARD.match(name)
        if shard:
            key = (os.path.join(folder, shard["stem"]), shard["count"], _reader(name) + files.packing(name))
            sets.setdefault(key, set()).add(int(shard["number"]))
    for (stem, count, _), numbers in sets.items():
        missing = sorted(set(range(int(count))) - numbers)
        if missing:
            more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
            raise DataError(
                f"{path!r}: of the {int(count)} shards of {stem!r}, {missing[0]:0{len(count)}d}-of-{count}{more} "
                "missing; copy the rest, or give single files"
            )


def _text_parts(file: File, part_bytes: int) -> Iterator[Part]:
    """Cuts a text file into byte ranges or groups of row groups."""
    reader = _reader(file.name)
    if file.size <= part_bytes or reader == "text" or files.packing(file.name):
        yield Part(file.name, file.path, reader, file.size)
    elif reader == "parquet":
        yield from _row_group_parts(file, reader, part_bytes)
    else:
        yield from _ranges(file, reader, file.size, part_bytes, "bytes")


def _tfds_parts(shard: tfds_folders.Shard, file_format: str, part_bytes: int) -> Iterator[Part]:
    file = shard.file
    if file_format == "parquet":
        yield from _row_group_parts(file, "tfds_parquet", part_bytes)
    elif files.is_remote(file.path):  # each part would fetch all that is before it, or the whole file
        yield Part(file.name, file.path, file_format, file.size, 0, shard.records)
    else:
        yield from _ranges(file, file_format, shard.records, part_bytes, "records")


def _ranges(file: File, reader: str, count: int, part_bytes: int, unit: str) -> Iterator[Part]:
    """Cuts `count` of something into equal ranges of about `part_bytes` each."""
    pieces = max(1, min(count, -(-file.size // part_bytes)))
    bounds = [count * i // pieces for i in range(pieces + 1)]
    for start, stop in zip(bounds, bounds[1:], strict=False):
        name = file.name if pieces == 1 else f"{file.name}, {unit} {start} to {stop - 1}"
        yield Part(name, file.path, reader, file.size * (stop - start) // max(count, 1), start, stop)


def _row_group_parts(file: File, reader: str, part_bytes: int) -> Iterator[Part]:
    """Gathers row groups until they reach `part_bytes`; the footer of a small file is not read."""
    sizes = records.parquet_sizes(file.path) if file.size > part_bytes else []
    start = size = 0
    for stop, group in enumerate(sizes, start=1):
        size += group
        if size >= part_bytes and stop < len(sizes):
            yield Part(f"{file.name}, row groups {start} to {stop - 1}", file.path, reader, size, start, stop)
            start, size = stop, 0
    name = f"{file.name}, row groups {start} to {len(sizes) - 1}" if start else file.name
    yield Part(name, file.path, reader, size or file.size, start, None)
