"""The processes of config.data.workers, which import the training script again."""

import inspect
import os
import re
import select
import sys

IMPORTED_AGAIN = 78  # the exit code of a worker whose script trains as it is imported
SILENCE = 2.0  # seconds
_MAIN = "__mp_main__"  # as which a spawned process imports the script
# how multiprocessing starts a process: spawn_main(tracker_fd=6, pipe_handle=8)
_PIPE = re.compile(r"spawn_main\(.*\bpipe_handle=(\d+)")
_ENDED = re.compile(r"terminated unexpectedly with exit code (-?\d+)")  # in Grain 0.2.18


def end_if_imported_again() -> None:
    """Ends this process if it is a worker that imports the script that started it, and the script
    has no main guard. Otherwise each worker would train once more."""
    frame = inspect.currentframe()
    while frame is not None:
        is_module = frame.f_code.co_name == "<module>"
        if is_module and frame.f_globals.get("__name__") == _MAIN:
            _read_what_the_parent_sends()
            raise SystemExit(IMPORTED_AGAIN)
        frame = frame.f_back


def _read_what_the_parent_sends() -> None:
    """Reads the pipe through which the parent sends this process its work, until nothing comes for
    SILENCE seconds. Otherwise the parent would wait forever: it keeps both ends of the pipe open,
    which holds 64 KiB on Linux (multiprocessing of Python 3.11 to 3.13)."""
    for word in sys.orig_argv:
        match = _PIPE.search(word)
        if match is None:
            continue
        pipe = int(match[1])
        while select.select([pipe], [], [], SILENCE)[0] and os.read(pipe, 1 << 16):
            pass


def why_one_ended(message: str) -> str:
    """The message for a user whose worker process has ended, by the message of Grain's error; ""
    for other errors."""
    match = _ENDED.search(message)
    if match is None:
        return ""
    code = int(match[1])
    if code == IMPORTED_AGAIN:
        return (
            "config.data.workers starts processes, which import your script again: put what it "
            'does under `if __name__ == "__main__":`, or set data.workers=0'
        )
    if code < 0:
        return (
            f"a process of config.data.workers was ended by signal {-code}, perhaps because memory "
            "ran out: give fewer workers"
        )
    return (
        f"a process of config.data.workers ended with exit code {code}, for the reason above: "
        "data.workers=0 reads in threads of this process"
    )
