"""A corpus as token ids on disk: the format that `prepare` writes and training reads.

The corpus is a folder of shards. Shard i of n, counted from 0, is ids-0000i-of-0000n.array_record:
the ids of its documents, with [SEP] after each, in records of BLOCK ids (the last one is shorter):
uint16 if the vocabulary allows, else uint32; little-endian.

The folder also has `tokenizer.model`, a copy of the tokenizer's file, and `index.json`. The index
is written last: a folder that has one is whole.
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

# Ids in a record, which one read fetches: 128 KB of uint16.
BLOCK = 65_536

# Each block can be read alone. Not compressed: ids of a unigram vocabulary hardly shrink.
_WRITER_OPTIONS = "group_size:1,uncompressed"

_AGAIN = "copy or prepare it again, or delete its folder if it is one of the cache"

# Fewer than the usual limit of open files, which a corpus of 1,024 shards would reach.
OPEN_READERS = 64
OPEN_COPIES = 4  # of remote shards, which cannot be deleted while they are open

# What `Prepared.some_documents` reads at most: tokens, and shards, evenly spread, whose first
# documents are taken.
SAMPLE_TOKENS = 1 << 24
SAMPLE_SHARDS = 16


def ids_dtype(vocab_size: int) -> np.dtype:
    """The type in which the ids of a vocabulary of this size are stored."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def shard_file(folder: str | os.PathLike, number: int, count: int) -> Path:
    """The file of a shard."""
    return Path(folder) / f"ids-{number:05}-of-{count:05}.array_record"


def write_shard(path: Path, batches: Iterable[EncodedBatch], dtype: np.dtype) -> dict[str, int]:
    """Writes one shard, which gets its name when it is whole.

    Args:
        path: see `shard_file`.
        batches: the documents, in order.
        dtype: see `ids_dtype`.

    Returns:
        {"documents", "tokens", "text_bytes", "ids_bytes"}: counts, the size of the text in UTF-8,
        and that of the file.

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
            unwritten = np.concatenate([unwritten, batch.ids.astype(dtype)])
            while len(unwritten) >= BLOCK:
                write(unwritten[:BLOCK].tobytes())
                unwritten = unwritten[BLOCK:]
        if len(unwritten):
            write(unwritten.tobytes())
    size = path.stat().st_size
    return {
        "documents": documents,
        "tokens": tokens,
        "text_bytes": text_bytes,
        "ids_bytes": size,
    }


class Prepared:
    """A prepared corpus: one stream of ids over all shards, read by position. Pickled as the name
    of its folder.

    Args:
        folder: a folder with an `index.json`. The files of a remote one are copied to this disk as
            they are read.

    Attributes:
        index: the content of `index.json`.
        tokenizer: the tokenizer that made the ids.
        dtype: the type of the stored ids.
        files: the files of all shards.
        tokens, documents, skipped: totals over all shards: tokens (one [SEP] per document
            included), documents, and bad records; `skipped_first` are the messages of some of
            these.
        text_bytes: of the text in UTF-8, before it was normalised.
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
        tokens = [shard["tokens"] for shard in shards]
        self.offsets = np.cumsum([0, *tokens], dtype=np.int64)
        self.tokens = int(self.offsets[-1])
        self.documents = sum(shard["documents"] for shard in shards)
        self.text_bytes = sum(shard["text_bytes"] for shard in shards)
        self.skipped = sum(shard["skipped"] for shard in shards)
        self.skipped_first: list[str] = []
        for shard in shards:
            self.skipped_first += shard["skipped_first"]
        open_at_once = OPEN_COPIES if files.is_remote(self.folder) else OPEN_READERS
        self._readers = ResultCache(self._open_reader, open_at_once)

    def _find_shards(self, shards: list[dict[str, Any]]) -> list[File]:
        present = {file.name: file for file in files.find_files(self.folder)}
        shard_files = []
        for number, shard in enumerate(shards):
            name = shard_file("", number, len(shards)).name
            file = present.get(name)
            if file is None or file.size != shard["ids_bytes"]:
                raise DataError(
                    f"{self.folder}/{name}: missing, or not of the {shard['ids_bytes']} bytes "
                    f"written; {_AGAIN}"
                )
            shard_files.append(file)
        return shard_files

    def _read_tokenizer(self) -> Tokenizer:
        path = files.join(self.folder, TOKENIZER_FILE)
        content = files.read_small(path)
        checksum = hashlib.sha256(content).hexdigest()
        if checksum != self.index.get("tokenizer"):
            raise DataError(f"{path} is not the one that made the ids; {_AGAIN}")
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
            shard = int(np.searchsorted(self.offsets, start, "right")) - 1
            first = int(self.offsets[shard])
            end = min(stop, int(self.offsets[shard + 1]))
            parts.append(self._read_shard(shard, start - first, end - first))
            start = end
        return np.concatenate(parts)

    def counts(self, vocab_size: int, most: int = 1 << 24) -> np.ndarray:
        """How often each id occurs, [vocab_size]: in all tokens or, if they are more than `most`,
        in spread blocks."""
        counts = np.zeros(vocab_size, np.int64)
        for ids in self.some_blocks(most):
            counts += np.bincount(ids, minlength=vocab_size)
        return counts

    def some_blocks(self, most: int) -> Iterator[np.ndarray]:
        """All ids in blocks of BLOCK or, if they are more than `most`, spread blocks of so many."""
        blocks = -(-self.tokens // BLOCK)
        most_blocks = max(1, most // BLOCK)
        for block in spread(blocks, most_blocks):
            start = block * BLOCK
            stop = min(start + BLOCK, self.tokens)
            yield self.read(start, stop)

    def some_documents(self, most: int) -> Iterator[bytes]:
        """The ids, as bytes of uint32, of at most `most` documents: the first ones of some shards
        or, of a remote folder, whose shards are copied to be read, of one shard."""
        is_remote = files.is_remote(self.folder)
        picked = spread(len(self.files), 1 if is_remote else SAMPLE_SHARDS)
        tokens_each = SAMPLE_TOKENS // len(picked)
        documents_each = max(1, most // len(picked))
        for shard in picked:
            start = int(self.offsets[shard])
            stop = min(int(self.offsets[shard + 1]), start + tokens_each)
            ids = self.read(start, stop).astype(np.uint32)
            ends = np.flatnonzero(ids == self.tokenizer.sep_id) + 1
            begin = 0
            for end in ends[:documents_each].tolist():
                yield ids[begin:end].tobytes()
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
        first = start // BLOCK
        last = (stop - 1) // BLOCK
        with decode_errors(f"{self.files[shard].path}: damaged or removed", _AGAIN):
            reader, _ = self._readers(shard)
            records: list[bytes] = []
            # One by one: the library would fetch a range with a pool of threads, which is slower.
            for number in range(first, last + 1):
                records += reader.read([number])
            blocks = np.frombuffer(b"".join(records), self.dtype)
            begin = start - first * BLOCK
            ids = blocks[begin : begin + stop - start]
            if len(ids) != stop - start:
                raise ValueError("fewer ids than were written")
            if ids.max(initial=0) >= self.tokenizer.vocab_size:
                raise ValueError("ids that the tokenizer does not have")
            return ids

    def _open_reader(self, shard: int) -> tuple[ArrayRecordReader, cache.LocalCopy]:
        copy = cache.LocalCopy(self.files[shard])
        return ArrayRecordReader(copy.path, options="readahead_buffer_size:0"), copy

    def __reduce__(self):
        return Prepared, (self.folder,)


def is_prepared(folder: str | os.PathLike) -> bool:
    """Whether the folder holds a finished preparation."""
    return files.exists(files.join(os.fspath(folder), INDEX))


def read_index(folder: str) -> dict[str, Any]:
    """The content of a folder's `index.json`; raises DataError if there is none, or a damaged
    one."""
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
    shards = index.get("shards")
    has_shards = isinstance(shards, list) and shards and all(map(_is_record, shards))
    if not has_shards or index.get("dtype") not in ("<u2", "<u4"):
        raise DataError(f"{path}: damaged; {_AGAIN}")
    return index


def _is_record(shard: Any) -> bool:
    """Whether it is what `write_shard` returned, with the bad records that were skipped."""
    if not isinstance(shard, dict):
        return False
    for name in ("documents", "tokens", "text_bytes", "ids_bytes", "skipped"):
        number = shard.get(name)
        if type(number) is not int or not 0 <= number < 2**53:
            return False
    messages = shard.get("skipped_first")
    if not isinstance(messages, list) or bool(messages) != bool(shard["skipped"]):
        return False
    return all(isinstance(message, str) for message in messages)


class PreparedDocuments:
    """The documents of a prepared corpus, for people."""

    units = "documents"

    def __init__(self, prepared: Prepared):
        self.prepared = prepared

    def __len__(self) -> int:
        return self.prepared.documents

    @functools.cached_property
    def _first(self) -> list[bytes]:
        """The first documents of some shards."""
        return list(itertools.islice(self.prepared.some_documents(SAMPLE_SHARDS), SAMPLE_SHARDS))

    def describe(self, index: int) -> str:
        """One of the first documents, in a line."""
        ids = np.frombuffer(self._first[index % len(self._first)], np.uint32)
        return line_of(self.prepared.tokenizer.decode(ids))
