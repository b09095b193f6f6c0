"""What a program prints: standard streams that are lost, and libraries that repeat the errors that
they raise."""

import contextlib
import functools
import io
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, NoReturn


@contextlib.contextmanager
def guard() -> Iterator[None]:
    """Ends the program if its standard output is lost: in silence if nobody reads it any more, as
    when `head` has read enough, else with one line. Lines leave at once, also into a pipe. What
    standard error cannot take is lost."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
    sys.stderr = sys.stderr if isinstance(sys.stderr, _Lossy) else _Lossy(sys.stderr)
    try:
        yield
        print(end="", flush=True)
    except OSError as error:
        if error.filename is not None:  # of a file
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python writes when it ends
        if isinstance(error, BrokenPipeError):
            raise SystemExit(128 + signal.SIGPIPE) from None
        print(
            f"error: standard output cannot be written to ({error.strerror}): free space",
            file=sys.stderr,
        )
        raise SystemExit(2) from None


class _Lossy:
    """Standard error, without the errors of writing to it: a run should not end for a lost
    message."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def end_at_once(code: int, message: str = "") -> NoReturn:
    """Ends the program, after a message, without waiting for its threads, which would crash if the
    interpreter went first, or for other processes."""
    if message:
        print(message, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@functools.cache
def silence_orbax() -> None:
    """Hides what Orbax and TensorStore print in addition to the errors that they raise."""
    from absl import logging as absl_logging  # the list of subcommands answers without it

    show = sys.unraisablehook
    orbax = os.path.join("orbax", "checkpoint", "")

    def unraisablehook(unraisable: Any) -> None:
        """After an error, Orbax's coroutines and TensorStore's threads still answer to an event
        loop that is closed."""
        code = getattr(unraisable.object, "cr_code", None)
        if str(unraisable.exc_value) != "Event loop is closed" and not (
            code and orbax in code.co_filename
        ):
            show(unraisable)

    sys.unraisablehook = unraisablehook
    absl_logging.get_absl_logger().addFilter(lambda record: orbax not in record.pathname)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
