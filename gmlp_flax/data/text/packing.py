"""A prepared corpus to windows of equal length, and (seed, step) to a batch of windows."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gmlp_flax.data import pipeline
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
        self.prepared, self.length, self.closed = prepared, length, closed
        self.room = length - 1 - closed
        if prepared.tokens < self.room:
            raise DataError(
                f"the corpus has {prepared.tokens} tokens, a sequence of length {length} needs {self.room}; "
                f"lower the length to {prepared.tokens + length - self.room} or less, or give more text"
            )
        self.group = max(1, GROUP_TOKENS // length)
        self._groups = ResultCache(
            lambda group: self.windows(group * self.group, (group + 1) * self.group), 2
        )

    def windows(self, first: int, stop: int) -> np.ndarray:
        """Windows [first, stop), or as many as there are: [windows, length], of the prepared ids'
        type."""
        room, tokenizer, count = self.room, self.prepared.tokenizer, min(stop, len(self)) - first
        ids = self.prepared.read(first * room, min((first + count) * room, self.prepared.tokens))
        text = np.pad(ids, (0, count * room - len(ids)), constant_values=tokenizer.pad_id)
        windows = np.full((count, self.length), tokenizer.pad_id, ids.dtype)
        windows[:, 0] = tokenizer.cls_id
        windows[:, 1 : 1 + room] = text.reshape(count, room)
        if self.closed:
            sizes = np.minimum(room, len(ids) - room * np.arange(count))
            windows[np.arange(count), 1 + sizes] = tokenizer.sep_id
        return windows

    def __len__(self) -> int:
        return -(-self.prepared.tokens // self.room)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        group, row = divmod(int(index), self.group)
        return {"tokens": self._groups(group)[row].astype(np.int32), "index": np.int32(index)}

    def __reduce__(self):
        return Packing, (self.prepared, self.length, self.closed)


class Order:
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
        self.packing, self.seed = packing, seed
        groups = -(-len(packing) // packing.group)
        pools = min(groups, -(-groups * packing.group * packing.length // POOL_TOKENS))
        self._bounds = np.arange(pools + 1) * groups // pools  # of each pool, in groups
        self._epochs, self._pools = ResultCache(self._epoch, 2), ResultCache(self._pool, 2)

    def take(self, begin: int, count: int) -> dict[str, np.ndarray]:
        """`count` examples of the endless order, from number `begin` on: "tokens" int32 [count,
        length], and "index" int32 [count], their numbers in the corpus."""
        tokens, index, done = (
            np.empty((count, self.packing.length), np.int32),
            np.empty(count, np.int32),
            0,
        )
        while done < count:
            epoch, position = divmod(begin + done, len(self.packing))
            _, bounds = self._epochs(epoch)
            pool = int(np.searchsorted(bounds, position, "right")) - 1
            windows, order, numbers = self._pools((epoch, pool))
            first, stop = (
                position - int(bounds[pool]),
                min(count, done + int(bounds[pool + 1]) - position),
            )
            rows = order[first : first + stop - done]
            tokens[done:stop], index[done:stop] = windows[rows], numbers[rows]
            done = stop
        return {"tokens": tokens, "index": index}

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The groups in their order, and where each pool begins, counted in windows of the epoch,
        and the end."""
        group, groups = self.packing.group, int(self._bounds[-1])
        order = np.random.default_rng([self.seed, epoch]).permutation(groups)
        sizes = np.minimum(group, len(self.packing) - order * group)
        return order, np.cumsum(np.insert(sizes, 0, 0))[self._bounds]

    def _pool(self, key: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The windows of a pool, [windows, length], their order, and their numbers in the
        corpus."""
        epoch, pool = key
        order, _ = self._epochs(epoch)
        firsts = np.sort(order[self._bounds[pool] : self._bounds[pool + 1]]) * self.packing.group
        stops = np.minimum(firsts + self.packing.group, len(self.packing))
        groups = [*zip(firsts.tolist(), stops.tolist(), strict=True)]
        numbers = np.concatenate([np.arange(*group) for group in groups])
        windows = np.concatenate([self.packing.windows(*group) for group in groups])
        # Plus one, because NumPy ignores trailing zeros of a seed.
        return (
            windows,
            np.random.default_rng([self.seed, epoch, pool + 1]).permutation(len(numbers)),
            numbers,
        )


class Mixture:
    """One corpus or several, each in an order of its own, among which the examples are shared out:
    after any number of them, each corpus has had its share, to within an example or two. A small
    corpus begins a new epoch while others go on.

    Args:
        packings: windows of one length; their numbers in "index" go on from corpus to corpus.
        shares: of each, above 0; they add up to 1.
        seed: decides the orders; a non-negative integer.
    """

    def __init__(self, packings: Sequence[Packing], shares: Sequence[float], seed: int):
        self.packings, self.shares, self.seed = packings, shares, seed
        self._orders = [Order(packing, seed + number) for number, packing in enumerate(packings)]

    def batch(
        self, step: int, batch_size: int, host: int = 0, hosts: int = 1
    ) -> dict[str, np.ndarray]:
        """One host's part of a global batch, as `Order.take`; all hosts' parts, concatenated, are
        the batch."""
        share = pipeline.per_host(self.packings[0], batch_size, hosts)
        begin = step * batch_size + host * share
        if len(self._orders) == 1:
            return self._orders[0].take(begin, share)
        taken = self._taken(np.arange(begin, begin + share + 1))
        source, before = np.diff(taken).argmax(0), 0
        batch = {
            "tokens": np.empty((share, self.packings[0].length), np.int32),
            "index": np.empty(share, np.int32),
        }
        for number, order in enumerate(self._orders):
            examples = order.take(int(taken[number, 0]), int(taken[number, -1] - taken[number, 0]))
            examples["index"] += before
            before += len(order.packing)
            for name, values in examples.items():
                batch[name][source == number] = values
        return batch

    def _taken(self, positions: np.ndarray) -> np.ndarray:
        """How many of the examples before each position come from each corpus: [corpora,
        positions]. Each corpus takes its part of what those before it leave, rounded; so of any two
        numbers in a row one alone grows, by 1."""
        left, taken, of = positions, [], 1.0
        for share in self.shares[:-1]:
            taken.append(np.floor(left * (share / of) + 0.5).astype(np.int64))
            left, of = left - taken[-1], of - share
        return np.stack([*taken, left])

    def __reduce__(self):
        return Mixture, (self.packings, self.shares, self.seed)


def read_shares(lines: Iterable[str]) -> dict[str, float]:
    """Reads config.data.mixture, each `PATH=SHARE`. Raises ConfigError: a line has another form, or
    the shares leave nothing to config.data.train."""
    shares: dict[str, float] = {}
    for line in lines:
        path, _, given = line.rpartition("=")
        with contextlib.suppress(ValueError):
            if (
                path
                and path not in shares
                and float(given) > 0
                and sum(shares.values()) + float(given) < 1
            ):
                shares[path] = float(given)
                continue
        advice = "each path once, and shares above 0 that add up to less than 1, as config.data.train has the rest"
        raise ConfigError(f"config.data.mixture: {line!r}: expected PATH=SHARE, {advice}")
    return shares
