"""A prepared corpus to windows of equal length, and their order in training."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gmlp_flax.data.text.prepared import Prepared
from gmlp_flax.errors import ConfigError, DataError
from gmlp_flax.io.cache import ResultCache

# Windows are read in groups of consecutive windows, and shuffled within pools of groups.
GROUP_TOKENS = 2**18
POOL_TOKENS = 2**24


class Packing:
    """The windows of a prepared corpus, as a random-access source; no token is lost or doubled.

    A window is [CLS], the next `length - 2` tokens of all documents, each followed by its own
    [SEP], and another [SEP]; the last window has [PAD] to its length. Items are {"tokens": int32
    [length], "index": int32}. Consecutive items are read together; any other item costs the reading
    of a group of windows.

    If windows are not `closed`, no [SEP] is added at their end, and a token more has room: what
    follows [CLS] is the text itself, with a [SEP] at the end of each document and nowhere else.

    Args:
        prepared: the corpus; pickled as the name of its folder.
        length: the length of a window, including special tokens.
        closed: see above.

    Raises:
        DataError: `length` is too small, or there are fewer tokens than one window needs.
    """

    def __init__(self, prepared: Prepared, length: int, closed: bool = True):
        if length < 3:
            raise DataError(
                f"length={length} leaves no room between [CLS] and [SEP]; give at least 3"
            )
        self.prepared = prepared
        self.length = length
        self.closed = closed
        self.room = length - 2 if closed else length - 1
        if prepared.tokens < self.room:
            longest = prepared.tokens + length - self.room
            raise DataError(
                f"the corpus has {prepared.tokens} tokens, a sequence of length {length} needs "
                f"{self.room}; lower the length to {longest} or less, or give more text"
            )
        self.group = max(1, GROUP_TOKENS // length)
        self._groups = ResultCache(self._read_group, 2)

    def _read_group(self, group: int) -> np.ndarray:
        first = group * self.group
        return self.windows(first, first + self.group)

    def windows(self, first: int, stop: int) -> np.ndarray:
        """Windows [first, stop), or as many as there are: [windows, length], of the prepared ids'
        type."""
        tokenizer = self.prepared.tokenizer
        count = min(stop, len(self)) - first
        begin = first * self.room
        end = min(begin + count * self.room, self.prepared.tokens)
        ids = self.prepared.read(begin, end)
        padding = count * self.room - len(ids)
        text = np.pad(ids, (0, padding), constant_values=tokenizer.pad_id)
        windows = np.full((count, self.length), tokenizer.pad_id, ids.dtype)
        windows[:, 0] = tokenizer.cls_id
        windows[:, 1 : 1 + self.room] = text.reshape(count, self.room)
        if self.closed:
            rows = np.arange(count)
            sizes = np.minimum(self.room, len(ids) - self.room * rows)
            windows[rows, 1 + sizes] = tokenizer.sep_id
        return windows

    def __len__(self) -> int:
        return -(-self.prepared.tokens // self.room)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        group, row = divmod(int(index), self.group)
        window = self._groups(group)[row]
        return {"tokens": window.astype(np.int32), "index": np.int32(index)}

    def __reduce__(self):
        return Packing, (self.prepared, self.length, self.closed)


class _Pool(NamedTuple):
    """The windows of a pool, [windows, length], their order, and their numbers in the corpus, int
    [windows]."""

    windows: np.ndarray
    order: np.ndarray
    numbers: np.ndarray


class _Epoch(NamedTuple):
    """The groups in their order, and where each pool begins, counted in windows of the epoch, and
    the end: int [pools + 1]."""

    groups: np.ndarray
    bounds: np.ndarray


class WindowOrder:
    """All windows in a new order each epoch; the order at any step is found without reading earlier
    windows.

    An epoch permutes the groups of consecutive windows. Consecutive permuted groups, with about
    POOL_TOKENS tokens, form a pool, and the windows of a pool are permuted once more. So files are
    read in long runs, each pool once per epoch, and a corpus of one pool is shuffled as a whole.
    The pools' numbers of groups differ by at most one.

    Args:
        packing: the windows.
        seed: decides the order; a non-negative integer.
    """

    def __init__(self, packing: Packing, seed: int):
        self.packing = packing
        self.seed = seed
        groups = -(-len(packing) // packing.group)
        tokens = groups * packing.group * packing.length
        pools = min(groups, -(-tokens // POOL_TOKENS))
        self._bounds = np.arange(pools + 1) * groups // pools  # of each pool, in groups
        self._epochs = ResultCache(self._make_epoch, 2)
        self._pools = ResultCache(self._make_pool, 2)

    def take(self, begin: int, count: int) -> dict[str, np.ndarray]:
        """`count` examples of the endless order, from number `begin` on: "tokens" int32 [count,
        length], and "index" int32 [count], their numbers in the corpus."""
        tokens = np.empty((count, self.packing.length), np.int32)
        index = np.empty(count, np.int32)
        done = 0
        while done < count:
            epoch, position = divmod(begin + done, len(self.packing))
            bounds = self._epochs(epoch).bounds
            number = int(np.searchsorted(bounds, position, "right")) - 1
            pool = self._pools((epoch, number))
            first = position - int(bounds[number])
            left_in_pool = int(bounds[number + 1]) - position
            taken = min(count - done, left_in_pool)
            stop = done + taken
            rows = pool.order[first : first + taken]
            tokens[done:stop] = pool.windows[rows]
            index[done:stop] = pool.numbers[rows]
            done = stop
        return {"tokens": tokens, "index": index}

    def _make_epoch(self, epoch: int) -> _Epoch:
        group = self.packing.group
        random = np.random.default_rng([self.seed, epoch])
        groups = random.permutation(int(self._bounds[-1]))
        sizes = np.minimum(group, len(self.packing) - groups * group)
        firsts = np.cumsum(np.insert(sizes, 0, 0))
        return _Epoch(groups, firsts[self._bounds])

    def _make_pool(self, key: tuple[int, int]) -> _Pool:
        epoch, pool = key
        first_group = self._bounds[pool]
        end_group = self._bounds[pool + 1]
        groups = self._epochs(epoch).groups[first_group:end_group]
        windows = []
        numbers = []
        for group in np.sort(groups).tolist():
            first = group * self.packing.group
            stop = min(first + self.packing.group, len(self.packing))
            windows.append(self.packing.windows(first, stop))
            numbers.append(np.arange(first, stop))
        # Plus one, because NumPy ignores trailing zeros of a seed.
        random = np.random.default_rng([self.seed, epoch, pool + 1])
        all_numbers = np.concatenate(numbers)
        order = random.permutation(len(all_numbers))
        return _Pool(np.concatenate(windows), order, all_numbers)


class Mixture:
    """One corpus or several, each in an order of its own, among which the examples are shared out:
    after any number of them, each corpus has had its share, to within an example or two. A small
    corpus begins a new epoch while others continue theirs. A `pipeline.Order`.

    Args:
        packings: windows of one length; their numbers in "index" continue from corpus to
            corpus.
        shares: of each, above 0; they add up to 1.
        seed: decides the orders; a non-negative integer.
    """

    def __init__(self, packings: Sequence[Packing], shares: Sequence[float], seed: int):
        self.packings = packings
        self.shares = shares
        self.seed = seed
        self._orders: list[WindowOrder] = []
        for number, packing in enumerate(packings):
            self._orders.append(WindowOrder(packing, seed + number))

    def batch(self, positions: range) -> dict[str, np.ndarray]:
        """The examples at consecutive positions, as `WindowOrder.take`."""
        count = len(positions)
        if len(self._orders) == 1:
            return self._orders[0].take(positions.start, count)
        taken = self._taken(np.arange(positions.start, positions.stop + 1))
        source = np.diff(taken).argmax(axis=0)  # the corpus of each example
        tokens = np.empty((count, self.packings[0].length), np.int32)
        index = np.empty(count, np.int32)
        before = 0
        for number, order in enumerate(self._orders):
            first = int(taken[number, 0])
            stop = int(taken[number, -1])
            examples = order.take(first, stop - first)
            is_of_corpus = source == number
            tokens[is_of_corpus] = examples["tokens"]
            index[is_of_corpus] = examples["index"] + before
            before += len(order.packing)
        return {"tokens": tokens, "index": index}

    def _taken(self, positions: np.ndarray) -> np.ndarray:
        """How many of the examples before each position come from each corpus: [corpora,
        positions]. Each corpus takes its part of what those before it leave, rounded; so of any two
        numbers in a row one alone grows, by 1."""
        taken = []
        left = positions
        left_share = 1.0
        for share in self.shares[:-1]:
            part = np.floor(left * (share / left_share) + 0.5).astype(np.int64)
            taken.append(part)
            left = left - part
            left_share -= share
        return np.stack([*taken, left])

    def __reduce__(self):
        return Mixture, (self.packings, self.shares, self.seed)


def read_shares(lines: Iterable[str]) -> dict[str, float]:
    """Reads config.data.mixture, each `PATH=SHARE`. Raises ConfigError: a line has another form, or
    the shares leave nothing to config.data.train."""
    shares: dict[str, float] = {}
    for line in lines:
        path, _, number = line.rpartition("=")
        share = 0.0
        with contextlib.suppress(ValueError):
            share = float(number)
        total = sum(shares.values()) + share
        if not path or path in shares or not share > 0 or not total < 1:
            raise ConfigError(
                f"config.data.mixture: {line!r}: expected PATH=SHARE, each path once, and shares "
                "above 0 that add up to less than 1, as config.data.train has the rest"
            )
        shares[path] = share
    return shares
