"""A corpus -> token ids on disk (see `prepared`), on all cores, resumed where it was stopped.

The result depends on the corpus, the tokenizer and the selection alone, byte for byte: neither on the number of
workers nor on how often the work was interrupted.
"""

from __future__ import annotations

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

from gmlp_flax.data import prepared
from gmlp_flax.data.cache import write_atomically
from gmlp_flax.data.corpora import Corpus
from gmlp_flax.data.encoding import encoded
from gmlp_flax.data.errors import DataError
from gmlp_flax.data.folder_lock import LOCK, locked
from gmlp_flax.data.prepare_progress import Counts, Progress
from gmlp_flax.data.prepared import Prepared
from gmlp_flax.data.records import BadRecords
from gmlp_flax.data.selection import EVERYTHING, Selection, corpus_digest, key
from gmlp_flax.data.tokenizer import Tokenizer

# What the parts of a shard come to, at least. Less would not be worth a worker, which takes seconds to start.
SHARD_BYTES = 16 << 20

# More would be more files than is handy; C4 comes in 1,024.
MAX_SHARDS = 1024

# The plan, a record of each shard that is done, and the workers' counts: in here until the index is written.
_UNFINISHED = "unfinished"
_PLAN = "plan.json"


class _Job(NamedTuple):
    """The work on one shard: `parts` are some of the corpus's, one after another."""

    number: int
    count: int
    parts: tuple[Any, ...]
    folder: Path
    tokenizer: Tokenizer
    selection: Selection
    max_bad_records: int

    @property
    def record(self) -> Path:
        """The file of the result, made once the shard's own are whole."""
        return self.folder / _UNFINISHED / f"shard-{self.number:05}.json"

    def size(self) -> int:
        """Bytes of the parts."""
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
    """Tokenises a corpus into a folder, or goes on with what was begun there; shows a progress bar if it takes long.

    Args:
        corpus: see corpora.open_corpus.
        tokenizer: encodes the documents.
        folder: made if need be; where it holds the result of the same arguments, that is opened. Processes that want
            the same folder wait for each other.
        selection: which documents.
        workers: cores to use; None for all. Several shards are made by processes, which are spawned: a script must
            guard its entry with `if __name__ == "__main__"`.
        max_bad_records: as many records that do not parse are counted and skipped, in the whole corpus.
        shard_bytes: parts one after another are put in one shard until they come to so many bytes.

    Raises:
        DataError: `folder` holds something else or cannot be written to; the corpus cannot be read, or has more bad
            records; no document is selected.
    """
    selection.check()
    with locked(folder):
        jobs, plan = _plan(corpus, tokenizer, Path(folder), selection, max_bad_records, shard_bytes)
        if not _is_done(Path(folder), plan):
            _begin(Path(folder), plan, tokenizer)
            _run(jobs, workers or os.cpu_count() or 1, corpus.name)
            _finish(Path(folder), plan, [_result(job) for job in jobs], corpus.name)
        return _within(Prepared(folder), max_bad_records)


def cached(corpus: Corpus, tokenizer: Tokenizer, cache_folder: str | os.PathLike, **options: Any) -> Prepared:
    """`prepare` into `prepared-<key>` in the cache folder, a name that is these arguments' own.

    What is there and whole is opened; what is damaged is made again.
    """
    selection = options.get("selection", EVERYTHING)
    name = key(prepared.FORMAT, corpus_digest(corpus), tokenizer.checksum, selection, options.get("shard_bytes"))
    folder = Path(cache_folder) / f"prepared-{name}"
    if (found := _opened(folder)) is not None:
        return _within(found, options.get("max_bad_records", 0))
    with locked(folder):
        if prepared.is_prepared(folder) and _opened(folder) is None:
            _clear(folder)
    return prepare(corpus, tokenizer, folder, **options)


def _opened(folder: Path) -> Prepared | None:
    try:
        return Prepared(folder)
    except DataError:
        return None


def _within(found: Prepared, max_bad_records: int) -> Prepared:
    """What was found, perhaps made with a higher limit; raises DataError where it skipped more than is allowed now."""
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


def _plan(corpus, tokenizer, folder, selection, max_bad_records, shard_bytes) -> tuple[list[_Job], dict[str, Any]]:
    """The jobs, and what tells their result from others."""
    total, done, shards = max(1, sum(part.size for part in corpus.parts)), 0, {}
    most = max(1, min(MAX_SHARDS, total // shard_bytes))
    for part in corpus.parts:
        # The shard in which the middle of the part falls, were they all of one size; the last one may end in nothing.
        shards.setdefault(min(most - 1, (2 * done + part.size) * most // (2 * total)), []).append(part)
        done += part.size
    plan = {
        "format": prepared.FORMAT,
        "corpus": corpus_digest(corpus),
        "tokenizer": tokenizer.checksum,
        "heldout_share": selection.share,
        "side": selection.side,
        "number of shards": len(shards),
        "vocab_size": tokenizer.vocab_size,
        "dtype": prepared.ids_dtype(tokenizer.vocab_size).str,
    }
    jobs = [
        _Job(number, len(shards), tuple(parts), folder, tokenizer, selection, max_bad_records)
        for number, parts in enumerate(shards.values())
    ]
    return jobs, plan


def _is_done(folder: Path, plan: dict[str, Any]) -> bool:
    """Whether the folder holds the plan's result; raises DataError where it holds anything else."""
    done = folder / prepared.INDEX
    for path in (done, folder / _UNFINISHED / _PLAN):
        if not path.exists():
            continue
        try:
            found = json.loads(path.read_bytes())
            differs = [f"{name} {found[name]!r}, not {value!r}" for name, value in plan.items() if found[name] != value]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: damaged; remove {str(folder)!r}, or give another folder") from error
        if differs:
            raise DataError(
                f"{str(folder)!r} holds another preparation: {'; '.join(differs)}; give another folder, or remove it"
            )
        if path == done:
            shutil.rmtree(folder / _UNFINISHED, ignore_errors=True)
        return path == done
    if any(path.name not in (LOCK, _UNFINISHED) for path in folder.iterdir()):
        raise DataError(f"{str(folder)!r} is not empty and holds no preparation; give a folder of its own")
    return False


def _begin(folder: Path, plan: dict[str, Any], tokenizer: Tokenizer) -> None:
    for path in [*folder.glob(".*.tmp"), *folder.glob(f"{_UNFINISHED}/.*.tmp")]:
        path.unlink(missing_ok=True)
    _write_json(folder / _UNFINISHED / _PLAN, plan)
    tokenizer.save(folder / prepared.TOKENIZER)


def _finish(folder: Path, plan: dict[str, Any], results: list[dict[str, Any]], name: str) -> None:
    if not any(result["documents"] for result in results):
        raise DataError(
            f"{name!r} has no document to take with heldout_share={plan['heldout_share']} and side {plan['side']!r}; "
            "use another heldout_share, or more documents"
        )
    _write_json(folder / prepared.INDEX, plan | {"shards": results})
    shutil.rmtree(folder / _UNFINISHED)


def _run(jobs: list[_Job], cores: int, name: str) -> None:
    """Does the jobs that are not done: in this process, or one a core."""
    bad = BadRecords(jobs[0].max_bad_records)
    for result in filter(None, map(_result, jobs)):
        bad.add(_bad_records(result))
    waiting = [job for job in jobs if _result(job) is None]
    processes = max(1, min(cores, len(waiting)))
    counts = Counts.create(jobs[0].folder / _UNFINISHED / "counts", len(jobs))
    progress = Progress(counts, [job.size() for job in jobs], [job.number for job in waiting], name)
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
                "a worker process was ended from outside, perhaps for want of memory; run again, with fewer workers, "
                "to go on from here"
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
    """A worker leaves Ctrl-C to its parent, and does not outlive it, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _write_shard(job: _Job, counts: Counts, threads: int) -> dict[str, Any]:
    """Writes a shard's files, then its record, which it returns."""
    bad = BadRecords(job.max_bad_records)
    documents = itertools.chain.from_iterable(part.documents(bad) for part in job.parts)
    chosen = job.selection.pick(documents, alone=job.count == len(job.parts) == 1)
    batches = counts.count(job.number, encoded(chosen, job.tokenizer, threads))
    files = prepared.shard_files(job.folder, job.number, job.count)
    result = prepared.write_shard(*files, batches, prepared.ids_dtype(job.tokenizer.vocab_size))
    result |= {"skipped": bad.count, "skipped_first": bad.first}
    _write_json(job.record, result)
    return result


def _result(job: _Job) -> dict[str, Any] | None:
    return json.loads(job.record.read_bytes()) if job.record.exists() else None


def _bad_records(result: dict[str, Any]) -> BadRecords:
    bad = BadRecords()
    bad.count, bad.first = result["skipped"], result["skipped_first"]
    return bad


def _write_json(path: Path, value: dict[str, Any]) -> None:
    write_atomically(path, lambda file: file.write((json.dumps(value, indent=1) + "\n").encode()))
