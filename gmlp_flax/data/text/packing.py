"""A prepared corpus to windows of equal length, and their order in training."""

from __future__ import annotations

import bisect
import math
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
    """The windows of a prepared corpus, as a random-access source; no token is lost or duplicated.

    A window is [CLS], the next `length - 2` tokens of all documents, each followed by its own
    [SEP], and another [SEP]; the last window has [PAD] to its length. Items are {"tokens": int32
    [length], "index": int32}. Consecutive items are read together; any other item costs the reading
    of a group of windows.

    If windows are not `closed`, no [SEP] is added at their end, and there is room for one more
    token: what follows [CLS] is the text itself, with a [SEP] at the end of each document and
    nowhere else.

    Args:
        prepared: the corpus; pickled as the name of its folder.
        length: the length of a window, including special tokens.
        closed: whether a window ends in a [SEP] of its own.

    Raises:
        DataError: `length` is too small, or there are fewer tokens than one window needs.
    """

    def __init__(self, prepared: Prepared, length: int, closed: bool = True):
        if length < 3:
            raise DataError(
                f"length={length} leaves no room between [CLS] and [SEP]; give at least 3"
            )
        special = 2 if closed else 1
        self.prepared = prepared
        self.length = length
        self.closed = closed
        self.room = length - special
        if prepared.tokens < self.room:
            longest = prepared.tokens + special
            raise DataError(
                f"the corpus has {prepared.tokens} tokens, a sequence of length {length} needs "
                f"{self.room}; lower the length to {longest} or less, or give more text"
            )
        self.group = max(1, GROUP_TOKENS // length)
        self._groups = ResultCache(self.read_group, 2)

    def group_range(self, group: int) -> range:
        """The numbers of a group's windows."""
        first = group * self.group
        stop = min(first + self.group, len(self))
        return range(first, stop)

    def read_group(self, group: int) -> np.ndarray:
        """The windows of a group: [windows, length], of the prepared ids' type."""
        numbers = self.group_range(group)
        return self.windows(numbers.start, numbers.stop)

    def windows(self, first: int, stop: int) -> np.ndarray:
        """Windows [first, stop), or as many as there are: [windows, length], of the prepared ids'
        type."""
        tokenizer = self.prepared.tokenizer
        end = min(stop, len(self))
        count = end - first
        shape = (count, self.length)
        ids = self._read_text(first, count)
        places = count * self.room
        missing = places - len(ids)
        padded = np.pad(ids, (0, missing), constant_values=tokenizer.pad_id)
        texts = padded.reshape(count, self.room)
        after_text = 1 + self.room  # 1 for [CLS]
        windows = np.full(shape, tokenizer.pad_id, ids.dtype)
        windows[:, 0] = tokenizer.cls_id
        windows[:, 1:after_text] = texts
        if self.closed:
            self._close(windows, len(ids))
        return windows

    def _read_text(self, first: int, count: int) -> np.ndarray:
        """The ids of the text in `count` windows: [tokens]. The last window may have fewer."""
        begin = first * self.room
        end = begin + count * self.room
        end = min(end, self.prepared.tokens)
        return self.prepared.read(begin, end)

    def _close(self, windows: np.ndarray, tokens: int) -> None:
        """Puts [SEP] after the text of each window; `tokens` is the length of all their text."""
        sep_id = self.prepared.tokenizer.sep_id
        rows = np.arange(len(windows))
        begins = self.room * rows
        left = tokens - begins
        sizes = np.minimum(self.room, left)
        after_text = 1 + sizes  # 1 for [CLS]
        windows[rows, after_text] = sep_id

    def __len__(self) -> int:
        return _ceil_div(self.prepared.tokens, self.room)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        group, row = divmod(int(index), self.group)
        windows = self._groups(group)
        window = windows[row]
        return {
            "tokens": window.astype(np.int32),
            "index": np.int32(index),
        }

    def __reduce__(self):
        return Packing, (self.prepared, self.length, self.closed)


def _ceil_div(dividend: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-dividend // divisor)


class _Examples(NamedTuple):
    """Examples of a batch, which are filled in part by part.

    Attributes:
        tokens: int32 [examples, length].
        index: int32 [examples], their numbers in the corpus.
    """

    tokens: np.ndarray
    index: np.ndarray

    @classmethod
    def empty(cls, count: int, length: int) -> _Examples:
        tokens = np.empty((count, length), np.int32)
        index = np.empty(count, np.int32)
        return cls(tokens, index)

    def put(self, where: slice | np.ndarray, tokens: np.ndarray, index: np.ndarray) -> None:
        """Fills in the examples at some positions."""
        self.tokens[where] = tokens
        self.index[where] = index


class _Pool(NamedTuple):
    """Some windows, and the order in which they are taken.

    Attributes:
        windows: [windows, length].
        order: int [windows], rows of `windows`.
        numbers: int [windows], their numbers in the corpus.
    """

    windows: np.ndarray
    order: np.ndarray
    numbers: np.ndarray


class _Epoch(NamedTuple):
    """The order of the groups in an epoch.

    Attributes:
        groups: int [groups], their numbers.
        bounds: where each pool begins, counted in windows of the epoch, and the end.
    """

    groups: np.ndarray
    bounds: list[int]


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
        groups = _ceil_div(len(packing), packing.group)
        group_tokens = packing.group * packing.length
        full_pools = _ceil_div(groups * group_tokens, POOL_TOKENS)
        pools = min(groups, full_pools)
        self._group_count = groups
        # Where each pool begins, counted in groups of the epoch, and the end.
        pool_numbers = np.arange(pools + 1)
        self._pool_bounds = pool_numbers * groups // pools
        self._epochs = ResultCache(self._make_epoch, 2)
        self._pools = ResultCache(self._make_pool, 2)

    def take(self, begin: int, count: int) -> dict[str, np.ndarray]:
        """`count` examples of the endless order, from number `begin` on: "tokens" int32 [count,
        length], and "index" int32 [count], their numbers in the corpus."""
        examples = _Examples.empty(count, self.packing.length)
        done = 0
        while done < count:
            pool, first = self._find(begin + done)
            missing = count - done
            rows = pool.order[first : first + missing]  # fewer where the pool ends
            windows = pool.windows[rows]
            numbers = pool.numbers[rows]
            stop = done + len(rows)
            examples.put(slice(done, stop), windows, numbers)
            done = stop
        return examples._asdict()

    def _find(self, position: int) -> tuple[_Pool, int]:
        """The pool that holds a position of the endless order, and the position in the pool."""
        epoch, in_epoch = divmod(position, len(self.packing))
        bounds = self._epochs(epoch).bounds
        pools_begun = bisect.bisect_right(bounds, in_epoch)
        number = pools_begun - 1
        pool = self._pools((epoch, number))
        in_pool = in_epoch - bounds[number]
        return pool, in_pool

    def _make_epoch(self, epoch: int) -> _Epoch:
        random = np.random.default_rng([self.seed, epoch])
        groups = random.permutation(self._group_count)
        # The last group of the corpus may have fewer windows.
        size = self.packing.group
        first_windows = groups * size
        windows_left = len(self.packing) - first_windows
        sizes = np.minimum(size, windows_left)
        group_ends = np.cumsum(sizes)
        group_bounds = np.insert(group_ends, 0, 0)
        pool_bounds = group_bounds[self._pool_bounds]
        return _Epoch(groups, pool_bounds.tolist())

    def _make_pool(self, key: tuple[int, int]) -> _Pool:
        epoch, pool = key
        start = self._pool_bounds[pool]
        stop = self._pool_bounds[pool + 1]
        groups_of_epoch = self._epochs(epoch).groups
        groups = groups_of_epoch[start:stop]
        windows = []
        numbers: list[int] = []
        for group in sorted(groups.tolist()):
            windows_of_group = self.packing.read_group(group)
            windows.append(windows_of_group)
            numbers += self.packing.group_range(group)
        # Plus one, because NumPy ignores trailing zeros of a seed.
        random = np.random.default_rng([self.seed, epoch, pool + 1])
        return _Pool(
            windows=np.concatenate(windows),
            order=random.permutation(len(numbers)),
            numbers=np.array(numbers),
        )


class Mixture:
    """Examples from one corpus or several, each corpus in an order of its own; a `pipeline.Order`.

    After any number of examples, each corpus has had its share of them, to within an example or
    two. A small corpus begins a new epoch while others continue theirs.

    Args:
        packings: the windows of each corpus, of one length; their numbers in "index" continue from
            corpus to corpus.
        shares: of each corpus, above 0; they add up to 1.
        seed: decides the orders; a non-negative integer.
    """

    def __init__(self, packings: Sequence[Packing], shares: Sequence[float], seed: int):
        self.packings = packings
        self.shares = shares
        self.seed = seed
        self._orders: list[WindowOrder] = []
        for number, packing in enumerate(packings):
            order = WindowOrder(packing, seed + number)
            self._orders.append(order)

    def batch(self, positions: range) -> dict[str, np.ndarray]:
        """The examples at consecutive positions, as `WindowOrder.take`."""
        count = len(positions)
        if len(self._orders) == 1:
            [order] = self._orders
            return order.take(positions.start, count)
        after_last = positions.stop + 1
        bounds = np.arange(positions.start, after_last)
        length = self.packings[0].length
        examples = _Examples.empty(count, length)
        taken_of_corpora = self._taken(bounds)
        windows_before = 0
        for order, taken in zip(self._orders, taken_of_corpora, strict=True):
            first = int(taken[0])
            stop = int(taken[-1])
            part_count = stop - first
            part = order.take(first, part_count)
            is_of_corpus = np.diff(taken) == 1  # [examples]
            numbers = windows_before + part["index"]
            examples.put(is_of_corpus, part["tokens"], numbers)
            windows_before += len(order.packing)
        return examples._asdict()

    def _taken(self, positions: np.ndarray) -> list[np.ndarray]:
        """For each corpus, how many of the examples before each position come from it: int
        [positions].

        Each corpus takes its part of what those before it leave, rounded. So from one position to
        the next the count of exactly one corpus grows, by 1.
        """
        taken = []
        left = positions
        left_share = 1.0
        for share in self.shares[:-1]:
            share_of_left = share / left_share
            part = left * share_of_left
            rounded = np.floor(part + 0.5)
            whole = rounded.astype(np.int64)
            taken.append(whole)
            left = left - whole
            left_share -= share
        taken.append(left)
        return taken

    def __reduce__(self):
        return Mixture, (self.packings, self.shares, self.seed)


def read_shares(lines: Iterable[str]) -> dict[str, float]:
    """Reads config.data.mixture, each `PATH=SHARE`.

    Raises:
        ConfigError: a line has another form, or the shares leave nothing for config.data.train.
    """
    shares: dict[str, float] = {}
    for line in lines:
        path, _, number = line.rpartition("=")
        share = _to_float(number)
        total_before = sum(shares.values())
        total = total_before + share
        is_new_path = path != "" and path not in shares
        is_valid_share = share > 0 and total < 1  # not if it is NaN
        if not is_new_path or not is_valid_share:
            raise ConfigError(
                f"config.data.mixture: {line!r}: expected PATH=SHARE, each path once, and shares "
                "above 0 that add up to less than 1, as config.data.train has the rest"
            )
        shares[path] = share
    return shares


def _to_float(number: str) -> float:
    """A text as a number; NaN if it is not one."""
    try:
        return float(number)
    except ValueError:
        return math.nan
