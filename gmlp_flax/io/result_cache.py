"""The last few results of a slow function, shared by threads."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any


class ResultCache:
    """Calls `make(key)` once for each key and keeps the `size` results last asked for; thread-safe.

    Threads that ask for a result in the making wait for it; other threads do not. If `make` raises, all threads that
    wait get the error, and the next call tries again.
    """

    def __init__(self, make: Callable[[Any], Any], size: int):
        self._make, self._size = make, size
        self._lock, self._results = threading.Lock(), {}

    def __call__(self, key: Hashable) -> Any:
        with self._lock:
            future = self._results.pop(key, None)
            absent = future is None
            self._results[key] = future = Future() if absent else future
            if len(self._results) > self._size:
                del self._results[next(iter(self._results))]
        if absent:
            try:
                future.set_result(self._make(key))
            except BaseException as error:
                with self._lock:
                    if self._results.get(key) is future:
                        del self._results[key]
                future.set_exception(error)
        return future.result()
