"""The batches of one host. Training batches are a function of (seed, step), and evaluation batches
have every example once.

Batches are dicts of stacked NumPy arrays. Grain reads ahead, in threads or in worker processes.

The content of a batch depends only on the seed and the batch's number, not on the number of hosts,
threads or worker processes, or on whether the run was interrupted. So a batch is made from its
number: `Order` decides which examples it has, and how they are read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from absl import flags

from gmlp_flax.data.workers import why_one_ended
from gmlp_flax.errors import DataError, RunError

if TYPE_CHECKING:
    # Slow to import: done by the functions that read, not where a config is checked.
    import grain

Example = dict[str, Any]
Batch = dict[str, np.ndarray]

# More than any run takes, but few enough for Grain to divide as floats.
_ENDLESS = 2**52

_BUFFER = 4  # batches read ahead, in each process


class Source(Protocol):
    """Examples by position."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class Order(Protocol):
    """Endless examples in the order of training, read many at once. Grain's own batches take 5
    microseconds for each example, ten times as long as a window of tokens."""

    def batch(self, positions: range) -> Batch:
        """The examples at consecutive positions of the order, stacked."""
        ...


def stack(examples: Sequence[Example]) -> Batch:
    """Examples with the same names as a batch: [examples, ...] for each name."""
    batch = {}
    for name in examples[0]:
        values = [example[name] for example in examples]
        batch[name] = np.stack(values)
    return batch


def unchanged(batch: Batch) -> Batch:
    """The batch as it is."""
    return batch


class Shuffled:
    """Endless examples. Each epoch is the whole source in a new order. Picklable.

    With `repeats`, an epoch holds every example that many times, each time with a new transform
    (repeated augmentation: Hoffer et al. 2019, DeiT). Papers count epochs by the size of the
    source: `repeats` such epochs see the whole source once. Copies of an example are less than half
    a batch apart.

    Args:
        source: the examples.
        seed: decides order and randomness; a non-negative integer.
        transform: applied to each example with a random generator, which depends on the seed and on
            the example's position in the order. It must not keep a reference to the generator.
        repeats: how often an epoch holds each example.
        batch_size: examples per step, over all hosts; for `repeats`.

    Raises:
        DataError: the source is empty.
    """

    def __init__(
        self,
        source: Source,
        seed: int,
        transform: Callable[[Any, np.random.Generator], Example] | None = None,
        repeats: int = 1,
        batch_size: int = 1,
    ):
        import grain

        require_examples(source)
        self._arguments = (source, seed, transform, repeats, batch_size)
        # Grain shuffles epoch e with seed + e: drawing its seed keeps the runs of seeds 0 and 1
        # from sharing epochs.
        seeds = np.random.SeedSequence(seed)
        order_seed, transform_seed = seeds.generate_state(2).tolist()
        in_order = grain.MapDataset.source(source)
        shuffled = in_order.shuffle(order_seed)
        examples = shuffled.repeat()
        if repeats > 1:
            # Mixing pairs examples that are exactly half a batch apart.
            stretch = max(1, batch_size // (2 * repeats))
            position = functools.partial(_repeated, stretch, repeats)
            examples = _reordered(examples, position)
        if transform is not None:
            examples = examples.random_map(transform, seed=transform_seed)  # type: ignore[reportArgumentType] - T | None
        self.examples = examples

    def batch(self, positions: range) -> Batch:
        """See Order."""
        examples: list[Any] = [self.examples[position] for position in positions]
        return stack(examples)

    def __reduce__(self):
        return Shuffled, self._arguments


def _repeated(stretch: int, repeats: int, position: int) -> int:
    """The position in the order without repeats of the example at a position of the order with
    repeats, which has each stretch of examples `repeats` times."""
    repeated_stretch = stretch * repeats
    whole_stretches = position // repeated_stretch
    in_stretch = position % stretch
    return whole_stretches * stretch + in_stretch


def _reordered(examples: grain.MapDataset, index: Callable[[int], int]) -> grain.MapDataset:
    """Endless examples: number i is examples[index(i)]."""
    import grain

    def example_at(position: int) -> Any:
        return examples[index(position)]

    positions = grain.MapDataset.range(_ENDLESS)
    return positions.map(example_at)


@dataclasses.dataclass(frozen=True)
class Reading:
    """Which batches a host reads, and how.

    Attributes:
        batch_size: examples per step, over all hosts.
        host, hosts: this host's number, and the number of hosts. In training, the hosts' parts of a
            batch, concatenated, are the batch that a single host would make.
        workers: processes that read and transform; 0 for threads of this process. They are spawned:
            a script must guard its entry with `if __name__ == "__main__"`.
        finish: applied to each batch, in the process that reads it.

    Raises:
        DataError: `batch_size` is not divisible by `hosts`.
    """

    batch_size: int
    host: int = 0
    hosts: int = 1
    workers: int = 0
    finish: Callable[[Batch], Batch] = unchanged

    def __post_init__(self):
        if self.batch_size < 1 or self.batch_size % self.hosts:
            nearest_share = max(1, self.batch_size // self.hosts)
            nearest = nearest_share * self.hosts
            raise DataError(
                f"batch_size={self.batch_size} counts examples over all hosts and must be a "
                f"positive multiple of their number, {self.hosts}; use {nearest}"
            )

    @property
    def share(self) -> int:
        """The number of examples of a batch that a host reads."""
        return self.batch_size // self.hosts


def train_batches(order: Order, reading: Reading, start: int = 0) -> Batches:
    """Endless batches of consecutive examples of an order, from batch number `start` on. The order
    is pickled if there are workers.

    A batch may hold the end of one epoch and the beginning of the next. A DataError of the examples
    reaches the caller of `next`.
    """
    import grain

    make = functools.partial(_train_batch, order, reading)
    numbers = grain.MapDataset.range(start, _ENDLESS)
    batches = numbers.map(make)
    return _read_ahead(batches, reading.workers)


def _train_batch(order: Order, reading: Reading, step: int) -> Batch:
    first_of_batch = step * reading.batch_size
    first_of_host = reading.host * reading.share
    first = first_of_batch + first_of_host
    stop = first + reading.share
    positions = range(first, stop)
    batch = order.batch(positions)
    return reading.finish(batch)


def evaluation_batches(source: Source, reading: Reading) -> Batches:
    """Every example once, over all hosts, in the source's order. All hosts have the same number of
    batches, all of one shape.

    A host takes every `hosts`-th example. The last global batch is filled up with copies of the
    last example. Batches have one more entry, "weight" (float32 [batch]): 1 for examples, 0 for
    these copies. The source is pickled if there are workers.

    Raises:
        DataError: the source is empty.
    """
    import grain

    require_examples(source)
    count = math.ceil(len(source) / reading.batch_size)
    make = functools.partial(_evaluation_batch, source, reading)
    numbers = grain.MapDataset.range(count)
    batches = numbers.map(make)
    return _read_ahead(batches, reading.workers)


def _evaluation_batch(source: Source, reading: Reading, number: int) -> Batch:
    last = len(source) - 1
    first = number * reading.batch_size + reading.host
    stop = first + reading.batch_size
    examples = []
    for position in range(first, stop, reading.hosts):
        present = min(position, last)
        example = source[present]
        is_copy = position > last
        weight = np.float32(0 if is_copy else 1)
        weighted = {**example, "weight": weight}
        examples.append(weighted)
    batch = stack(examples)
    return reading.finish(batch)


class Spread:
    """At most `count` examples of a source, evenly spread over it; all of them if `count` is 0."""

    def __init__(self, source: Source, count: int):
        length = len(source)
        wanted = count or length
        self._source = source
        self._count = min(wanted, length)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Example:
        length = len(self._source)
        position = index * length // self._count
        return self._source[position]


def require_examples(source: Source) -> None:
    """Raises DataError if a source is empty."""
    if len(source) == 0:
        raise DataError("there are no examples: give data with at least one")


def usable_cores() -> int:
    """The number of cores that this process may use: what taskset, SLURM or a container leaves it,
    not all cores of the machine."""
    if hasattr(os, "sched_getaffinity"):
        cores = os.sched_getaffinity(0)
        return len(cores)
    return os.cpu_count() or 1


class Batches(Iterator[Batch], contextlib.AbstractContextManager):
    """An iterator over batches that owns threads or processes. Use it in a `with` statement, or
    call `close`.

    `close` stops reading ahead and ends the worker processes. It may be called more than once.
    """

    def __init__(self, iterator: grain.DatasetIterator, workers: int):
        self._iterators = [iterator]
        # Also called at exit: a Grain iterator that outlives the interpreter's modules prints
        # tracebacks.
        self.close = weakref.finalize(self, _close_and_drop, self._iterators, workers)

    def __next__(self) -> Batch:
        if not self._iterators:
            raise ValueError("these batches are closed")
        try:
            return next(self._iterators[0])
        except DataError as error:  # Grain adds lines about tracebacks
            message, _, _ = str(error).partition("\n")
            raise type(error)(message) from error
        except RuntimeError as error:
            reason = why_one_ended(str(error))
            if not reason:
                raise
            raise RunError(reason) from None

    def __exit__(self, *_: object) -> None:
        self.close()


def _close_and_drop(iterators: list[grain.DatasetIterator], workers: int) -> None:
    iterator = iterators.pop()
    iterator.close()
    if workers:
        # At the end of the data, a reference cycle in Grain holds the workers' last batches. Their
        # shared memory must be freed before the interpreter ends, or Python prints warnings.
        gc.collect()


def _read_ahead(batches: grain.MapDataset, workers: int) -> Batches:
    import grain

    threads = 1 if workers else 2  # in each process
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=_BUFFER)
    ahead = batches.to_iter_dataset(options)
    if workers:
        # Grain passes its flags to the workers and requires parsed flags, which a notebook does not
        # have.
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()
        processes = grain.MultiprocessingOptions(
            num_workers=workers, per_worker_buffer_size=_BUFFER
        )
        ahead = ahead.mp_prefetch(processes)
        ahead = ahead.map(_private_copy)
    iterator = iter(ahead)
    return Batches(iterator, workers)


def _private_copy(batch: Batch) -> Batch:
    """The batch in private memory. JAX may hold it longer than shared memory may live (see
    `_close_and_drop`)."""
    copy = {}
    for name, value in batch.items():
        copy[name] = np.array(value)
    return copy
