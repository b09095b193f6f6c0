"""The output of the runs of a sweep, each in a log beside its folder."""

import contextlib
import os
import re
import shlex
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from gmlp_flax.io import files, storage

# An error in a run's log: a line of ours, or a traceback, whose exception follows indented lines.
_ERROR = re.compile(
    r"^(?:error: (?P<message>.*)|Traceback .*\n(?:[ \t].*\n)*(?P<exception>\S.*)?)", re.MULTILINE
)
# The start of a command in a run's log; the flag may have the shell's quotes.
_COMMAND = re.compile(r" -m gmlp_flax\.train '?--(?:workdir|member)=")
LINE_WIDTH = 60  # of a line of a log, beside a bar


@contextlib.contextmanager
def open_log(path: str, command: Sequence[str]) -> Iterator[BinaryIO]:
    """A file to append to, after a line with the command; in a bucket, it is written when the block
    ends."""
    words = shlex.join(command)
    line = os.fsencode(f"{words}\n")
    if files.is_remote(path):
        with _open_remote(path) as log:
            log.write(line)
            log.flush()
            yield log
        return
    folder = os.path.dirname(path)
    files.make_folder(folder)
    with storage.file_errors(f"writing {path}"), open(path, "ab") as log:
        log.write(line)
    with open(path, "ab") as log:
        yield log


@contextlib.contextmanager
def _open_remote(path: str) -> Iterator[BinaryIO]:
    """A local file, whose content is appended to a file in a bucket when the block ends."""
    with tempfile.TemporaryFile() as local:
        yield local
        local.seek(0)
        added = local.read()
        earlier = files.read(path) or b""
        files.write(path, earlier + added)


def read_error(log: str) -> str:
    """The error that the last command in a log printed; empty if it printed none, or was killed."""
    content = files.read(log) or b""
    text = content.decode(errors="replace")
    *_, last_output = _COMMAND.split(text)
    errors = list(_ERROR.finditer(last_output))
    if not errors:
        return ""
    last = errors[-1]
    return last["message"] or last["exception"] or "Traceback"


def last_line(log: str) -> str:
    """The start of the last line that a run has printed; "starting" if it has printed none, and
    empty if it has not begun."""
    content = files.read(log)
    if not content:
        return ""
    text = content.decode(errors="replace")
    *_, line = text.splitlines()
    if _COMMAND.search(line):
        return "starting"
    return textwrap.shorten(line, LINE_WIDTH, placeholder=" ...")
