"""Reading checkpoints: whether an error means that a checkpoint is damaged, or that storage does not
answer now.

Orbax and TensorStore raise the same bare exceptions for both. So a checkpoint counts as damaged
only if every byte of its files can be read and the checkpoint still cannot.
"""

import re
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

from gmlp_flax.errors import FileError, RunError, StorageError
from gmlp_flax.io import files, storage
from gmlp_flax.processes import distributed

T = TypeVar("T")
# The codes of TensorStore and XLA for errors that have nothing to do with the content of a file.
_TRANSIENT = re.compile(
    r"\b(PERMISSION_DENIED|UNAUTHENTICATED|UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED"
    r"|ABORTED|CANCELLED)\b"
)


class Damaged(RunError):
    """A checkpoint that cannot be read although all its bytes can, or whose checksums differ."""


def read(checkpoint: str, action: Callable[[], T]) -> T:
    """Calls `action`, which reads a part of the folder of a checkpoint with Orbax, and retries it
    while storage does not answer.

    Raises:
        Damaged: the content is wrong, or a file is missing.
        RunError: raised by `action` itself, or the error of storage by `storage.storage_error`.
    """
    # Orbax abandons coroutines after an error.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    for pause in (*storage.PAUSES, None):
        try:
            return action()
        except RunError:
            raise
        except Exception as error:
            cause = _storage_error(checkpoint, error)
            if cause is None and files.exists(checkpoint):
                raise Damaged(f"{checkpoint} cannot be read ({first_line(error)})") from None
            if cause is None:
                raise StorageError(
                    f"{checkpoint} was deleted, perhaps by its run, which is training: give the "
                    "command again"
                ) from None
            if pause is None:
                raise storage.storage_error(f"reading {checkpoint}", cause) from None
        time.sleep(pause)
    raise AssertionError("unreachable")


def on_all_processes(checkpoint: str, action: Callable[[], T]) -> T:
    """Calls `action` on all processes at once. It succeeds or fails for all: each reads the share of
    its devices, and if only one failed, the others would wait for it in the next collective."""
    problem: RunError | None = None
    result = None
    try:
        result = action()
    except RunError as error:
        problem = error
    is_fatal = problem is not None and not isinstance(problem, Damaged)
    if not distributed.everywhere(not is_fatal):
        if problem is not None and is_fatal:
            raise problem
        raise RunError(f"{checkpoint} cannot be used by another process: see its message")
    if not distributed.everywhere(problem is None):
        raise problem or Damaged(f"{checkpoint} is damaged, as another process reads it")
    return result  # type: ignore[return-value] - there was no problem


def _storage_error(checkpoint: str, error: BaseException) -> BaseException | None:
    """The error of storage behind an error of Orbax; None if the content of the files caused
    it."""
    for cause in chain(error):
        if is_transient(cause):
            return cause
    if not files.exists(checkpoint):
        return None
    try:
        for file in files.find_files(checkpoint):
            _read_through(file.path)
    except FileError as unreadable:
        return unreadable
    return None


def _read_through(path: str) -> None:
    with files.open_file(path, decompress=False) as stream:
        while stream.read(files.BUFFER):
            pass


def is_transient(error: BaseException) -> bool:
    """Whether an error is one of storage or memory, and says nothing about the content of a
    file."""
    number = storage.errno_of(error)
    if number is not None:
        return number not in storage.MISSING
    if isinstance(error, TimeoutError | ConnectionError | MemoryError):
        return True
    return _TRANSIENT.search(first_line(error)) is not None


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, the nearest first."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        yield cause
        cause = cause.__cause__ or cause.__context__


def first_line(error: BaseException) -> str:
    """The first line of a message, without the options in brackets that TensorStore appends. A long
    one loses its middle: TensorStore's begin with the action and end with the cause."""
    first, *_ = str(error).strip().splitlines() or [type(error).__name__]
    line, _, _ = first.partition(" [")
    if len(line) <= 300:
        return line
    start = line[:140]
    end = line[-140:]
    return f"{start} ... {end}"
