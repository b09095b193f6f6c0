"""Corpus to a trained tokenizer, and to token ids on disk (see `prepared`): on all cores, and
resumed if it was interrupted.

The result, byte for byte, depends on the corpus, the tokenizer and the selection alone: neither on
the number of workers nor on how often the work was interrupted.

Until the index is written, a folder `unfinished` holds the plan, which identifies the result, and a
record of each shard that is done. The shards of a remote folder are made in the cache folder and
moved.
"""

import itertools
import multiprocessing
import operator
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tqdm

from gmlp_flax.data.pipeline import usable_cores
from gmlp_flax.data.text import prepared
from gmlp_flax.data.text.corpora import EVERYTHING, Corpus, Part, Selection
from gmlp_flax.data.text.prepared import Prepared
from gmlp_flax.data.text.sentence_piece import TRAINING, TRAINING_THREADS
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, json_files
from gmlp_flax.io.cache import cache_key, cached_file, default_folder
from gmlp_flax.io.locks import folder_lock
from gmlp_flax.io.logs import BEAT, heartbeat, to_stderr
from gmlp_flax.io.records import BadRecords, check_limit

SAMPLE = 64_000_000  # characters to train a tokenizer on, at most
# of a shard's parts, at least: less is not worth a worker, which takes seconds to start
SHARD_BYTES = 16 << 20
MAX_SHARDS = 1024  # as many as C4 has; more files would be unwieldy
DELAY = 2.0  # seconds before a progress bar is shown

BATCH = 1024  # pieces encoded by one call: enough to keep threads busy, little enough to stream

# A longer document is encoded in pieces: SentencePiece adds up the scores of a text's tokens in
# float32, which rounds them in a whole book, and takes thirty bytes of memory per character.
PIECE = 2**12

_UNFINISHED, _PLAN = "unfinished", "plan.json"
_STOP = "stop"  # a file that ends the workers at their next batch


class _Shard(NamedTuple):
    """The work on one shard, made of consecutive parts of the corpus."""

    number: int
    count: int
    parts: tuple[Part, ...]
    tokenizer: Tokenizer
    selection: Selection
    max_bad_records: int
    work: Path  # the local folder in which its files are made
    folder: str  # the folder of the result

    @property
    def record(self) -> Path:
        """The file of the result, written after the shard's own file."""
        return self.work / _UNFINISHED / f"shard-{self.number:05}.json"

    @property
    def path(self) -> Path:
        """The shard's file, as it is made."""
        return prepared.shard_file(self.work, self.number, self.count)

    @property
    def size(self) -> int:
        """Bytes of the corpus."""
        return sum(part.size for part in self.parts)

    def result(self, sizes: dict[str, int]) -> dict[str, Any]:
        """The content of the record, {} if the shard is not done; `sizes`: of the files in the
        result's folder."""
        record = json_files.parse_object(files.read(str(self.record)))
        return record if sizes.get(self.path.name) == record.get("ids_bytes") else {}


def cached_tokenizer(
    corpus: Corpus,
    vocab_size: int,
    cache: str | os.PathLike,
    *,
    selection: Selection = EVERYTHING,
    max_bad_records: int = 0,
) -> Tokenizer:
    """Trains a tokenizer (see Tokenizer.train) on a corpus; it is kept in the folder `cache` as
    `tokenizer-<key>.model`.

    Each part contributes its beginning, in proportion to its size, until there are SAMPLE
    characters; a smaller corpus is used as a whole. The same corpus gives the same tokenizer.

    Raises:
        DataError: as in Tokenizer.train; or the corpus cannot be read, or has more than
            `max_bad_records`.
    """

    def model() -> bytes:
        with heartbeat(f"training a tokenizer of {vocab_size:,} pieces on {corpus.name}"):
            documents = sample_documents(corpus, selection, SAMPLE, BadRecords(max_bad_records))
            return Tokenizer.train(documents, vocab_size).model

    name = cache_key(corpus.digest, vocab_size, selection, SAMPLE, TRAINING_THREADS, TRAINING)
    return Tokenizer.load(cached_file(Path(cache) / f"tokenizer-{name}.model", model))


def sample_documents(
    corpus: Corpus, selection: Selection, sample: int, bad: BadRecords
) -> Iterator[str]:
    """The beginnings of the corpus's parts, of about `sample` characters together."""
    total = max(1, sum(part.size for part in corpus.parts))
    for part in corpus.parts:
        room = -(-sample * part.size // total)
        for document in selection.pick(part.documents(bad), whole=len(corpus.parts) == 1):
            yield document[:room]
            room -= len(document)
            if room <= 0:
                break


def prepare(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: str | os.PathLike,
    *,
    selection: Selection = EVERYTHING,
    workers: int | None = None,
    max_bad_records: int = 0,
    shard_bytes: int = SHARD_BYTES,
) -> Prepared:
    """Tokenises a corpus into a folder, or continues work begun there; shows a progress bar if it
    takes long.

    Args:
        corpus, tokenizer, selection: what is encoded, by which tokenizer, and which of its
            documents.
        folder: made if it is missing. If it holds the result of the same arguments, that is opened.
            Processes that want the same folder wait for each other.
        workers: cores to use; None for all. Several shards are made by spawned processes: a script
            must guard its entry with `if __name__ == "__main__"`.
        max_bad_records: how many records that do not parse are counted and skipped, in the whole
            corpus.
        shard_bytes: consecutive parts are put into one shard until they have this many bytes.

    Raises:
        DataError: `folder` holds something else or cannot be written to; the corpus cannot be read
            or has more bad records; no document is selected.
    """
    folder, groups = os.fspath(folder), _group(corpus.parts, shard_bytes)
    plan = {
        "format": prepared.FORMAT,
        "corpus": corpus.digest,
        "tokenizer": tokenizer.checksum,
        "heldout_share": selection.share,
        "side": selection.side,
        "number of shards": len(groups),
        "vocab_size": tokenizer.vocab_size,
        "dtype": prepared.ids_dtype(tokenizer.vocab_size).str,
    }
    remote = files.is_remote(folder)
    work = (
        Path(default_folder()) / f"preparing-{cache_key(folder, plan)}" if remote else Path(folder)
    )
    common = tokenizer, selection, max_bad_records, work, folder
    shards = [_Shard(number, len(groups), parts, *common) for number, parts in enumerate(groups)]
    with folder_lock(work):
        if not _is_done(shards, plan):
            to_stderr(f"tokenising {corpus.name}{f', {selection.side}' if selection.share else ''}")
            _begin(shards, plan)
            results = _write_shards(shards, workers or usable_cores())
            if not any(result["documents"] for result in results):
                shutil.rmtree(work / _UNFINISHED)  # the folder may be given again
                given = f"the side {selection.side!r} with heldout_share={selection.share}"
                raise DataError(
                    f"{corpus.name!r} holds no text for {given}: give more documents, or another share"
                )
            files.write(files.join(folder, TOKENIZER_FILE), tokenizer.model)
            json_files.write(files.join(folder, prepared.INDEX), plan | {"shards": results})
        shutil.rmtree(work if remote else work / _UNFINISHED, ignore_errors=True)
    made = Prepared(folder)
    check_limit(next(iter(made.skipped_first), "bad records"), 0, made.skipped, max_bad_records)
    return made


def prepare_in_cache(
    corpus: Corpus, tokenizer: Tokenizer, cache: str | os.PathLike, **options: Any
) -> Prepared:
    """`prepare` into `prepared-<key>` in the cache; the key belongs to these arguments alone. Tells
    bad records."""
    selection = options.get("selection", EVERYTHING)
    name = cache_key(
        prepared.FORMAT, corpus.digest, tokenizer.checksum, selection, options.get("shard_bytes")
    )
    made = prepare(corpus, tokenizer, Path(cache) / f"prepared-{name}", **options)
    if made.skipped:
        to_stderr(
            f"{corpus.name}: {made.skipped} bad record(s) skipped, the first: {made.skipped_first[0]}"
        )
    return made


def _group(parts: tuple[Part, ...], shard_bytes: int) -> list[tuple[Part, ...]]:
    """The parts of each shard."""
    sizes = np.array([part.size for part in parts], np.int64)
    total, ends = max(1, int(sizes.sum())), np.cumsum(sizes)
    most = max(1, min(MAX_SHARDS, total // shard_bytes))
    # The middle of a part decides, as if all shards had one size. An empty last part would fall
    # past the last shard, hence the limit.
    numbers = np.minimum(most - 1, (2 * ends - sizes) * most // (2 * total)).tolist()
    grouped = itertools.groupby(zip(numbers, parts, strict=True), operator.itemgetter(0))
    return [tuple(part for _, part in group) for _, group in grouped]


def _sizes(folder: str) -> dict[str, int]:
    """Name -> bytes of the files in a folder, which may not exist."""
    return (
        {file.name: file.size for file in files.find_files(folder)} if files.exists(folder) else {}
    )


def _is_done(shards: list[_Shard], plan: dict[str, Any]) -> bool:
    """Whether the folder holds the plan's result; raises DataError if it holds anything but that or
    a part of it."""
    folder, begun = shards[0].folder, shards[0].work / _UNFINISHED / _PLAN
    done = prepared.is_prepared(folder)
    there = (
        prepared.read_index(folder)
        if done
        else json_files.read(begun, dict)
        if begun.exists()
        else {}
    )
    differs = [
        f"{name} {there.get(name)!r}, not {value!r}"
        for name, value in plan.items()
        if there.get(name) != value
    ]
    if there and differs:
        raise DataError(
            f"{folder!r} holds another preparation: {'; '.join(differs)}; give another folder"
        )
    ours = {shard.path.name for shard in shards}
    if not there and any(
        name not in ours and not name.startswith(f"{_UNFINISHED}/") for name in _sizes(folder)
    ):
        raise DataError(
            f"{folder!r} is not empty and holds no preparation; give a folder of its own"
        )
    return done


def _begin(shards: list[_Shard], plan: dict[str, Any]) -> None:
    """Writes the plan, and removes what killed processes left."""
    unfinished = shards[0].work / _UNFINISHED
    json_files.write(unfinished / _PLAN, plan)
    for path in [*unfinished.parent.glob(".*.tmp"), *unfinished.glob(".*.tmp"), unfinished / _STOP]:
        path.unlink(missing_ok=True)


def _write_shards(shards: list[_Shard], cores: int) -> list[dict[str, Any]]:
    """Makes the shards that are not done, in this process or in one process per core; returns all
    results."""
    sizes = _sizes(shards[0].folder)
    results = {shard.number: result for shard in shards if (result := shard.result(sizes))}
    waiting = [shard for shard in shards if shard.number not in results]
    total, processes = sum(shard.size for shard in shards), max(1, min(cores, len(waiting)))
    # Drawn also while no shard is done, at the rate of the whole time, as shards end in groups.
    drawing = {
        "delay": DELAY,
        "mininterval": 0.25 if sys.stderr.isatty() else BEAT,
        "miniters": 0,
        "smoothing": 0,
    }
    drawing |= {"initial": total - sum(shard.size for shard in waiting), "file": sys.stderr}
    bar = tqdm.tqdm(total=total, desc="tokenising", unit="B", unit_scale=True, **drawing)
    spawned = processes, multiprocessing.get_context("spawn"), _begin_process
    with (
        bar,
        futures.ProcessPoolExecutor(*spawned)
        if processes > 1
        else futures.ThreadPoolExecutor(1) as executor,
    ):
        pending = {
            executor.submit(_write_shard, shard, max(1, cores // processes)): shard
            for shard in waiting
        }
        try:
            while pending:
                for future in futures.wait(
                    pending, timeout=0.25, return_when=futures.FIRST_COMPLETED
                ).done:
                    shard = pending.pop(future)
                    results[shard.number] = future.result()
                    bar.update(shard.size)
                bar.update(0)
        except futures.BrokenExecutor as error:
            raise DataError(
                "a worker was ended from outside, perhaps for want of memory: give fewer"
            ) from error
        finally:
            (shards[0].work / _UNFINISHED / _STOP).touch()
            executor.shutdown(cancel_futures=True)
    return [results[shard.number] for shard in shards]


def _begin_process() -> None:
    """Makes a worker leave Ctrl-C to its parent, and end when its parent ends in whatever way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _write_shard(shard: _Shard, threads: int) -> dict[str, Any]:
    """Writes a shard's file, then its record, and returns the record."""
    bad, stop = BadRecords(shard.max_bad_records), shard.work / _UNFINISHED / _STOP

    def batches() -> Iterator[tuple[np.ndarray, int]]:
        documents = itertools.chain.from_iterable(part.documents(bad) for part in shard.parts)
        chosen = shard.selection.pick(documents, whole=shard.count == len(shard.parts) == 1)
        for batch in encode_documents(chosen, shard.tokenizer, threads):
            if stop.exists():
                raise InterruptedError
            yield batch

    result = prepared.write_shard(
        shard.path, batches(), prepared.ids_dtype(shard.tokenizer.vocab_size)
    )
    if files.is_remote(shard.folder):
        files.upload(shard.path, shard.folder)
    result |= {"skipped": bad.count, "skipped_first": bad.first}
    json_files.write(shard.record, result)
    return result


def encode_documents(
    documents: Iterable[str], tokenizer: Tokenizer, threads: int = 1
) -> Iterator[tuple[np.ndarray, int]]:
    """Encodes documents one after another, with [SEP] after each.

    Yields:
        ids: int32 [tokens] of one batch.
        ended: the number of documents that end in it.
    """
    sep = np.array([tokenizer.sep_id], np.int32)
    pieces = itertools.chain.from_iterable(map(_pieces, documents))
    while batch := list(itertools.islice(pieces, BATCH)):
        encoded = tokenizer.encode_batch([text for text, _ in batch], threads)
        parts = [
            part
            for ids, (_, is_last) in zip(encoded, batch, strict=True)
            for part in (ids, sep[:is_last])
        ]
        yield np.concatenate(parts), sum(is_last for _, is_last in batch)


def _pieces(document: str) -> Iterator[tuple[str, bool]]:
    """A document in pieces, each with whether it is the last, cut before white space, where no
    token spans the cut."""
    start = 0
    while len(document) - start > PIECE:
        space = max(document.rfind(space, start + 1, start + PIECE) for space in " \n")
        stop = space if space > 0 else start + PIECE
        yield document[start:stop], False
        start = stop
    yield document[start:], True
