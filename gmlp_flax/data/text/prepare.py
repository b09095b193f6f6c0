"""Corpus to token ids on disk (see `prepared`): on all cores, and resumed if it was interrupted.

The result, byte for byte, depends on the corpus, the tokenizer and the selection alone: neither on the number of
workers nor on how often the work was interrupted.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import threading
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from gmlp_flax.data import splits
from gmlp_flax.data.text import prepared
from gmlp_flax.data.text.corpora import Corpus, Part
from gmlp_flax.data.text.encoding import encode_documents
from gmlp_flax.data.text.prepare_progress import ProgressBar, SharedCounts
from gmlp_flax.data.text.prepared import Prepared
from gmlp_flax.data.text.selection import EVERYTHING, Selection
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import DataError
from gmlp_flax.io import buckets, files, json_files
from gmlp_flax.io.cache import cache_key, default_folder, write_atomically
from gmlp_flax.io.lock import LOCK, locked, missing, remove_unused
from gmlp_flax.io.progress_lines import to_standard_error
from gmlp_flax.io.records import BadRecords

# The least size of a shard's parts: less is not worth a worker, which takes seconds to start.
SHARD_BYTES = 16 << 20

# A cached result of no more tokens is read whole before it is used: 512 MB, which takes about a second.
_CHECKED_TOKENS = 1 << 28

# As many as C4 has; more files would be unwieldy.
MAX_SHARDS = 1024

# The folder of the plan, a record for each finished shard, and the workers' counts, until the index is written.
_UNFINISHED = "unfinished"
_PLAN = "plan.json"


class _Job(NamedTuple):
    """The work on one shard, made of consecutive parts of the corpus."""

    number: int
    shards: int
    parts: tuple[Part, ...]
    folder: Path
    tokenizer: Tokenizer
    selection: Selection
    max_bad_records: int
    target: str  # the remote folder that the shard's files are moved to; "" for none

    @property
    def record(self) -> Path:
        """The file of the result, written after the shard's own files."""
        return self.folder / _UNFINISHED / f"shard-{self.number:05}.json"

    def result(self) -> dict[str, Any] | None:
        """The content of the record; None if the shard is not done, or the record is damaged."""
        try:
            found = json_files.read(self.record, dict)
        except DataError:
            return None
        return found if prepared.is_record(found) else None

    def size(self) -> int:
        return sum(part.size for part in self.parts)


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
    """Tokenises a corpus into a folder, or continues work begun there; shows a progress bar if it takes long.

    Args:
        corpus: see corpora.open_corpus.
        tokenizer: encodes the documents.
        folder: made if it is missing. If it holds the result of the same arguments, that is opened. Processes that want
            the same folder wait for each other. Each shard of a remote folder is made in the cache folder and moved.
        selection: which documents.
        workers: cores to use; None for all. Several shards are made by spawned processes: a script must guard its entry
            with `if __name__ == "__main__"`.
        max_bad_records: how many records that do not parse are counted and skipped, in the whole corpus.
        shard_bytes: consecutive parts are put into one shard until they have this many bytes.

    Raises:
        DataError: `folder` holds something else or cannot be written to; the corpus cannot be read or has more bad
            records; no document is selected.
    """
    selection.check()
    target = os.fspath(folder) if files.is_remote(folder) else ""
    key = cache_key(target, corpus.digest, tokenizer.checksum, selection, shard_bytes)
    local = Path(default_folder()) / f"preparing-{key}" if target else Path(folder)
    with locked(local):
        jobs, plan = _plan(corpus, tokenizer, local, selection, max_bad_records, shard_bytes, target)
        if not (target and _is_done_remotely(target, jobs, plan)):
            if not _is_done(local, plan):
                to_standard_error(f"tokenising {corpus.name}{(selection.share and f', {selection.side}') or ''}")
                _begin(local, plan, tokenizer)
                _run(jobs, workers or os.cpu_count() or 1, corpus.name)
                _finish(local, plan, jobs, corpus.name)
            if target:
                files.move_to(target, [local / TOKENIZER_FILE, local / prepared.INDEX])
        if target:
            shutil.rmtree(local)
        return _checked(Prepared(folder), max_bad_records)


def cached(corpus: Corpus, tokenizer: Tokenizer, cache_folder: str | os.PathLike, **options: Any) -> Prepared:
    """`prepare` into `prepared-<key>` in the cache folder; the key belongs to these arguments alone.

    A whole result is opened; a damaged one is made again. One that is too large to be read at each start is checked
    only as far as its lists go: damage inside shows when it is read.
    """
    selection = options.get("selection", EVERYTHING)
    name = cache_key(prepared.FORMAT, corpus.digest, tokenizer.checksum, selection, options.get("shard_bytes"))
    folder = Path(cache_folder) / f"prepared-{name}"
    if (found := _opened(folder)) is not None:
        return _checked(found, options.get("max_bad_records", 0))
    limits, made = (options.get("max_bad_records", 0), options.get("shard_bytes", SHARD_BYTES)), missing(folder)
    with locked(folder):
        if not _is_usable(folder, _plan(corpus, tokenizer, folder, selection, *limits)[1]):
            _clear(folder)
    try:
        return prepare(corpus, tokenizer, folder, **options)
    except DataError:
        remove_unused(made)
        raise


def _is_usable(folder: Path, plan: dict[str, Any]) -> bool:
    """Whether a folder of the cache holds the plan's result, or work on it that can go on, or nothing."""
    try:
        return not _is_done(folder, plan) or _opened(folder) is not None
    except DataError:
        return False


def _opened(folder: Path) -> Prepared | None:
    try:
        found = Prepared(folder)
        if found.tokens <= _CHECKED_TOKENS:
            found.check()
        return found
    except DataError:
        return None


def _checked(found: Prepared, max_bad_records: int) -> Prepared:
    """A result, perhaps made with a higher limit; raises DataError if it skipped more records than are allowed now."""
    bad = BadRecords(max_bad_records)
    for shard in found.index["shards"]:
        bad.add(_bad_records(shard))
    return found


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _plan(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: Path,
    selection: Selection,
    max_bad_records: int,
    shard_bytes: int,
    target: str = "",
) -> tuple[list[_Job], dict[str, Any]]:
    """The jobs, and the values that identify their result."""
    total, done, shards = max(1, sum(part.size for part in corpus.parts)), 0, {}
    most = max(1, min(MAX_SHARDS, total // shard_bytes))
    for part in corpus.parts:
        # The middle of the part decides, as if all shards had one size. An empty last part would fall past the last
        # shard, hence the limit.
        shards.setdefault(min(most - 1, (2 * done + part.size) * most // (2 * total)), []).append(part)
        done += part.size
    plan = {
        "format": prepared.FORMAT,
        "corpus": corpus.digest,
        "tokenizer": tokenizer.checksum,
        "heldout_share": selection.share,
        "side": selection.side,
        "number of shards": len(shards),
        "vocab_size": tokenizer.vocab_size,
        "dtype": prepared.ids_dtype(tokenizer.vocab_size).str,
    }
    jobs = [
        _Job(number, len(shards), tuple(parts), folder, tokenizer, selection, max_bad_records, target)
        for number, parts in enumerate(shards.values())
    ]
    return jobs, plan


def _is_done(folder: Path, plan: dict[str, Any]) -> bool:
    """Whether the folder holds the plan's result; raises DataError if it holds anything else."""
    done = folder / prepared.INDEX
    for path in (done, folder / _UNFINISHED / _PLAN):
        if not path.exists():
            continue
        _require_plan(str(path), str(folder), plan)
        if path == done:
            shutil.rmtree(folder / _UNFINISHED, ignore_errors=True)
        return path == done
    if any(path.name not in (LOCK, _UNFINISHED) for path in folder.iterdir()):
        raise DataError(f"{str(folder)!r} is not empty and holds no preparation; give a folder of its own")
    return False


def _is_done_remotely(folder: str, jobs: list[_Job], plan: dict[str, Any]) -> bool:
    """As `_is_done`, for a remote folder. Shards without an index are of work that was broken off: they are made again, and
    if one that was finished here is gone, all are."""
    if prepared.is_prepared(folder):
        _require_plan(files.join(folder, prepared.INDEX), folder, plan)
        return True
    count, local = plan["number of shards"], jobs[0].folder
    ours = {path.name for number in range(count) for path in prepared.shard_files("", number, count)}
    found = {file.name for file in files.find_files(folder)} if files.exists(folder) else set()
    if found - {*ours, TOKENIZER_FILE}:
        raise DataError(f"{folder!r} is not empty and holds no preparation; give a folder of its own")
    finished = [job for job in jobs if (local / prepared.INDEX).exists() or job.record.exists()]
    if any(path.name not in found for job in finished for path in prepared.shard_files("", job.number, count)):
        _clear(local)
    return False


def _require_plan(path: str, folder: str, plan: dict[str, Any]) -> None:
    """Raises DataError unless the plan or index in a file has the plan's values."""
    try:
        found = json_files.read(path, dict)
        differs = [f"{name} {found[name]!r}, not {value!r}" for name, value in plan.items() if found[name] != value]
    except (DataError, KeyError) as error:
        raise DataError(f"{path}: damaged; remove {folder!r}, or give another folder") from error
    if differs:
        raise DataError(
            f"{folder!r} holds another preparation: {'; '.join(differs)}; give another folder, or remove it"
        )


def _begin(folder: Path, plan: dict[str, Any], tokenizer: Tokenizer) -> None:
    for path in [*folder.glob(".*.tmp"), *folder.glob(f"{_UNFINISHED}/.*.tmp")]:
        path.unlink(missing_ok=True)
    _write_json(folder / _UNFINISHED / _PLAN, plan)
    tokenizer.save(folder / TOKENIZER_FILE)


def _finish(folder: Path, plan: dict[str, Any], jobs: list[_Job], name: str) -> None:
    """Writes the index; or, if there are no documents, leaves nothing and raises DataError."""
    results = [job.result() for job in jobs]
    if not any(result and result["documents"] for result in results):
        _clear(folder)
        for job in jobs if jobs[0].target else ():
            for path in prepared.shard_files(job.target, job.number, job.shards):
                with contextlib.suppress(FileNotFoundError):
                    buckets.remove(files.join(job.target, path.name))
        if not plan["heldout_share"]:
            raise DataError(f"{name!r} holds no text; give a corpus with text in it")
        raise splits.empty_side(f"the documents of {name!r}", plan["side"], plan["heldout_share"], "more documents")
    _write_json(folder / prepared.INDEX, plan | {"shards": results})
    shutil.rmtree(folder / _UNFINISHED)


def _run(jobs: list[_Job], cores: int, name: str) -> None:
    """Does the jobs that are not done: in this process, or in one process per core."""
    bad, waiting = BadRecords(jobs[0].max_bad_records), []
    for job in jobs:
        if (result := job.result()) is not None:
            bad.add(_bad_records(result))
        else:
            waiting.append(job)
    processes = max(1, min(cores, len(waiting)))
    counts = SharedCounts.create(jobs[0].folder / _UNFINISHED / "counts", len(jobs))
    progress = ProgressBar(counts, [job.size() for job in jobs], [job.number for job in waiting], name)
    with progress, _executor(processes) as executor:
        pending = {executor.submit(_write_shard, job, counts, max(1, cores // processes)): job for job in waiting}
        try:
            while pending:
                for future in futures.wait(pending, timeout=0.25, return_when=futures.FIRST_COMPLETED).done:
                    bad.add(_bad_records(future.result()))
                    progress.finished(pending.pop(future).number)
                progress.update()
        except BrokenProcessPool as error:
            raise DataError(
                "a worker process was ended from outside, perhaps for want of memory; run again with fewer workers to "
                "go on from here"
            ) from error
        finally:
            counts.stop()
            for future in pending:
                future.cancel()


def _executor(processes: int) -> futures.Executor:
    if processes == 1:
        return futures.ThreadPoolExecutor(1)
    return futures.ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin_process)


def _begin_process() -> None:
    """Makes a worker leave Ctrl-C to its parent, and end when its parent ends in whatever way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _write_shard(job: _Job, counts: SharedCounts, threads: int) -> dict[str, Any]:
    """Writes a shard's files, then its record, and returns the record."""
    bad = BadRecords(job.max_bad_records)
    documents = itertools.chain.from_iterable(part.documents(bad) for part in job.parts)
    chosen = job.selection.pick(documents, whole=job.shards == len(job.parts) == 1)
    batches = counts.count(job.number, encode_documents(chosen, job.tokenizer, threads))
    paths = prepared.shard_files(job.folder, job.number, job.shards)
    result = prepared.write_shard(*paths, batches, prepared.ids_dtype(job.tokenizer.vocab_size))
    if job.target:
        files.move_to(job.target, paths)
    result |= {"skipped": bad.count, "skipped_first": bad.first}
    _write_json(job.record, result)
    return result


def _bad_records(result: dict[str, Any]) -> BadRecords:
    bad = BadRecords()
    bad.count, bad.first = result["skipped"], result["skipped_first"]
    return bad


def _write_json(path: Path, value: dict[str, Any]) -> None:
    write_atomically(path, lambda file: file.write((json.dumps(value, indent=1) + "\n").encode()))
