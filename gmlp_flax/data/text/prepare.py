"""Corpus to a trained tokenizer, and to token ids on disk (see `prepared`): on all cores, and
resumed if it was interrupted.

The result, byte for byte, depends on the corpus, which of its documents are taken, and the
tokenizer alone: neither on the number of workers nor on how often the work was interrupted.

Until the index is written, a folder `unfinished` holds the plan, which identifies the result, and a
record of each shard that is done. The shards of a remote folder are made in the cache folder and
moved.
"""

import collections
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import tqdm

from gmlp_flax.data.pipeline import usable_cores
from gmlp_flax.data.text import prepared
from gmlp_flax.data.text.corpus import Corpus, Part, Selection, chain_documents, no_text
from gmlp_flax.data.text.encoding import EncodedBatch, encode_documents
from gmlp_flax.data.text.prepared import Prepared, ShardRecord
from gmlp_flax.data.text.sentence_piece import KEEPING_WHITE_SPACE, TRAINING, TRAINING_THREADS
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import DataError, counted
from gmlp_flax.io import files, json_files
from gmlp_flax.io.cache import cache_key, cached_file, default_folder
from gmlp_flax.io.locks import folder_lock
from gmlp_flax.io.logs import BEAT, heartbeat, to_stderr
from gmlp_flax.io.records import BadRecords, check_limit

SAMPLE = 64_000_000  # characters to train a tokenizer on, at most
# The least bytes in a shard's parts: fewer are not worth a worker, which takes seconds to start.
SHARD_BYTES = 16 << 20
MAX_SHARDS = 1024  # as many as C4 has; more files would be unwieldy
DELAY = 2.0  # seconds before a progress bar is shown

Plan = dict[str, Any]  # what identifies the result of a preparation
CUTS = 2  # the version of where long documents are cut; only where it changes tokens

_UNFINISHED = "unfinished"
_PLAN = "plan.json"


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
        name = f"shard-{self.number:05}.json"
        return self.work / _UNFINISHED / name

    @property
    def path(self) -> Path:
        """The shard's file, as it is made."""
        return prepared.shard_file(self.work, self.number, self.count)

    @property
    def stop(self) -> Path:
        """A file that ends the workers at their next batch."""
        return self.work / _UNFINISHED / "stop"

    @property
    def size(self) -> int:
        """Bytes of the corpus."""
        return sum(part.size for part in self.parts)

    def result(self, sizes: dict[str, int]) -> ShardRecord:
        """The content of the record; {} if the shard is not done.

        Args:
            sizes: bytes of the files in the result's folder, by name.
        """
        path = str(self.record)
        content = files.read(path)
        record = json_files.parse_object(content)
        size = sizes.get(self.path.name)
        if size is None or size != record.get("ids_bytes"):
            return {}
        return record


def cached_tokenizer(
    corpus: Corpus,
    vocab_size: int,
    cache: str | os.PathLike,
    max_bad_records: int = 0,
    keep_white_space: bool = False,
) -> Tokenizer:
    """Trains a tokenizer (see Tokenizer.train) on a corpus, and keeps it in the folder `cache` as
    `tokenizer-<key>.model`.

    Each part contributes its beginning, in proportion to its size, until there are SAMPLE
    characters; a smaller corpus is used as a whole. The same corpus gives the same tokenizer.

    Raises:
        DataError: as in Tokenizer.train; or the corpus cannot be read, or has more than
            `max_bad_records`.
    """

    def make_model() -> bytes:
        """The trained model's file."""
        with heartbeat(f"training a tokenizer of {vocab_size:,} pieces on {corpus.name}"):
            bad = BadRecords(max_bad_records)
            documents = sample_documents(corpus, SAMPLE, bad)
            tokenizer = Tokenizer.train(documents, vocab_size, keep_white_space)
            return tokenizer.model

    options = dict(TRAINING)
    if keep_white_space:
        options.update(KEEPING_WHITE_SPACE)
    selection = tuple(corpus.examples.selection)
    key = cache_key(corpus.digest, vocab_size, selection, SAMPLE, TRAINING_THREADS, options)
    path = Path(cache, f"tokenizer-{key}.model")
    cached_file(path, make_model)
    return Tokenizer.load(path)


def sample_documents(corpus: Corpus, sample: int, bad: BadRecords) -> Iterator[str]:
    """The beginnings of the corpus's parts, of about `sample` characters together.

    Raises:
        DataError: the corpus cannot be read, or has no text.
    """
    parts = corpus.examples.parts
    selection = corpus.examples.selection
    is_whole = len(parts) == 1
    corpus_size = sum(part.size for part in parts)
    total = max(1, corpus_size)
    is_empty = True
    for part in parts:
        room = -(-sample * part.size // total)  # rounded up
        documents = part.documents(bad)
        for document in selection.pick(documents, is_whole):
            is_empty = False
            yield document[:room]
            room -= len(document)
            if room <= 0:
                break
    if is_empty:
        raise no_text(corpus)


class Limits(NamedTuple):
    """The limits of a preparation.

    Attributes:
        workers: how many cores to use; 0 for all. Several shards are made by spawned processes: a
            script must guard its entry with `if __name__ == "__main__"`.
        max_bad_records: how many records of the whole corpus may fail to parse; they are counted
            and skipped.
        shard_bytes: consecutive parts are put into one shard until they have this many bytes.
    """

    workers: int = 0
    max_bad_records: int = 0
    shard_bytes: int = SHARD_BYTES


def prepare(
    corpus: Corpus, tokenizer: Tokenizer, folder: str | os.PathLike, limits: Limits = Limits()
) -> Prepared:
    """Tokenizes a corpus into a folder, or continues work begun there; shows a progress bar if it
    takes long.

    Args:
        corpus: the documents.
        tokenizer: what encodes them.
        folder: made if it is missing. If it holds the result of the same arguments, that is opened.
            Processes that want the same folder wait for each other.
        limits: of the work.

    Raises:
        DataError: `folder` holds something else or cannot be written to; the corpus cannot be read
            or has too many bad records; no document is taken.
    """
    folder = os.fspath(folder)
    selection = corpus.examples.selection
    groups = _group(corpus.examples.parts, limits.shard_bytes)
    plan = _make_plan(corpus, tokenizer, len(groups))
    work = _work_folder(folder, plan)
    shards = []
    count = len(groups)
    for number, parts in enumerate(groups):
        shard = _Shard(
            number=number,
            count=count,
            parts=parts,
            tokenizer=tokenizer,
            selection=selection,
            max_bad_records=limits.max_bad_records,
            work=work,
            folder=folder,
        )
        shards.append(shard)
    with folder_lock(work):
        if not _is_done(shards, plan):
            role = ""
            if selection.share:
                role = f", {selection.role}"
            to_stderr(f"tokenizing {corpus.name}{role}")
            cores = limits.workers or usable_cores()
            _begin(shards, plan)
            _write_all(corpus, shards, plan, cores)
        finished = work if files.is_remote(folder) else work / _UNFINISHED
        shutil.rmtree(finished, ignore_errors=True)
    result = Prepared(folder)
    if result.skipped:
        first = result.skipped_first[0]
        check_limit(first, 0, result.skipped, limits.max_bad_records)
    return result


def _work_folder(folder: str, plan: Plan) -> Path:
    """The local folder in which the files of `folder` are made: itself, unless it is remote."""
    if not files.is_remote(folder):
        return Path(folder)
    key = cache_key(folder, plan)
    return Path(default_folder(), f"preparing-{key}")


def _make_plan(corpus: Corpus, tokenizer: Tokenizer, shards: int) -> Plan:
    """What identifies the result of a preparation."""
    selection = corpus.examples.selection
    dtype = prepared.ids_dtype(tokenizer.vocab_size)
    plan = {
        "format": prepared.FORMAT,
        "corpus": corpus.digest,
        "tokenizer": tokenizer.checksum,
        "heldout_share": selection.share,
        "side": selection.role,
        "number of shards": shards,
        "vocab_size": tokenizer.vocab_size,
        "dtype": dtype.str,
    }
    if tokenizer.blank_before != "never" or tokenizer.keeps_white_space:
        plan["cuts"] = CUTS
    return plan


def _write_all(corpus: Corpus, shards: Sequence[_Shard], plan: Plan, cores: int) -> None:
    """Writes the shards that are not done, the tokenizer and, last, the index."""
    first = shards[0]
    results = _write_shards(shards, cores)
    has_documents = any(result["documents"] for result in results)
    if not has_documents:
        shutil.rmtree(first.work / _UNFINISHED)  # so that the folder can be used again
        raise no_text(corpus)
    tokenizer_path = files.join(first.folder, TOKENIZER_FILE)
    files.write(tokenizer_path, first.tokenizer.model)
    index_path = files.join(first.folder, prepared.INDEX)
    index = {**plan, "shards": results}
    json_files.write(index_path, index)


def prepare_in_cache(
    corpus: Corpus, tokenizer: Tokenizer, cache: str | os.PathLike, limits: Limits = Limits()
) -> Prepared:
    """`prepare` into `prepared-<key>` in the cache; the key depends on these arguments alone.
    Reports bad records."""
    selection = tuple(corpus.examples.selection)
    key = cache_key(
        prepared.FORMAT,
        corpus.digest,
        tokenizer.checksum,
        selection,
        limits.shard_bytes,
    )
    folder = Path(cache, f"prepared-{key}")
    result = prepare(corpus, tokenizer, folder, limits)
    if result.skipped:
        skipped = counted(result.skipped, "bad record")
        first = result.skipped_first[0]
        to_stderr(f"{corpus.name}: {skipped} skipped, the first: {first}")
    return result


def _group(parts: Sequence[Part], shard_bytes: int) -> list[tuple[Part, ...]]:
    """The parts of each shard."""
    part_bytes = sum(part.size for part in parts)
    total = max(1, part_bytes)
    needed_shards = total // shard_bytes
    allowed_shards = min(MAX_SHARDS, needed_shards)
    most_shards = max(1, allowed_shards)
    last = most_shards - 1
    groups: dict[int, list[Part]] = collections.defaultdict(list)
    bytes_before = 0
    for part in parts:
        # The middle of a part decides, as if all shards had one size. In whole numbers, twice all.
        twice_middle = 2 * bytes_before + part.size
        twice_total = 2 * total
        place = twice_middle * most_shards // twice_total
        number = min(place, last)  # an empty last part would fall past the last shard
        groups[number].append(part)
        bytes_before += part.size
    return [tuple(group) for group in groups.values()]


def _sizes(folder: str) -> dict[str, int]:
    """Name -> bytes of the files in a folder; {} if it does not exist."""
    if not files.exists(folder):
        return {}
    listing = files.find_files(folder)
    return {file.name: file.size for file in listing}


def _is_done(shards: Sequence[_Shard], plan: Plan) -> bool:
    """Whether the folder holds the plan's result; raises DataError if it holds anything but that or
    a part of it."""
    first = shards[0]
    folder = first.folder
    plan_file = first.work / _UNFINISHED / _PLAN
    if prepared.is_prepared(folder):
        index = prepared.read_index(folder)
        _require_same_plan(folder, index, plan)
        return True
    if plan_file.exists():
        present = json_files.read(plan_file, dict)
        _require_same_plan(folder, present, plan)
    else:
        shard_names = {shard.path.name for shard in shards}
        _refuse_other_files(folder, shard_names)
    return False


def _require_same_plan(folder: str, present: Mapping[str, Any], plan: Plan) -> None:
    """Raises DataError if a folder's index or plan is that of another preparation."""
    differences = []
    for name, value in plan.items():
        other = present.get(name)
        if other != value:
            differences.append(f"{name} {other!r}, not {value!r}")
    if differences:
        listing = "; ".join(differences)
        raise DataError(f"{folder!r} holds another preparation: {listing}; give another folder")


def _refuse_other_files(folder: str, shard_names: set[str]) -> None:
    for name in _sizes(folder):
        is_unfinished = name.startswith(f"{_UNFINISHED}/")
        if name not in shard_names and not is_unfinished:
            raise DataError(
                f"{folder!r} is not empty and holds no preparation; give a folder of its own"
            )


def _begin(shards: Sequence[_Shard], plan: Plan) -> None:
    """Writes the plan, and removes what killed processes left."""
    work = shards[0].work
    unfinished = work / _UNFINISHED
    json_files.write(unfinished / _PLAN, plan)
    shards[0].stop.unlink(missing_ok=True)
    for folder in (work, unfinished):
        for path in folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def _write_shards(shards: Sequence[_Shard], cores: int) -> list[ShardRecord]:
    """Makes the shards that are not done, in this process or in one process per core; returns the
    results of all shards."""
    results = _finished(shards)
    waiting = [shard for shard in shards if shard.number not in results]
    useful_processes = min(cores, len(waiting))
    processes = max(1, useful_processes)
    threads = max(1, cores // processes)
    with _progress_bar(shards, waiting) as bar, _executor(processes) as executor:
        pending = {}
        for shard in waiting:
            future = executor.submit(_write_shard, shard, threads)
            pending[future] = shard
        try:
            results |= _wait_for(pending, bar)
        except futures.BrokenExecutor as error:
            raise DataError(
                "a worker process was killed, perhaps because memory ran out: give fewer workers"
            ) from error
        finally:
            shards[0].stop.touch()
            executor.shutdown(cancel_futures=True)
    return [results[shard.number] for shard in shards]


def _finished(shards: Sequence[_Shard]) -> dict[int, ShardRecord]:
    """Number of a shard -> its result, for the shards that are done."""
    folder = shards[0].folder
    sizes = _sizes(folder)
    results = {}
    for shard in shards:
        result = shard.result(sizes)
        if result:
            results[shard.number] = result
    return results


def _wait_for(
    pending: dict[futures.Future[ShardRecord], _Shard], bar: tqdm.tqdm
) -> dict[int, ShardRecord]:
    """Number of a shard -> its result, when all futures are done."""
    results = {}
    while pending:
        done, _ = futures.wait(pending, 0.25, futures.FIRST_COMPLETED)
        for future in done:
            shard = pending.pop(future)
            results[shard.number] = future.result()
            bar.update(shard.size)
        bar.update(0)
    return results


def _progress_bar(shards: Sequence[_Shard], waiting: Sequence[_Shard]) -> tqdm.tqdm:
    """A bar of the corpus's bytes. It is redrawn while no shard is done, and shows the average rate
    of the whole time, because shards end in groups."""
    total = sum(shard.size for shard in shards)
    left = sum(shard.size for shard in waiting)
    interval = 0.25 if sys.stderr.isatty() else BEAT
    return tqdm.tqdm(
        total=total,
        initial=total - left,
        desc="tokenizing",
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        delay=DELAY,
        mininterval=interval,
        miniters=0,
        smoothing=0,
    )


def _executor(processes: int) -> futures.Executor:
    """A thread of this process if one process is enough, else spawned processes."""
    if processes == 1:
        return futures.ThreadPoolExecutor(1)
    spawn = multiprocessing.get_context("spawn")
    return futures.ProcessPoolExecutor(processes, spawn, _begin_process)


def _begin_process() -> None:
    """Makes a worker leave Ctrl-C to its parent, and end when its parent ends for any reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        """Waits for the parent to end."""
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    thread = threading.Thread(target=end_with_parent, daemon=True)
    thread.start()


def _write_shard(shard: _Shard, threads: int) -> ShardRecord:
    """Writes a shard's file, then its record, and returns the record."""
    bad = BadRecords(shard.max_bad_records)
    batches = _encode_shard(shard, bad, threads)
    dtype = prepared.ids_dtype(shard.tokenizer.vocab_size)
    written = prepared.write_shard(shard.path, batches, dtype)
    if files.is_remote(shard.folder):
        files.upload(shard.path, shard.folder)
    result = {
        **written,
        "skipped": bad.count,
        "skipped_first": bad.first,
    }
    json_files.write(shard.record, result)
    return result


def _encode_shard(shard: _Shard, bad: BadRecords, threads: int) -> Iterator[EncodedBatch]:
    """Encodes the documents of a shard that are taken.

    Raises:
        InterruptedError: the work was stopped.
    """
    documents = chain_documents(shard.parts, bad)
    is_whole_corpus = shard.count == 1 and len(shard.parts) == 1
    taken = shard.selection.pick(documents, is_whole_corpus)
    for batch in encode_documents(taken, shard.tokenizer, threads):
        if shard.stop.exists():
            raise InterruptedError
        yield batch
