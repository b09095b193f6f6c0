"""A corpus as token ids on disk: the format that `prepare` writes and training reads.

The corpus is a folder of shards. Shard i of n, counted from 0, is ids-0000i-of-0000n.array_record:
the ids of its documents, with [SEP] after each, in records of BLOCK ids (the last one is shorter):
uint16 if the vocabulary allows, else uint32; little-endian. Folders of earlier versions also have
the lengths of documents, which nobody reads.

Beside them lie `tokenizer.model`, a copy of the tokenizer's file, and `index.json`. The index is
written last: a folder that has one is whole.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from gmlp_flax.data.fingerprints import spread
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

# fewer than the usual limit of open files, which a corpus of 1,024 shards would reach
OPEN_READERS = 64
OPEN_COPIES = 4  # of remote shards, which cannot be deleted while they are open

# What `overlap_note` compares at most: documents, tokens of each side, and shards, evenly spread,
# whose first documents are taken.
COMPARED, SEARCHED, TOKENS, SHARDS = 4096, 1 << 18, 1 << 24, 16
TOLD = 0.01  # a smaller share of equal documents is not worth a line


def ids_dtype(vocab_size: int) -> np.dtype:
    """The type in which the ids of a vocabulary of this size are stored."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def shard_file(folder: str | os.PathLike, number: int, count: int) -> Path:
    """The file of a shard."""
    return Path(folder) / f"ids-{number:05}-of-{count:05}.array_record"


def write_shard(path: Path, batches: Iterable, dtype: np.dtype) -> dict[str, int]:
    """Writes one shard, which gets its name when it is whole.

    Args:
        path: see `shard_file`.
        batches: pairs of ids, integer [tokens], and the number of documents that end in the batch,
            in order.
        dtype: see `ids_dtype`.

    Returns:
        {"documents", "tokens", "ids_bytes"}: counts, and the size of the file.

    Raises:
        DataError: the file cannot be written.
    """
    unwritten, documents, tokens = np.empty(0, dtype), 0, 0
    with array_record_writer(path, _WRITER_OPTIONS) as write:
        for ids, ended in batches:
            documents, tokens = documents + ended, tokens + len(ids)
            unwritten = np.concatenate([unwritten, ids.astype(dtype)])
            whole = len(unwritten) - len(unwritten) % BLOCK
            for first in range(0, whole, BLOCK):
                write(unwritten[first : first + BLOCK].tobytes())
            unwritten = unwritten[whole:]
        if len(unwritten):
            write(unwritten.tobytes())
    return {"documents": documents, "tokens": tokens, "ids_bytes": path.stat().st_size}


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
        files: the files of all shards, those of earlier versions among them.
        tokens, documents, skipped: totals over all shards: tokens (one [SEP] per document
            included), documents, and bad records; `skipped_first` are the messages of some of
            these.
        offsets: int64 [shards + 1], where each shard begins in the stream, and the end.

    Raises:
        DataError: there is no such folder, it is not finished, or a file is missing, truncated or
            from another preparation.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = str(folder)
        self.index = read_index(self.folder)
        shards, present = (
            self.index["shards"],
            {file.name: file for file in files.find_files(self.folder)},
        )
        self.files: list[File] = []
        self._shards: list[File] = []
        for number, shard in enumerate(shards):
            name = shard_file("", number, len(shards)).name
            if name not in present or present[name].size != shard["ids_bytes"]:
                raise DataError(
                    f"{self.folder}/{name}: missing, or not of the {shard['ids_bytes']} bytes written; {_AGAIN}"
                )
            self._shards.append(present[name])
            beside = f"lengths-{name[4:].partition('.')[0]}.npy"
            self.files += [present[one] for one in (name, beside) if one in present]
        model = files.join(self.folder, TOKENIZER_FILE)
        content = files.read_small(model)
        if hashlib.sha256(content).hexdigest() != self.index.get("tokenizer"):
            raise DataError(f"{model} is not the one that made the ids; {_AGAIN}")
        self.tokenizer = Tokenizer(content, model)
        self.dtype = np.dtype(self.index["dtype"])
        self.offsets = np.cumsum([0, *(shard["tokens"] for shard in shards)], dtype=np.int64)
        self.tokens = int(self.offsets[-1])
        self.documents, self.skipped = (
            sum(shard[name] for shard in shards) for name in ("documents", "skipped")
        )
        self.skipped_first = [message for shard in shards for message in shard["skipped_first"]]
        self._readers = ResultCache(
            self._open_reader, OPEN_COPIES if files.is_remote(self.folder) else OPEN_READERS
        )

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
            parts.append(
                self._read_shard(
                    shard, start - int(self.offsets[shard]), end - int(self.offsets[shard])
                )
            )
            start = end
        return np.concatenate(parts)

    def counts(self, vocab_size: int, most: int = 1 << 24) -> np.ndarray:
        """How often each id occurs, [vocab_size]: in all tokens or, if they are more than `most`,
        in spread blocks."""
        blocks, counts = -(-self.tokens // BLOCK), np.zeros(vocab_size, np.int64)
        for block in spread(blocks, max(1, most // BLOCK)):
            ids = self.read(block * BLOCK, min((block + 1) * BLOCK, self.tokens))
            counts += np.bincount(ids, minlength=vocab_size)
        return counts

    def _read_shard(self, shard: int, start: int, stop: int) -> np.ndarray:
        first = start // BLOCK
        with decode_errors(f"{self._shards[shard].path}: damaged or removed", _AGAIN):
            reader, _ = self._readers(shard)
            # One by one: the library would fetch a range with a pool of threads, which is slower.
            blocks = [reader.read([number])[0] for number in range(first, -(-stop // BLOCK))]
            ids = np.frombuffer(b"".join(blocks), self.dtype)[
                start - first * BLOCK : stop - first * BLOCK
            ]
            if len(ids) != stop - start or ids.max(initial=0) >= self.tokenizer.vocab_size:
                raise ValueError(
                    "fewer ids than were written, or ids that the tokenizer does not have"
                )
            return ids

    def _open_reader(self, shard: int) -> tuple[ArrayRecordReader, cache.LocalCopy]:
        copy = cache.LocalCopy(self._shards[shard])
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
            f"no prepared corpus in {folder!r}: it has no {INDEX}; make or finish it with gmlp prepare"
        )
    index = json_files.read(path, dict)
    if (version := index.get("format")) != FORMAT:
        raise DataError(f"{path}: format {version!r}, expected {FORMAT}; prepare the corpus again")
    shards = index.get("shards")
    whole = isinstance(shards, list) and shards and all(map(_is_record, shards))
    if not whole or index.get("dtype") not in ("<u2", "<u4"):
        raise DataError(f"{path}: damaged; {_AGAIN}")
    return index


def _is_record(shard: Any) -> bool:
    """Whether it is what `write_shard` returned, with the bad records that were skipped."""
    if not isinstance(shard, dict) or not isinstance(shard.get("skipped_first"), list):
        return False
    numbers = [shard.get(name) for name in ("documents", "tokens", "ids_bytes", "skipped")]
    return all(type(number) is int and 0 <= number < 2**53 for number in numbers)


def overlap_note(train: Prepared, heldout: Prepared) -> str:
    """A line if more than TOLD of COMPARED held-out documents are, token by token, among SEARCHED
    that are trained on, else ""; raises DataError if a file is damaged."""
    compared, searched, equal = Counter(_documents(heldout, COMPARED)), 0, 0
    total = compared.total()
    for document in _documents(train, SEARCHED):
        searched += 1
        equal += compared.pop(document, 0)
    if equal <= TOLD * total:
        return ""
    return (
        f"warning: {equal:,} of {total:,} held-out documents ({equal / total:.1%}) are also trained on, by a look at "
        f"{searched:,} of the {train.documents:,} training documents: their scores are too good; remove them"
    )


def _documents(tokens: Prepared, most: int) -> Iterator[bytes]:
    """The ids of some documents; of a remote folder, whose shards are copied to be read, from one
    shard."""
    count = len(tokens.offsets) - 1
    picked = spread(count, 1 if files.is_remote(tokens.folder) else SHARDS)
    for shard in picked:
        start, end = (int(tokens.offsets[at]) for at in (shard, shard + 1))
        ids = tokens.read(start, min(end, start + TOKENS // len(picked))).astype(np.uint32)
        ends = np.flatnonzero(ids == tokens.tokenizer.sep_id)[: max(1, most // len(picked))] + 1
        ids = ids[: int(ends.max(initial=0))]
        yield from (document.tobytes() for document in np.split(ids, ends[:-1]) if len(document))
