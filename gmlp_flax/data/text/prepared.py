"""A corpus as token ids on disk: the format that `prepare` writes and training reads.

The corpus is a folder of shards. Shard i of n, counted from 0, is ids-0000i-of-0000n.array_record:
the ids of its documents, with [SEP] after each, in records of BLOCK ids (the last one is shorter):
uint16 if the vocabulary allows, else uint32; little-endian.

The folder also has `tokenizer.model`, a copy of the tokenizer's file, and `index.json`. The index
is written last: a folder that has one is complete.
"""

import functools
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from gmlp_flax.data.dataset import Dataset, line_of
from gmlp_flax.data.fingerprints import spread
from gmlp_flax.data.text.encoding import EncodedBatch
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import cache, files, json_files
from gmlp_flax.io.cache import ResultCache
from gmlp_flax.io.files import File
from gmlp_flax.io.records import array_record_writer

FORMAT = 2
INDEX = "index.json"

# What the index says about a shard: its sizes, see `write_shard`, and the bad records that were
# skipped.
ShardRecord = dict[str, Any]

# Ids in a record, which one read fetches: 128 KB of uint16.
BLOCK = 65_536

# Each block can be read alone. Not compressed: ids of a unigram vocabulary hardly shrink.
_WRITER_OPTIONS = "group_size:1,uncompressed"

_AGAIN = "copy or prepare it again, or delete its folder if the folder is in the cache"

# Fewer than the usual limit of open files, which a corpus of 1,024 shards would reach.
OPEN_READERS = 64
OPEN_COPIES = 4  # of remote shards, which cannot be deleted while they are open

# The most that `Prepared.some_documents` reads: tokens, and evenly spread shards.
SAMPLE_TOKENS = 1 << 24
SAMPLE_SHARDS = 16


def ids_dtype(vocab_size: int) -> np.dtype:
    """The type in which the ids of a vocabulary of this size are stored."""
    name = "<u2" if vocab_size <= 2**16 else "<u4"
    return np.dtype(name)


def shard_file(folder: str | os.PathLike, number: int, count: int) -> Path:
    """The file of a shard."""
    name = f"ids-{number:05}-of-{count:05}.array_record"
    return Path(folder, name)


def write_shard(path: Path, batches: Iterable[EncodedBatch], dtype: np.dtype) -> ShardRecord:
    """Writes one shard, whose file gets its name when it is complete.

    Args:
        path: see `shard_file`.
        batches: the documents, in order.
        dtype: see `ids_dtype`.

    Returns:
        {"documents", "tokens", "text_bytes", "ids_bytes"}: counts, the size of the text in UTF-8,
        and the size of the file.

    Raises:
        DataError: the file cannot be written.
    """
    unwritten = np.empty(0, dtype)
    documents = 0
    tokens = 0
    text_bytes = 0
    with array_record_writer(path, _WRITER_OPTIONS) as write:
        for batch in batches:
            documents += batch.documents
            tokens += len(batch.ids)
            text_bytes += batch.text_bytes
            new_ids = batch.ids.astype(dtype)
            unwritten = np.concatenate([unwritten, new_ids])
            while len(unwritten) >= BLOCK:
                block = unwritten[:BLOCK]
                write(block.tobytes())
                unwritten = unwritten[BLOCK:]
        if len(unwritten):
            write(unwritten.tobytes())
    status = path.stat()
    return {
        "documents": documents,
        "tokens": tokens,
        "text_bytes": text_bytes,
        "ids_bytes": status.st_size,
    }


class Prepared:
    """A prepared corpus: one stream of ids over all shards, read by position. Pickled as the name
    of its folder.

    Args:
        folder: a folder with an `index.json`. The files of a remote folder are copied to the local
            disk when they are read.

    Attributes:
        index: the content of `index.json`.
        tokenizer: the tokenizer that made the ids.
        dtype: the type of the stored ids.
        files: the files of all shards.
        tokens: how many tokens all shards have, with one [SEP] per document.
        documents: how many documents.
        text_bytes: the size of the text in UTF-8, before it was normalized.
        skipped: how many bad records were skipped.
        skipped_first: the messages of some of these.
        offsets: int64 [shards + 1], where each shard begins in the stream, and the end.

    Raises:
        DataError: there is no such folder, it is not finished, or a file is missing, truncated or
            from another preparation.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = str(folder)
        self.index = read_index(self.folder)
        shards = self.index["shards"]
        self.files = self._find_shards(shards)
        self.tokenizer = self._read_tokenizer()
        self.dtype = np.dtype(self.index["dtype"])
        sizes = [0]
        for shard in shards:
            sizes.append(shard["tokens"])
        self.offsets = np.cumsum(sizes, dtype=np.int64)
        self.tokens = int(self.offsets[-1])
        self.documents = _total(shards, "documents")
        self.text_bytes = _total(shards, "text_bytes")
        self.skipped = _total(shards, "skipped")
        self.skipped_first: list[str] = []
        for shard in shards:
            self.skipped_first += shard["skipped_first"]
        open_at_once = OPEN_COPIES if files.is_remote(self.folder) else OPEN_READERS
        self._readers = ResultCache(self._open_reader, open_at_once)

    def _find_shards(self, shards: list[ShardRecord]) -> list[File]:
        present = {}
        for file in files.find_files(self.folder):
            present[file.name] = file
        shard_files = []
        for number, shard in enumerate(shards):
            path = shard_file("", number, len(shards))
            name = path.name
            expected_size = shard["ids_bytes"]
            file = present.get(name)
            if file is None or file.size != expected_size:
                raise DataError(
                    f"{self.folder}/{name}: missing, or its size is not the {expected_size} "
                    f"bytes that were written; {_AGAIN}"
                )
            shard_files.append(file)
        return shard_files

    def _read_tokenizer(self) -> Tokenizer:
        path = files.join(self.folder, TOKENIZER_FILE)
        content = files.read_small(path)
        digest = hashlib.sha256(content)
        checksum = digest.hexdigest()
        if checksum != self.index.get("tokenizer"):
            raise DataError(f"{path} is not the tokenizer that made the ids; {_AGAIN}")
        return Tokenizer(content, path)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Ids [start, stop) of the stream: [stop - start], of `dtype`; thread-safe.

        Raises:
            DataError: a file is damaged or was removed.
        """
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"ids {start} to {stop} of {self.tokens}")
        parts = [np.empty(0, self.dtype)]
        while start < stop:
            shard = self._shard_at(start)
            positions = self._shard_range(shard)
            end = min(stop, positions.stop)
            first_in_shard = start - positions.start
            end_in_shard = end - positions.start
            ids = self._read_shard(shard, first_in_shard, end_in_shard)
            parts.append(ids)
            start = end
        return np.concatenate(parts)

    def _shard_at(self, position: int) -> int:
        """The shard that holds a position of the stream."""
        shards_begun = np.searchsorted(self.offsets, position, "right")
        shard = shards_begun - 1
        return int(shard)

    def _shard_range(self, shard: int) -> range:
        """The positions of a shard's ids in the stream."""
        start = int(self.offsets[shard])
        stop = int(self.offsets[shard + 1])
        return range(start, stop)

    def counts(self, vocab_size: int, most: int = 1 << 24) -> np.ndarray:
        """How often each id occurs, int64 [vocab_size]: in all tokens or, if there are more than
        `most`, in evenly spread blocks."""
        counts = np.zeros(vocab_size, np.int64)
        for ids in self.some_blocks(most):
            counts_of_block = np.bincount(ids, minlength=vocab_size)
            counts += counts_of_block
        return counts

    def some_blocks(self, most: int) -> Iterator[np.ndarray]:
        """All ids, in blocks of BLOCK or, if there are more than `most`, about `most` of them, in
        evenly spread blocks."""
        blocks = -(-self.tokens // BLOCK)  # rounded up
        most_blocks = max(1, most // BLOCK)
        for block in spread(blocks, most_blocks):
            start = block * BLOCK
            block_end = start + BLOCK
            stop = min(block_end, self.tokens)
            yield self.read(start, stop)

    def some_documents(self, most: int) -> Iterator[bytes]:
        """The ids, as bytes of uint32, of at most `most` documents: the first ones of some shards.

        The shards of a remote folder are copied to be read, so only one of them is used.
        """
        most_shards = 1 if files.is_remote(self.folder) else SAMPLE_SHARDS
        shards = spread(len(self.files), most_shards)
        count = len(shards)
        tokens_each = SAMPLE_TOKENS // count
        documents_each = max(1, most // count)
        for shard in shards:
            ids = self._first_ids(shard, tokens_each)
            wide_ids = ids.astype(np.uint32)
            documents = self._whole_documents(wide_ids)
            yield from itertools.islice(documents, documents_each)

    def _first_ids(self, shard: int, most: int) -> np.ndarray:
        """At most the first `most` ids of a shard: [tokens]."""
        positions = self._shard_range(shard)
        start = positions.start
        stop = min(positions.stop, start + most)
        return self.read(start, stop)

    def _whole_documents(self, ids: np.ndarray) -> Iterator[bytes]:
        """The documents, as bytes, whose [SEP] is among the first ids of a shard, [tokens]."""
        is_separator = ids == self.tokenizer.sep_id
        separators = np.flatnonzero(is_separator)
        ends = separators + 1
        begin = 0
        for end in ends.tolist():
            document = ids[begin:end]
            yield document.tobytes()
            begin = end

    def dataset(self) -> Dataset:
        """The corpus as a data set of documents, of which only some are shown."""
        return Dataset(
            path=self.folder,
            form="token ids that `gmlp prepare` has written",
            examples=PreparedDocuments(self),
            files=tuple(self.files),
        )

    def _read_shard(self, shard: int, start: int, stop: int) -> np.ndarray:
        """Ids [start, stop) of a shard."""
        first_block = start // BLOCK
        last_block = (stop - 1) // BLOCK
        numbers = range(first_block, last_block + 1)
        first_read = first_block * BLOCK  # the position of the first id that is read
        begin = start - first_read
        end = stop - first_read
        path = self.files[shard].path
        with decode_errors(f"{path}: damaged or removed", _AGAIN):
            read = self._read_blocks(shard, numbers)
            ids = read[begin:end]
            if len(ids) != stop - start:
                raise ValueError("fewer ids than were written")
            largest = ids.max(initial=0)
            if largest >= self.tokenizer.vocab_size:
                raise ValueError("ids that the tokenizer does not have")
            return ids

    def _read_blocks(self, shard: int, numbers: range) -> np.ndarray:
        """The ids of consecutive records of a shard."""
        reader, _ = self._readers(shard)
        records: list[bytes] = []
        # One by one: the library would fetch a range with a pool of threads, which is slower.
        for number in numbers:
            record_list = reader.read([number])
            records += record_list
        content = b"".join(records)
        return np.frombuffer(content, self.dtype)

    def _open_reader(self, shard: int) -> tuple[ArrayRecordReader, cache.LocalCopy]:
        file = self.files[shard]
        copy = cache.LocalCopy(file)
        reader = ArrayRecordReader(copy.path, options="readahead_buffer_size:0")
        return reader, copy

    def __reduce__(self):
        return Prepared, (self.folder,)


def _total(shards: list[ShardRecord], name: str) -> int:
    return sum(shard[name] for shard in shards)


def is_prepared(folder: str | os.PathLike) -> bool:
    """Whether the folder holds a finished preparation."""
    name = os.fspath(folder)
    index_path = files.join(name, INDEX)
    return files.exists(index_path)


def read_index(folder: str) -> dict[str, Any]:
    """The content of a folder's `index.json`; raises DataError if it is missing or damaged."""
    path = files.join(folder, INDEX)
    if not is_prepared(folder):
        raise DataError(
            f"no prepared corpus in {folder!r}: it has no {INDEX}; make or finish it with gmlp "
            "prepare"
        )
    index = json_files.read(path, dict)
    version = index.get("format")
    if version != FORMAT:
        raise DataError(f"{path}: format {version!r}, expected {FORMAT}; prepare the corpus again")
    dtype = index.get("dtype")
    shards = index.get("shards")
    has_dtype = dtype in ("<u2", "<u4")
    if not has_dtype or not _are_shards(shards):
        raise DataError(f"{path}: damaged; {_AGAIN}")
    return index


def _are_shards(value: Any) -> bool:
    """Whether a value of the index is a list of one or more ShardRecords."""
    if not isinstance(value, list) or not value:
        return False
    return all(map(_is_shard, value))


def _is_shard(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    for name in ("documents", "tokens", "text_bytes", "ids_bytes", "skipped"):
        count = value.get(name)
        if not _is_count(count):
            return False
    messages = value.get("skipped_first")
    if not isinstance(messages, list):
        return False
    has_skipped = value["skipped"] > 0
    if has_skipped != bool(messages):
        return False
    return all(isinstance(message, str) for message in messages)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


class PreparedDocuments:
    """The documents of a prepared corpus, as they are shown to the user."""

    units = "documents"

    def __init__(self, prepared: Prepared):
        self.prepared = prepared

    def __len__(self) -> int:
        return self.prepared.documents

    @functools.cached_property
    def _first(self) -> list[bytes]:
        """The first documents of some shards."""
        documents = self.prepared.some_documents(SAMPLE_SHARDS)
        first = itertools.islice(documents, SAMPLE_SHARDS)
        return list(first)

    def describe(self, index: int) -> str:
        """One of the first documents, in a line."""
        number = index % len(self._first)
        document = self._first[number]
        ids = np.frombuffer(document, np.uint32)
        text = self.prepared.tokenizer.decode(ids)
        return line_of(text)
