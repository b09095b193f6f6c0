"""Corpora: documents (strings) in a fixed order, in parts that workers read in parallel.

A run takes all documents of a split, or a share of them that is chosen by their text.

Large files are cut into several parts if their format allows it (see `documents`): parquet, JSON
lines that are not compressed and, on local disks, TFRecord and ArrayRecord.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gmlp_flax.data import fingerprints, holdout
from gmlp_flax.data.dataset import Dataset, line_of
from gmlp_flax.data.fingerprints import Fingerprint
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.data.text.documents import READERS
from gmlp_flax.errors import DataError, counted, listed
from gmlp_flax.io import compression, files, records
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord, BadRecords

# About the size of a part of a large file; documents and their order do not depend on it.
PART_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class FilePart:
    """A file of a corpus, or a range of one, that one worker reads; picklable.

    Attributes:
        name: the file's name in the corpus and, for a range, the records or bytes that it covers.
        path: the file.
        reader: key of documents.READERS.
        size: bytes before decompression; for a range, its share of them.
        start: where the range begins, in the reader's unit.
        stop: where it ends; None is the end of the file.
    """

    name: str
    path: str
    reader: str
    size: int
    start: int = 0
    stop: int | None = None

    def documents(self, bad: BadRecords) -> Iterator[str]:
        """Yields the documents in order, without those that are only white space.

        Args:
            bad: counts and limits the records that do not parse.

        Raises:
            DataError: one bad record too many, a file that cannot be read, or a whole file without
                a document, which only a .txt file may be.
        """
        is_empty = True
        for document in READERS[self.reader](self.path, self.start, self.stop):
            if isinstance(document, BadRecord):
                bad.skip(f"{self.path}, {document}")
            elif document and not document.isspace():
                is_empty = False
                yield document
        is_whole = self.start == 0 and self.stop is None
        if is_empty and is_whole and self.reader != "text":
            raise DataError(
                f"{self.path}: an empty shard, no document in it; copy or prepare it again, or "
                "remove it"
            )


class MemoryPart(NamedTuple):
    """Documents in memory, with the attributes of a FilePart."""

    name: str
    texts: tuple[str, ...]

    @property
    def size(self) -> int:
        """Characters, which are near enough to bytes."""
        return sum(len(text) for text in self.texts)

    @property
    def reader(self) -> str:
        return ""

    def documents(self, bad: BadRecords) -> Iterator[str]:
        return iter(self.texts)


Part = FilePart | MemoryPart


class Selection(NamedTuple):
    """Which documents of a corpus to take.

    Attributes:
        share: the share of the documents that is held out by their text (see `holdout`); 0 takes
            all documents.
        role: "train" or "heldout".
    """

    share: float = 0.0
    role: str = TRAIN

    def pick(self, documents: Iterator[str], is_whole: bool) -> Iterator[str]:
        """The documents with this role.

        Args:
            documents: some documents of the corpus, or all.
            is_whole: whether they are all. If there is only one, it is cut, and its last `share`
                is held out.

        Raises:
            DataError: a single document leaves nothing for a role.
        """
        if not self.share:
            return documents
        first: list[str] = []
        if is_whole:
            first = list(itertools.islice(documents, 2))
        if len(first) == 1:
            part = self._cut(first[0])
            return iter([part])
        all_documents = itertools.chain(first, documents)
        return filter(self._takes, all_documents)

    def _takes(self, document: str) -> bool:
        return holdout.is_member(self.role, document, self.share)

    def _cut(self, document: str) -> str:
        """The part of a single document with this role."""
        share = abs(self.share)
        if self.share > 0:
            cut = _find_cut(document, 1 - share, share)
            end = len(document)
        else:  # what the positive share would hold out is neither trained on nor held out
            cut = _find_cut(document, 1 - 2 * share, share)
            end = _find_cut(document, 1 - share, share)
        parts = {TRAIN: document[:cut], HELDOUT: document[cut:end]}
        for role, text in parts.items():
            if not text.strip():
                raise holdout.nothing_left("the only document", role, self.share)
        return parts[self.role]


_LAST_BLANK = re.compile(r"\s(?=\S*\Z)")


def _find_cut(document: str, before: float, share: float) -> int:
    """Where to cut a document after the share `before` of its characters.

    That is at the start of the line there or, if that is farther than half of `share` away, after
    the last white space; in a text without white space, between two characters.
    """
    size = len(document)
    target = round(size * before)
    reach = round(size * share / 2)
    earliest = max(0, target - reach)
    line_feed = document.rfind("\n", earliest, target)
    carriage_return = document.rfind("\r", earliest, target)
    line_end = max(line_feed, carriage_return)
    if line_end >= 0:
        return line_end + 1
    blank = _LAST_BLANK.search(document[earliest:target])
    if blank:
        return earliest + blank.end()
    return target


EVERYTHING = Selection()


@dataclasses.dataclass(frozen=True)
class Documents:
    """Documents in a fixed order, read from the front.

    Attributes:
        parts: ordered by the names of their files; they can be read independently.
        selection: which of the documents are taken.
    """

    parts: tuple[Part, ...]
    selection: Selection = EVERYTHING

    def read(self, bad: BadRecords | None = None) -> Iterator[str]:
        """Yields the documents that are taken; raises DataError as FilePart.documents does.

        Args:
            bad: counts and limits the records that do not parse; without it the first one raises.
        """
        if bad is None:
            bad = BadRecords()
        documents = chain_documents(self.parts, bad)
        return self.selection.pick(documents, is_whole=True)


def chain_documents(parts: Iterable[Part], bad: BadRecords) -> Iterator[str]:
    """The documents of some parts, in order; see FilePart.documents."""
    for part in parts:
        yield from part.documents(bad)


@dataclasses.dataclass(frozen=True)
class Corpus(Dataset):
    """A data set of documents, whose `examples` are `Documents`.

    Attributes:
        content: SHA-256, in hexadecimal, of the files' names, sizes, versions and ends, and of the
            split; for documents in memory, a hash of the documents. It recognizes a corpus without
            reading it all, and stays the same when the folder moves.
    """

    content: str = ""

    @property
    def units(self) -> str:
        return "documents"

    @property
    def count(self) -> None:
        """See Dataset: documents are counted as they are tokenized."""
        return None

    def byte_size(self) -> int:
        return sum(part.size for part in self.examples.parts)

    def some(self, count: int) -> list[str]:
        """See Dataset: the first documents."""
        documents = itertools.islice(self.examples.read(), count)
        return [line_of(text) for text in documents]

    @property
    def name(self) -> str:
        """Its name in messages: the path and the split."""
        return f"{self.path} ({self.split})" if self.split else self.path

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the content, the parts into which the corpus is cut, and
        their readers."""
        parts = []
        for part in self.examples.parts:
            identity = (part.name, part.size, part.reader)
            parts.append(identity)
        description = repr((self.content, parts))
        digest = hashlib.sha256(description.encode())
        return digest.hexdigest()

    @property
    def fingerprint(self) -> Fingerprint:
        """See Dataset."""
        if self.files:
            return fingerprints.of_files(self.files)
        count = sum(len(part.texts) for part in self.examples.parts)
        return {"documents": count, "content": self.content}

    def hold_out(self, role: str, share: float) -> Corpus:
        """See Dataset; the documents are chosen when they are read."""
        selection = Selection(share, role)
        examples = dataclasses.replace(self.examples, selection=selection)
        return dataclasses.replace(self, examples=examples)


def no_text(corpus: Corpus) -> DataError:
    """The error of a corpus that has no text at all, or none for its role."""
    if not _has_text(corpus):
        all_files = _files(corpus)
        return DataError(
            f"{corpus.name!r} has no text: {all_files} empty, or only white space; give a file "
            "with text"
        )
    selection = corpus.examples.selection
    share = holdout.share_in_words(selection.share)
    return DataError(
        f"{corpus.name!r} holds no text for {selection.role!r} with {share}: give more documents, "
        "or another share"
    )


def _has_text(corpus: Corpus) -> bool:
    """Whether a corpus has a document, whatever its role. Records that do not parse are skipped."""
    skipped = BadRecords(limit=sys.maxsize)
    documents = chain_documents(corpus.examples.parts, skipped)
    first = next(documents, None)
    return first is not None


def _files(corpus: Corpus) -> str:
    """The subject of a sentence about all files of a corpus, and its verb."""
    count = len(corpus.files)
    if not count:
        return "all documents are"
    if count == 1:
        return "the file is"
    return f"all {count} files are"


def describe(corpus: Corpus, use: str) -> str:
    """A line on the files of a corpus; `use` is what they are for."""
    names = [file.name for file in corpus.files]
    count = counted(len(names), "file")
    first_names = listed(names, 3)
    line = f"text {use}: {count} ({first_names})"
    share = abs(corpus.examples.selection.share)
    if share:
        line += f", {100 * share:.3g} % of the documents held out"
    return line


def in_memory(name: str, documents: Iterable[str]) -> Corpus:
    """A corpus of one part, recognized by its content; documents that are only white space are left
    out."""
    texts = tuple(document for document in documents if document.strip())
    part = MemoryPart(name, texts)
    return Corpus(
        path=name,
        form="texts in memory",
        examples=Documents((part,)),
        content=fingerprints.digest(texts),
    )


def from_files(
    path: str,
    form: str,
    split: str,
    parts: Iterable[FilePart],
    members: Sequence[File],
    notes: tuple[str, ...] = (),
) -> Corpus:
    """A corpus of files.

    Args:
        path: of the data set.
        form: the documented form, in words.
        split: its name.
        parts: of the files, in order.
        members: the files.
        notes: what the user should know of the data, a line each.
    """
    lines = [split]
    for file in members:
        ends = _ends(file)
        lines.append(f"{file.name}\t{file.size}\t{file.version}\t{ends}")
    description = "\n".join(lines)
    digest = hashlib.sha256(description.encode("utf-8", "surrogateescape"))
    return Corpus(
        path=path,
        form=form,
        examples=Documents(tuple(parts)),
        split=split,
        files=tuple(members),
        notes=notes,
        content=digest.hexdigest(),
    )


def _ends(file: File) -> str:
    """A hash of a local file's two ends, as its time may be that of an archive, and say nothing.
    Empty for a remote file: the store's tag depends on the content."""
    if files.is_remote(file.path):
        return ""
    content = fingerprints.ends(file)
    digest = hashlib.sha256(content)
    return digest.hexdigest()


def cut(file: File, reader: str, count: int | None = None) -> Iterator[FilePart]:
    """Cuts a file into equal ranges, if its format allows it.

    Args:
        file: the file.
        reader: key of documents.READERS.
        count: the records of a TFDS shard; None for other files.
    """
    if reader in ("parquet", "tfds_parquet"):
        yield from _row_group_parts(file, reader)
        return
    unit = "bytes" if count is None else "records"
    total = file.size if count is None else count
    wanted = -(-file.size // PART_BYTES)  # rounded up
    pieces = min(total, wanted)
    if pieces <= 1 or not _can_be_cut(file, reader, count):
        yield FilePart(
            name=file.name,
            path=file.path,
            reader=reader,
            size=file.size,
            stop=count,
        )
        return
    bounds = [total * piece // pieces for piece in range(pieces + 1)]
    for start, stop in itertools.pairwise(bounds):
        last = stop - 1
        length = stop - start
        yield FilePart(
            name=f"{file.name}, {unit} {start} to {last}",
            path=file.path,
            reader=reader,
            size=file.size * length // total,
            start=start,
            stop=stop,
        )


def _can_be_cut(file: File, reader: str, count: int | None) -> bool:
    """Whether a range in the middle of a file can be read without what is before it."""
    if reader in ("text", "arrow") or compression.compression(file.name):
        return False
    if count is None:
        return True
    # Each part of a remote shard would fetch all records before it, or the whole file.
    return not files.is_remote(file.path)


def _row_group_parts(file: File, reader: str) -> Iterator[FilePart]:
    """Joins row groups into parts of at least PART_BYTES; the footer of a small file is not
    read."""
    if file.size <= PART_BYTES:
        yield FilePart(file.name, file.path, reader, file.size)
        return
    group_sizes = records.parquet_sizes(file.path)
    groups = len(group_sizes)
    start = 0
    size = 0
    for stop, group_size in enumerate(group_sizes, start=1):
        size += group_size
        if size >= PART_BYTES and stop < groups:
            yield FilePart(
                name=f"{file.name}, row groups {start} to {stop - 1}",
                path=file.path,
                reader=reader,
                size=size,
                start=start,
                stop=stop,
            )
            start = stop
            size = 0
    name = file.name
    if start:
        name = f"{file.name}, row groups {start} to {groups - 1}"
    yield FilePart(name, file.path, reader, size or file.size, start)
