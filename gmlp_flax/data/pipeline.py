"""One host's batches: for training as a function of (seed, step), and for evaluation with every
example once.

Batches are dicts of stacked NumPy arrays. Grain reads ahead, in threads or in worker processes.

The content of a batch depends on the seed and the batch's number alone: neither on the number of
hosts, threads or worker processes, nor on whether the run was interrupted.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from absl import flags

from gmlp_flax.errors import DataError

if TYPE_CHECKING:
    import grain  # Slow to import: done by the functions that read, not where a config is checked.

Example = dict[str, Any]
Batch = dict[str, np.ndarray]

# More than any run takes, but few enough for Grain to divide as floats.
_ENDLESS = 2**52

_BUFFER = 4  # batches read ahead, in each process


class Source(Protocol):
    """Examples by position."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class Batches(Iterator[Batch], contextlib.AbstractContextManager):
    """An iterator over batches that owns threads or processes: use it in a `with` statement, or
    call `close`.

    `close` stops reading ahead and ends the worker processes; it may be called more than once.
    `finish` is applied to each batch.
    """

    def __init__(self, iterator: grain.DatasetIterator, workers: int):
        self._iterators = [iterator]
        self.finish: Callable[[Batch], Batch] = lambda batch: batch
        # Also called at exit: a Grain iterator that outlives the interpreter's modules prints
        # tracebacks.
        self.close = weakref.finalize(self, _close_and_drop, self._iterators, workers)

    def __next__(self) -> Batch:
        if not self._iterators:
            raise ValueError("these batches are closed")
        try:
            return self.finish(next(self._iterators[0]))
        except DataError as error:  # Grain adds lines about tracebacks
            raise type(error)(str(error).partition("\n")[0]) from error

    def __exit__(self, *_: object) -> None:
        self.close()


def _close_and_drop(iterators: list[grain.DatasetIterator], workers: int) -> None:
    iterators.pop().close()
    if workers:
        # At the end of the data, a reference cycle in Grain holds the workers' last batches. Their
        # shared memory must be freed before the interpreter ends, or Python prints warnings.
        gc.collect()


def train_batches(
    source: Source,
    *,
    seed: int,
    start: int,
    batch_size: int,
    transform: Callable[[Any, np.random.Generator], Example] | None = None,
    host: int = 0,
    hosts: int = 1,
    repeats: int = 1,
    workers: int = 0,
) -> Batches:
    """Endless batches, from number `start` on; each epoch is the whole source in a new order.

    A batch may hold the end of one epoch and the beginning of the next.

    With `repeats`, an epoch holds every example that many times, each time transformed anew
    (repeated augmentation: Hoffer et al. 2019, DeiT). Papers count epochs by the size of the
    source: `repeats` such epochs see the whole source once. Copies of an example are less than half
        a batch apart.

    Args:
        source: the examples; pickled if there are `workers`.
        seed: decides order and randomness; a non-negative integer.
        start: the first batch's number.
        batch_size: examples per step, over all hosts.
        transform: applied to each example with a random generator, which depends on the seed and on
            the example's position in the global order. It may not keep the generator. Pickled if
            there are `workers`.
        host, hosts: this host's number, and how many there are. The hosts' parts of a batch,
            concatenated, are the batch that a single host would make.
        repeats: how often an epoch holds each example.
        workers: processes that read and transform; 0 for threads of this one. They are spawned: a
            script must guard its entry with `if __name__ == "__main__"`.

    Raises:
        DataError: the source is empty, or `batch_size` is not divisible by `hosts`. A DataError of
            `transform` or of the source reaches the caller of `next`.
    """
    import grain

    share = per_host(source, batch_size, hosts)
    # Grain shuffles epoch e with seed + e: drawing its seed keeps the runs of seeds 0 and 1 from
    # sharing epochs.
    order_seed, transform_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
    examples = grain.MapDataset.source(source).shuffle(order_seed).repeat()
    if repeats > 1:
        # Less than half a batch apart: mixing pairs examples that are exactly half a batch apart.
        stretch = max(1, batch_size // (2 * repeats))
        examples = _reorder(examples, lambda i: i // (stretch * repeats) * stretch + i % stretch)
    if transform is not None:
        # Before the examples are divided among hosts, so that the generator follows the global
        # position.
        examples = examples.random_map(transform, seed=transform_seed)  # type: ignore[reportArgumentType] - T | None
    if hosts > 1:
        examples = _reorder(examples, lambda i: i // share * batch_size + host * share + i % share)
    # There is no remainder, but to allow for one Grain would divide the endless length as a float,
    # which overflows.
    batches = examples.batch(share, drop_remainder=True)
    return _read_ahead(batches[start:], workers)


def evaluation_batches(
    source: Source, *, batch_size: int, host: int = 0, hosts: int = 1, workers: int = 0
) -> Batches:
    """Every example once, over all hosts, in the source's order; all hosts have equally many
    batches of one shape.

    Hosts take every `hosts`-th example. The last global batch is filled with copies of the last
    example. Batches have one more entry, "weight" (float32 [batch]): 1 for examples, 0 for these
    copies. Arguments and errors are those of `train_batches`; the source is pickled as its
    `transform`.
    """
    import grain

    share = per_host(source, batch_size, hosts)
    last = len(source) - 1

    def example(position: int) -> Example:
        return {**source[min(position, last)], "weight": np.float32(position <= last)}

    positions = grain.MapDataset.range(math.ceil(len(source) / batch_size) * batch_size)
    return _read_ahead(positions.map(example)[host::hosts].batch(share), workers)


class Spread:
    """At most `count` examples of a source, evenly spread over it; all of them if `count` is 0."""

    def __init__(self, source: Source, count: int):
        self._source, self._count = source, min(count or len(source), len(source))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Example:
        return self._source[index * len(self._source) // self._count]


def read_ahead(
    make_batch: Callable[..., Batch], *, start: int, workers: int = 0, **options: Any
) -> Batches:
    """The endless batches make_batch(start, **options), make_batch(start + 1, **options), ..., made
    ahead of their use.

    `make_batch` is called in threads, and pickled if there are `workers`, see `train_batches`.
    """
    import grain

    return _read_ahead(
        grain.MapDataset.range(start, _ENDLESS).map(functools.partial(make_batch, **options)),
        workers,
    )


def _reorder(examples: grain.MapDataset, index: Callable[[int], int]) -> grain.MapDataset:
    """Endless examples, of which number i is examples[index(i)]."""
    import grain

    return grain.MapDataset.range(_ENDLESS).map(lambda i: examples[index(i)])


def per_host(source: Source, batch_size: int, hosts: int) -> int:
    """A batch's examples per host; raises DataError as `train_batches` does."""
    if len(source) == 0:
        raise DataError("there are no examples: give data with at least one")
    if batch_size < 1 or batch_size % hosts:
        raise DataError(
            f"batch_size={batch_size} counts examples over all hosts and must be a positive multiple of their number, "
            f"{hosts}; use {max(1, batch_size // hosts) * hosts}"
        )
    return batch_size // hosts


def usable_cores() -> int:
    """Cores that this process may use: what taskset, SLURM or a container leave it, not all that
    the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read_ahead(batches: grain.MapDataset, workers: int) -> Batches:
    import grain

    threads = 1 if workers else 2  # in each process
    ahead = batches.to_iter_dataset(
        grain.ReadOptions(num_threads=threads, prefetch_buffer_size=_BUFFER)
    )
    if workers:
        # Grain passes its flags to the workers and requires parsed flags, which a notebook does not
        # have.
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()
        ahead = ahead.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=_BUFFER)
        )
        # Copied to private memory: JAX may hold a batch until after shared memory must be freed,
        # see _close_and_drop.
        ahead = ahead.map(lambda batch: {name: np.array(value) for name, value in batch.items()})
    return Batches(iter(ahead), workers)
