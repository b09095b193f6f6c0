"""Progress of a preparation: counts that the workers share in a file, and a bar drawn from them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tqdm

# Characters per byte of a source file, until the first finished shards show the corpus's own ratio.
_EXPANSION = {".gz": 2.6, ".xz": 3.5, ".bz2": 3.7, ".zst": 2.7, ".parquet": 1.7}

# Seconds before a bar is shown.
_DELAY = 2.0


class Stopped(Exception):
    """Raised in a worker when its parent has stopped the preparation."""


class SharedCounts:
    """Characters and tokens done in each shard, shared between processes; pickled as the file's name.

    Args:
        path: a file made by `create`.
    """

    def __init__(self, path: Path):
        self.path = path
        self.table = np.memmap(path, np.int64, "r+").reshape(-1, 2)

    @classmethod
    def create(cls, path: Path, shards: int) -> SharedCounts:
        """Makes a file with a zero count for each shard, and one more row that says whether to stop."""
        np.zeros((shards + 1, 2), np.int64).tofile(path)
        return cls(path)

    def count(self, shard: int, batches: Iterable[tuple]) -> Iterator[tuple]:
        """Counts a shard's batches of (ids, lengths, characters) and yields their (ids, lengths)."""
        for ids, lengths, characters in batches:
            if self.table[-1, 0]:
                raise Stopped
            self.table[shard] += characters, len(ids)
            yield ids, lengths

    def stop(self) -> None:
        """Makes all workers that count here stop at their next batch."""
        self.table[-1] = 1

    def __reduce__(self):
        return SharedCounts, (self.path,)


class ProgressBar:
    """A bar over the bytes of a corpus, with tokens per second: on standard error, if the work takes long.

    The bytes done in an unfinished shard are estimated from its characters, by the characters per byte so far.

    Args:
        counts: of each shard.
        sizes: bytes of each shard.
        waiting: the shards to be made.
        name: of the corpus; its suffix gives the first estimate of characters per byte.
    """

    def __init__(self, counts: SharedCounts, sizes: Sequence[int], waiting: Iterable[int], name: str):
        self._counts, self._sizes, self._waiting = counts, np.array(sizes, np.float64), sorted(waiting)
        self._done = np.ones(len(sizes), bool)
        self._done[self._waiting] = False
        self._guess = next((ratio for suffix, ratio in _EXPANSION.items() if name.lower().endswith(suffix)), 1.0)
        self._before = int(self._sizes[self._done].sum())
        self._bar = tqdm.tqdm(
            total=int(self._sizes.sum()),
            initial=self._before,
            unit="B",
            unit_scale=True,
            desc="preparing",
            delay=_DELAY,
            file=sys.stderr,
            disable=None,
        )

    def finished(self, shard: int) -> None:
        """Marks a shard as done."""
        self._done[shard] = True

    def update(self) -> None:
        """Draws the bar from the present counts."""
        characters, tokens = self._counts.table[:-1].T
        made = [shard for shard in self._waiting if self._done[shard]]
        ratio = characters[made].sum() / max(1.0, self._sizes[made].sum()) if made else self._guess
        reached = np.where(self._done, self._sizes, np.minimum(self._sizes, characters / max(ratio, 1e-9)))
        elapsed = max(self._bar.format_dict["elapsed"], 1e-9)
        self._bar.set_postfix_str(f"{tokens.sum() / elapsed:,.0f} tokens/s", refresh=False)
        self._bar.update(int(reached.sum()) - self._bar.n)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
