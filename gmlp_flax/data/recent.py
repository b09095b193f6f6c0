"""The last few results of a slow function, for threads that ask for the same ones."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any


class Recent:
    """Calls `make(key)` once for each key, keeping the `size` results last asked for; thread-safe.

    Threads that ask for what is being made wait for it, others do not. What `make` raises, all who wait get, and
    the next one to ask tries again.
    """

    def __init__(self, make: Callable[[Any], Any], size: int):
        self._make, self._size = make, size
        self._lock, self._kept = threading.Lock(), {}

    def __call__(self, key: Hashable) -> Any:
        with self._lock:
            future = self._kept.pop(key, None)
            absent = future is None
            self._kept[key] = future = Future() if absent else future
            if len(self._kept) > self._size:
                del self._kept[next(iter(self._kept))]
        if absent:
            try:
                future.set_result(self._make(key))
            except BaseException as error:
                with self._lock:
                    if self._kept.get(key) is future:
                        del self._kept[key]
                future.set_exception(error)
        return future.result()
