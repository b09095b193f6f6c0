"""A corpus as token ids on disk: the format that `prepare` writes and training reads.

The corpus is a folder of shards. Shard i of n, counted from 0, is two files:

    ids-0000i-of-0000n.array_record   the ids of its documents, with [SEP] after each, in records of BLOCK ids (the last
                                      one is shorter): uint16 if the vocabulary allows, else uint32; little-endian
    lengths-0000i-of-0000n.npy        uint32 [documents]: the tokens of each document, including its [SEP]

Beside them lie `tokenizer.model`, a copy of the tokenizer's file, and `index.json`. The index is written last: a folder
that has one is whole.
"""

import hashlib
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from gmlp_flax.data import fingerprints
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import DataError, decode_errors
from gmlp_flax.io import cache, files, json_files
from gmlp_flax.io.cache import ResultCache
from gmlp_flax.io.files import File
from gmlp_flax.io.records import array_record_writer

FORMAT = 1
INDEX = "index.json"

# Ids in a record, which one read fetches: 128 KB of uint16.
BLOCK = 65_536

# Each block can be read alone. Not compressed: ids of a unigram vocabulary hardly shrink.
_WRITER_OPTIONS = "group_size:1,uncompressed"

_AGAIN = "copy or prepare it again, or delete its folder if it is one of the cache"

OPEN_READERS = 64  # fewer than the usual limit of open files, which a corpus of 1,024 shards would reach


def ids_dtype(vocab_size: int) -> np.dtype:
    """The type in which the ids of a vocabulary of this size are stored."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def shard_files(folder: str | os.PathLike, number: int, count: int) -> tuple[Path, Path]:
    """The two files of a shard: (ids, lengths)."""
    name = f"{number:05}-of-{count:05}"
    return Path(folder) / f"ids-{name}.array_record", Path(folder) / f"lengths-{name}.npy"


def write_shard(ids_path: Path, lengths_path: Path, batches: Iterable, dtype: np.dtype) -> dict[str, int]:
    """Writes one shard; each file gets its name when it is whole.

    Args:
        ids_path, lengths_path: see `shard_files`.
        batches: pairs of ids, integer [tokens], and the lengths of the documents that end in the batch, in order.
        dtype: see `ids_dtype`.

    Returns:
        {"documents", "tokens", "ids_bytes", "lengths_bytes"}: counts, and the sizes of the files.

    Raises:
        DataError: the files cannot be written.
    """
    unwritten, lengths = np.empty(0, dtype), [np.empty(0, np.uint32)]
    with array_record_writer(ids_path, _WRITER_OPTIONS) as write:
        for ids, ended in batches:
            lengths.append(np.array(ended, np.uint32))
            unwritten = np.concatenate([unwritten, ids.astype(dtype)])
            whole = len(unwritten) - len(unwritten) % BLOCK
            for first in range(0, whole, BLOCK):
                write(unwritten[first : first + BLOCK].tobytes())
            unwritten = unwritten[whole:]
        if len(unwritten):
            write(unwritten.tobytes())
    content, all_lengths = io.BytesIO(), np.concatenate(lengths)
    np.save(content, all_lengths)
    files.write(lengths_path, content.getvalue())
    return {
        "documents": len(all_lengths),
        "tokens": int(all_lengths.sum(dtype=np.int64)),
        "ids_bytes": ids_path.stat().st_size,
        "lengths_bytes": lengths_path.stat().st_size,
    }


class Prepared:
    """A prepared corpus: one stream of ids over all shards, read by position. Pickled as the name of its folder.

    Args:
        folder: a folder with an `index.json`. The files of a remote one are copied to this disk as they are read.

    Attributes:
        index: the content of `index.json`.
        tokenizer: the tokenizer that made the ids.
        dtype: the type of the stored ids.
        tokens, documents, skipped: totals over all shards: tokens (one [SEP] per document included), documents, and bad
            records.
        offsets: int64 [shards + 1], where each shard begins in the stream, and the end.

    Raises:
        DataError: there is no such folder, it is not finished, or a file is missing, truncated or from another
            preparation.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = str(folder)
        self.index = read_index(self.folder)
        shards, present = self.index["shards"], {file.name: file for file in files.find_files(self.folder)}
        self._files: list[list[File]] = []  # of each shard: ids, lengths
        for number, shard in enumerate(shards):
            names = [path.name for path in shard_files("", number, len(shards))]
            for name, size in zip(names, (shard["ids_bytes"], shard["lengths_bytes"]), strict=True):
                if name not in present or present[name].size != size:
                    raise DataError(f"{self.folder}/{name}: missing, or not of the {size} bytes written; {_AGAIN}")
            self._files.append([present[name] for name in names])
        model = files.join(self.folder, TOKENIZER_FILE)
        content = files.read_small(model)
        if hashlib.sha256(content).hexdigest() != self.index.get("tokenizer"):
            raise DataError(f"{model} is not the one that made the ids; {_AGAIN}")
        self.tokenizer = Tokenizer(content, model)
        self.dtype = np.dtype(self.index["dtype"])
        self.offsets = np.cumsum([0, *(shard["tokens"] for shard in shards)], dtype=np.int64)
        self.tokens = int(self.offsets[-1])
        self.documents, self.skipped = (sum(shard[name] for shard in shards) for name in ("documents", "skipped"))
        # Open copies of remote files cannot be deleted: they take a quarter of the cache at most.
        largest, remote = max(shard["ids_bytes"] for shard in shards), files.is_remote(self.folder)
        most = max(1, min(OPEN_READERS, cache.limit() // 4 // largest)) if remote else OPEN_READERS
        self._readers = ResultCache(self._open_reader, most)

    @property
    def files(self) -> list[File]:
        """The files of all shards."""
        return [file for shard in self._files for file in shard]

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
            end = min(stop, int(self.offsets[shard + 1]))
            parts.append(self._read_shard(shard, start - int(self.offsets[shard]), end - int(self.offsets[shard])))
            start = end
        return np.concatenate(parts)

    def counts(self, vocab_size: int, most: int = 1 << 24) -> np.ndarray:
        """How often each id occurs, [vocab_size]: in all tokens or, if they are more than `most`, in spread blocks."""
        blocks, counts = -(-self.tokens // BLOCK), np.zeros(vocab_size, np.int64)
        for block in fingerprints.spread(blocks, max(1, most // BLOCK)):
            ids = self.read(block * BLOCK, min((block + 1) * BLOCK, self.tokens))
            counts += np.bincount(ids, minlength=vocab_size)
        return counts

    def lengths(self, shard: int) -> np.ndarray:
        """uint32 [documents]: tokens of each document of a shard, with its [SEP]; raises DataError if damaged."""
        file = self._files[shard][1]
        with cache.LocalCopy(file) as copy, decode_errors(f"{file.path}: damaged", _AGAIN):
            lengths = np.load(copy.path, mmap_mode="r", allow_pickle=False)  # a header of any shape takes no memory
            expected = self.index["shards"][shard]
            is_array = (lengths.dtype, lengths.shape) == (np.uint32, (expected["documents"],))
            if not is_array or lengths.sum(dtype=np.int64) != expected["tokens"] or not lengths.all():
                raise ValueError("other lengths than were written")
            return np.array(lengths)

    def first_documents(self, count: int) -> np.ndarray:
        """The ids of the first documents, with their [SEP], of the first shard at most, and not above 4 million."""
        return self.read(0, min(int(self.lengths(0)[:count].sum(dtype=np.int64)), 1 << 22))

    def _read_shard(self, shard: int, start: int, stop: int) -> np.ndarray:
        first = start // BLOCK
        with decode_errors(f"{self._files[shard][0].path}: damaged or removed", _AGAIN):
            reader, _ = self._readers(shard)
            # One by one: the library would fetch a range with a pool of threads, which is slower.
            blocks = [reader.read([number])[0] for number in range(first, -(-stop // BLOCK))]
            ids = np.frombuffer(b"".join(blocks), self.dtype)[start - first * BLOCK : stop - first * BLOCK]
            if len(ids) != stop - start or ids.max(initial=0) >= self.tokenizer.vocab_size:
                raise ValueError("fewer ids than were written, or ids that the tokenizer does not have")
            return ids

    def _open_reader(self, shard: int) -> tuple[ArrayRecordReader, cache.LocalCopy]:
        copy = cache.LocalCopy(self._files[shard][0])
        return ArrayRecordReader(copy.path, options="readahead_buffer_size:0"), copy

    def __reduce__(self):
        return Prepared, (self.folder,)


def is_prepared(folder: str | os.PathLike) -> bool:
    """Whether the folder holds a finished preparation."""
    return files.exists(files.join(os.fspath(folder), INDEX))


def read_index(folder: str) -> dict[str, Any]:
    """The content of a folder's `index.json`; raises DataError if there is none, or a damaged one."""
    path = files.join(folder, INDEX)
    if not is_prepared(folder):
        raise DataError(f"no prepared corpus in {folder!r}: it has no {INDEX}; make or finish it with gmlp prepare")
    index = json_files.read(path, dict)
    if (version := index.get("format")) != FORMAT:
        raise DataError(f"{path}: format {version!r}, expected {FORMAT}; prepare the corpus again")
    shards = index.get("shards")
    whole = isinstance(shards, list) and shards and all(map(is_record, shards))
    if not whole or index.get("dtype") not in ("<u2", "<u4"):
        raise DataError(f"{path}: damaged; {_AGAIN}")
    return index


def is_record(shard: Any) -> bool:
    """Whether it is what `write_shard` returned, with the bad records that were skipped."""
    if not isinstance(shard, dict) or not isinstance(shard.get("skipped_first"), list):
        return False
    numbers = [shard.get(name) for name in ("documents", "tokens", "ids_bytes", "lengths_bytes", "skipped")]
    return all(type(number) is int and 0 <= number < 2**53 for number in numbers)
