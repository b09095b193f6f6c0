"""Corpora of documents (strings): opening a path, its splits, the parts that workers read in
parallel, and which documents a side takes: all of a split, or a share of the documents by their
text.

A path is one of

    a file or folder: .txt, or WikiText's .tokens and .raw (one document per file), .jsonl, .ndjson
        or .json (one object per line, with a string `text`, or a list of them), each also packed as
        .gz, .xz, .bz2 or .zst, .parquet and .arrow (a column `text`). A folder is searched
        recursively, and may be what the package datasets saves with save_to_disk. C4 from AllenAI
        or Hugging Face is a folder of files such as `c4-train.00000-of-01024.json.gz`, whose names
        contain their splits. A single file with any other suffix is plain text.
    a TFDS folder: .../c4/en/3.0.1, with features.json and dataset_info.json, as ArrayRecord,
        TFRecord or parquet. It is read without TensorFlow; the document is the feature `text`.
    tfds:NAME[/CONFIG][:VERSION]: a TFDS folder below TFDS_DATA_DIR or ~/tensorflow_datasets;
        without a version, the newest.

Files and folders may be remote (`gs://bucket/...`, or any other store of fsspec). Large files are
cut into several parts if their format allows it (see `documents`): parquet, JSON lines that are not
packed and, on local disks, TFRecord and ArrayRecord.
"""

import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gmlp_flax.data import fingerprints, splits
from gmlp_flax.data.splits import HELDOUT, TRAIN, TRAIN_SPLIT, split_words
from gmlp_flax.data.text.documents import READERS
from gmlp_flax.errors import DataError, listed
from gmlp_flax.io import files, records, tfds_folders
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord, BadRecords

# of a file that is cut into parts, about; documents and their order do not depend on it
PART_BYTES = 64 << 20

_JSON_LINES = dict.fromkeys((".jsonl", ".ndjson", ".json"), "json_lines")
_TEXTS = dict.fromkeys((".txt", ".tokens", ".raw"), "text")
_READERS_BY_SUFFIX = {**_TEXTS, **_JSON_LINES, ".parquet": "parquet", ".arrow": "arrow"}
_DICT = "dataset_dict.json"  # of the package datasets: each folder beside it is a split
# Files beside the shards of published data sets that hold no text.
_NOT_TEXT = re.compile(
    rf"dataset_infos?\.json|features\.json|state\.json|{re.escape(_DICT)}|cache-.*\.arrow"
)
_TABLES = (".csv", ".tsv")


@dataclass(frozen=True)
class FilePart:
    """A file of a corpus, or a range of one, that one worker reads; picklable.

    Attributes:
        name: the file's name in the corpus and, for a range, the records or bytes that it covers.
        path: the file.
        reader: key of documents.READERS.
        size: bytes before unpacking; for a range, its share of them.
        start, stop: the range, in the reader's unit; stop None is the end of the file.
    """

    name: str
    path: str
    reader: str
    size: int
    start: int = 0
    stop: int | None = None

    def documents(self, bad: BadRecords | None = None) -> Iterator[str]:
        """Yields the documents in order, without those that are only white space.

        Args:
            bad: counts and limits the records that do not parse. Without it, the first one raises.

        Raises:
            DataError: one bad record too many, a file that cannot be read, or a whole file without
                a document, which only a .txt file may be.
        """
        bad, empty = bad or BadRecords(), True
        for document in READERS[self.reader](self.path, self.start, self.stop):
            if isinstance(document, BadRecord):
                bad.skip(f"{self.path}, {document}")
            elif document and not document.isspace():
                empty = False
                yield document
        if empty and self.reader != "text" and self.start == 0 and self.stop is None:
            raise DataError(
                f"{self.path}: an empty shard, no document in it; copy or prepare it again, or remove it"
            )


class MemoryPart(NamedTuple):
    """Documents in memory, with what FilePart has."""

    name: str
    texts: tuple[str, ...]

    @property
    def size(self) -> int:
        """Characters, which are near enough to bytes."""
        return sum(map(len, self.texts))

    def documents(self, bad: BadRecords | None = None) -> Iterator[str]:
        return iter(self.texts)


Part = FilePart | MemoryPart


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order, in parts that can be read independently.

    Attributes:
        name: its name in messages: the path and the split.
        parts: ordered by the names of their files.
        fingerprint: SHA-256, in hexadecimal, of the files' names, sizes, versions and ends, and of
            the split. It recognises a corpus without reading it all, and stays the same when the
            folder moves.
        files: the files of the parts.
        others: the other files at the path: of other splits, or without text.
    """

    name: str
    parts: tuple[Part, ...]
    fingerprint: str
    files: tuple[File, ...] = ()
    others: tuple[File, ...] = ()

    def documents(self, bad: BadRecords | None = None) -> Iterator[str]:
        """Yields the documents of all parts; raises DataError as FilePart.documents does."""
        bad = bad or BadRecords()
        return itertools.chain.from_iterable(part.documents(bad) for part in self.parts)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the fingerprint, the parts into which the corpus is cut, and
        their readers."""
        parts = [(part.name, part.size, getattr(part, "reader", "")) for part in self.parts]
        return hashlib.sha256(repr((self.fingerprint, parts)).encode()).hexdigest()


def in_memory(name: str, documents: Iterable[str]) -> Corpus:
    """A corpus of one part, recognised by its content; documents that are only white space are left
    out."""
    texts = tuple(document for document in documents if document.strip())
    return Corpus(name, (MemoryPart(name, texts),), fingerprints.digest(texts))


def open_corpus(path: str, split: str = "") -> Corpus:
    """Finds the parts of a corpus, without reading its documents.

    Args:
        path: see the module's docstring.
        split: one of `split_names(path)`, or '' for all documents, whatever the names of the files.

    Raises:
        DataError: there is nothing at `path` or no such split, shards are missing, or the store
            cannot be reached.
    """
    path, folder, present = _look(path)
    groups = _groups(path, folder, present) if split or folder else {}
    if split and split not in groups:
        raise splits.missing_split(path, split, tuple(groups))
    if folder:
        reader = "tfds_parquet" if folder.file_format == "parquet" else folder.file_format
        shards = [shard for name in ([split] if split else groups) for shard in folder.shards(name)]
        chosen = [(shard.file, reader, shard.records) for shard in shards]
    else:
        texts = groups[split] if split else _texts(path, present)
        if present[0].path != path:
            files.check_shards(path, texts)
        chosen = [
            (file, _READERS_BY_SUFFIX.get(files.suffix(file.name), "text"), None) for file in texts
        ]
    parts = tuple(itertools.chain.from_iterable(_parts(*file) for file in chosen))
    used = tuple(file for file, _, _ in chosen)
    others = sorted(
        file
        for file in {*present} - {*used}
        if not _NOT_TEXT.fullmatch(os.path.basename(file.name))
    )
    lines = [split, *(f"{file.name}\t{file.size}\t{file.version}\t{_ends(file)}" for file in used)]
    fingerprint = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
    return Corpus(f"{path} ({split})" if split else path, parts, fingerprint, used, tuple(others))


def split_names(path: str) -> tuple[str, ...]:
    """Names of the splits of a corpus, by TFDS or by the names of its files; () if there are none.

    A split is a word in the name of a file or of a folder around it, anywhere in the name (see
    splits.split_words): `train-00000-of-00010.parquet`, `wiki.train.txt` beside `valid_1.txt`,
    `Train/` beside `validation/`. It keeps the word as its name. Folders around all files do not
    count. Where `dataset_dict.json` lies, each folder is a split. A path that is a file has none.

    Raises:
        DataError: there is nothing at `path`, the store cannot be reached, a name or the names of a
            file and its folder can be read as two splits, or beside the files of splits, other than
            training alone, are text files of none.
    """
    return tuple(_groups(*_look(path)))


def stem(name: str) -> str:
    """A file's name without the numbers of a shard, or without its suffixes."""
    shard = files.SHARD.match(name)
    return (
        shard["stem"]
        if shard
        else name[: len(name) - len(files.suffix(name) + files.compression(name))]
    )


def _look(path: str) -> tuple[str, tfds_folders.Folder | None, tuple[File, ...]]:
    """The path without tfds:, the TFDS folder there if it is one, and all files."""
    path = tfds_folders.find(str(path))
    present = files.find_files(path)
    folder = tfds_folders.load(path, present)
    if folder:
        tfds_folders.require_text(folder)
    return path, folder, present


def _ends(file: File) -> str:
    """A hash of a local file's two ends, as its time may be that of an archive, and say nothing. Of
    a remote one the store's tag is of the content."""
    return "" if files.is_remote(file.path) else hashlib.sha256(fingerprints.ends(file)).hexdigest()


def _is_text(name: str) -> bool:
    return files.suffix(name) in _READERS_BY_SUFFIX and not _NOT_TEXT.fullmatch(
        os.path.basename(name)
    )


def _texts(path: str, present: tuple[File, ...]) -> list[File]:
    """The text files at a path; a single file is text, whatever its name, if it is no table."""
    texts = [file for file in present if file.path == path or _is_text(file.name)]
    if not texts:
        found = ", ".join(
            sorted({files.suffix(file.name) or os.path.basename(file.name) for file in present})[:8]
        )
        raise DataError(
            f"folder {path!r} holds no readable text: expected files ending in {', '.join(_READERS_BY_SUFFIX)}, "
            f"or text with {' or '.join(files.COMPRESSIONS)}; or give a TFDS folder, with its features.json"
            f"{found and f' (found {found}; unpack archives)'}"
        )
    if files.suffix(texts[0].path) in _TABLES:
        raise DataError(
            f'{path!r} is a table: write its text as JSON lines {{"text": ...}}, or name it .txt'
        )
    return texts


def _groups(
    path: str, folder: tfds_folders.Folder | None, present: tuple[File, ...]
) -> dict[str, list[File]]:
    """Split name -> its text files, in order; {} if there are no splits. Those of a TFDS folder
    come without files: its shards are checked only when a split is opened."""
    if folder:
        return {name: [] for name in folder.lengths}
    texts = [file for file in present if _is_text(file.name) and file.path != path]
    around = os.path.commonpath([os.path.dirname(file.name) for file in texts]) if texts else ""
    depth = len(around.split("/")) if around else 0
    is_dict = any(file.name == _DICT for file in present)
    groups: dict[str, list[File]] = {}
    for file in texts:
        split = (
            file.name.rpartition("/")[0].partition("/")[0]
            if is_dict
            else _split(path, file.name, depth)
        )
        groups.setdefault(split, []).append(file)
    others = groups.pop("", [])
    if others and any([*split_words(name)] != [TRAIN_SPLIT] for name in groups):
        raise DataError(
            f"{others[0].path}: a text file of no split, beside files of the splits {', '.join(groups)}, such as "
            f"{next(iter(groups.values()))[0].name!r}: move it away, give single files, or train on all files with "
            f"split=all"
        )
    return {} if others else groups


def _split(root: str, name: str, depth: int) -> str:
    """The word of the split in a file's name, or of the nearest folder's but the first `depth`
    folders'; or ""."""
    *folders, last = name.split("/")
    read = [
        words for part in (stem(last), *reversed(folders[depth:])) if (words := split_words(part))
    ]
    common = [split for split in (read[0] if read else ()) if all(split in words for words in read)]
    if read and len(common) != 1:
        words = " or ".join(
            map(repr, dict.fromkeys(word for words in read for word in words.values()))
        )
        raise DataError(
            f"{files.join(root, name)} can be read as of the split {words}: rename, or split=all"
        )
    return read[0][common[0]] if read else ""


def _parts(file: File, reader: str, count: int | None) -> Iterator[FilePart]:
    """Cuts a file into equal ranges, if its format allows it; `count`: the records of a TFDS shard,
    None for text."""
    if reader in ("parquet", "tfds_parquet"):
        yield from _row_group_parts(file, reader)
        return
    total, unit = (file.size, "bytes") if count is None else (count, "records")
    pieces = max(1, min(total, -(-file.size // PART_BYTES)))
    # Each part of a remote shard would fetch all records before it, or the whole file.
    far = count is not None and files.is_remote(file.path)
    if pieces == 1 or far or reader in ("text", "arrow") or files.compression(file.name):
        yield FilePart(file.name, file.path, reader, file.size, 0, count)
        return
    for start, stop in itertools.pairwise(total * i // pieces for i in range(pieces + 1)):
        name, size = (
            f"{file.name}, {unit} {start} to {stop - 1}",
            file.size * (stop - start) // total,
        )
        yield FilePart(name, file.path, reader, size, start, stop)


def _row_group_parts(file: File, reader: str) -> Iterator[FilePart]:
    """Joins row groups into parts of at least PART_BYTES; the footer of a small file is not
    read."""
    sizes = records.parquet_sizes(file.path) if file.size > PART_BYTES else []
    start = size = 0
    for stop, group in enumerate(sizes, start=1):
        size += group
        if size >= PART_BYTES and stop < len(sizes):
            yield FilePart(
                f"{file.name}, row groups {start} to {stop - 1}",
                file.path,
                reader,
                size,
                start,
                stop,
            )
            start, size = stop, 0
    name = f"{file.name}, row groups {start} to {len(sizes) - 1}" if start else file.name
    yield FilePart(name, file.path, reader, size or file.size, start, None)


class Selection(NamedTuple):
    """Which documents of a corpus to take.

    Attributes:
        share: of the documents, held out by their text (see data.splits); 0 takes all documents.
        side: "train" or "heldout".
    """

    share: float = 0.0
    side: str = TRAIN

    def pick(self, documents: Iterator[str], whole: bool) -> Iterator[str]:
        """The documents on this side.

        Args:
            documents: some documents of the corpus, or all.
            whole: whether they are all. If there is only one, it is cut at a line: its last `share`
                is held out.

        Raises:
            DataError: a single document leaves a side empty.
        """
        if not self.share:
            return documents
        first = list(itertools.islice(documents, 2)) if whole else []
        if len(first) == 1:
            return iter([self._cut(first[0])])
        documents = itertools.chain(first, documents)
        return (document for document in documents if splits.is_on(self.side, document, self.share))

    def _cut(self, document: str) -> str:
        """This side of a single document, cut at the start of the line that crosses 1 - share of
        its characters."""
        shares = (1 - self.share, 1) if self.share > 0 else (1 + 2 * self.share, 1 + self.share)
        cut, end = (document.rfind("\n", 0, round(len(document) * share)) + 1 for share in shares)
        sides = {TRAIN: document[:cut], HELDOUT: document[cut : None if self.share > 0 else end]}
        for side, text in sides.items():
            if not text.strip():
                raise splits.empty_side("the lines of the only document", side, self.share)
        return sides[self.side]


EVERYTHING = Selection()


def open_side(path: str, side: splits.Side) -> tuple[Corpus, Selection]:
    """The corpus at `path` that has the documents of a side, and which of them to take.

    In a corpus with splits, `train` is for training and `validation` (or a word that
    `splits.SPLIT_WORDS` maps to it) is held out. In any other, a share is held out.

    Args:
        path: see the module's docstring.
        side: its `split` "all" stands for all documents, whatever splits the names of the files
            tell of.

    Raises:
        DataError: as in open_corpus; a split would be both trained on and held out; or none of
            several splits is one for this side.
    """
    shared, everything = side.heldout_share or side.name == TRAIN, side.split == splits.EVERYTHING
    known, split = ((), "") if everything and shared else (split_names(path), side.split)
    train = split or _named(known, splits.TRAIN_SPLIT)
    heldout = side.heldout_split or _named(known, splits.HELDOUT_SPLIT)
    key, needed = ("split", train) if shared else ("heldout_split", heldout)
    if needed == splits.ALL_SPLITS and len(known) > 1 and any(map(splits.split_words, known)):
        names = listed(map(repr, known))
        raise DataError(
            f"{path!r} has the splits {names}, and none for the side {side.name!r}: name one with {key}"
        )
    chosen = side.choose(
        path, (train,), (heldout,) if heldout or not side.heldout_share else (), known
    )
    return open_corpus(path, *chosen.splits), Selection(
        chosen.share, side.name
    ) if chosen.share else EVERYTHING


def _named(known: Sequence[str], meaning: str) -> str:
    """The first of the splits that means the split `meaning` of TFDS, or ALL_SPLITS."""
    return next(
        (name for name in known if [*splits.split_words(name)] == [meaning]), splits.ALL_SPLITS
    )


def describe(sides: Mapping[str, Corpus], share: float = 0.0) -> str:
    """A line on the files of one or two corpora, and on those at the same paths that are not read.

    Args:
        sides: what the files are for ("to train on", "held out") -> the corpus.
        share: the share of the documents that is held out.

    Raises:
        DataError: a file, perhaps under two names, is in both corpora.
    """
    used = [
        {os.path.realpath(file.path): file.path for file in side.files} for side in sides.values()
    ]
    for path in used[0].keys() & used[1].keys() if len(used) > 1 else ():
        raise DataError(
            f"{used[1][path]!r} is held out and also trained on{'' if used[0][path] == path else f' ({path!r})'}: "
            "give other files, or leave config.data.heldout empty: a share of the documents is held out"
        )
    parts = [f"{_listed(side.files)} {use}" for use, side in sides.items()]
    parts += [f"{100 * abs(share):.3g} % of the documents held out"] if share else []
    others = {file.path: file for side in sides.values() for file in side.others}
    if unread := [
        file for path, file in others.items() if not any(path in paths.values() for paths in used)
    ]:
        parts.append(f"not read: {_listed(unread)}")
    return f"text: {'; '.join(parts)}"


def _listed(files: Sequence[File]) -> str:
    return (
        f"{len(files):,} file{'s' * (len(files) != 1)} ({listed((file.name for file in files), 3)})"
    )
